from collections.abc import Iterator

import msgspec

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CombineOutputs,
    CompleteRequest,
    DispatchBatch,
    FailRequest,
    Member,
    RejectRequest,
    ReleaseReason,
)
from sluice.batcher.interface.events import (
    BatchCompleted,
    BatchFailed,
    CombinationFailed,
    FailureCause,
    OutputsCombined,
    PartitionLost,
    PartitionReady,
    RequestArrived,
    RequestCancelled,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    GAINING,
    MS,
    ONE,
    US,
    S,
    arrival,
    cascade,
    completed,
    dispatch,
    ensemble,
    model,
    serving,
    spec_of,
    step,
)

DELAY, FULL, RETRY = ReleaseReason.DELAY, ReleaseReason.FULL, ReleaseReason.RETRY


def lost(batch: int) -> BatchFailed:
    return BatchFailed(batch, FailureCause.WORKER_LOST, "killed by signal 9")


def failed(batch: int) -> BatchFailed:
    return BatchFailed(batch, FailureCause.BACKEND, "division by zero")


def lost_again(request: int) -> FailRequest:
    reason = "the worker was lost again, with this request alone: killed by signal 9"
    return FailRequest(request, Outcome.FAILED_WORKER_LOST, reason)


def settling(decisions: list[AnyDecision]) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    for decision in decisions:
        if isinstance(decision, CompleteRequest | FailRequest):
            assert decision.request not in found
            found[decision.request] = decision.outcome
    return found


def batches_one_by_one(scheduler: Scheduler, first: list[AnyDecision], bad: set[int]) -> Iterator[list[AnyDecision]]:
    """Run every batch for 1 ms, failing those that hold a bad request; yields the decisions of each step."""
    now_ns = 0
    queued = [decision for decision in first if isinstance(decision, DispatchBatch)]
    while queued:
        batch = queued.pop(0)
        event: BatchCompleted | BatchFailed = completed(batch.batch, now_ns, now_ns + MS)
        if bad & {member.request for member in batch.members}:
            event = failed(batch.batch)
        now_ns += MS
        decisions = step(scheduler, now_ns, event)
        queued += [decision for decision in decisions if isinstance(decision, DispatchBatch)]
        yield decisions


def test_a_batch_that_fails_is_halved() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, *(arrival(number, S) for number in range(1, 6)))
    assert step(scheduler, MS, failed(1)) == [dispatch(2, [1, 2], RETRY)]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        CompleteRequest(2, Outcome.COMPLETED),
        dispatch(3, [3, 4, 5], RETRY),
    ]


def test_bisection_finds_the_one_bad_row_of_eight() -> None:
    for bad in range(8):
        scheduler = serving(spec_of([model("m:1")]), GAINING)
        first = step(scheduler, 0, *(arrival(number, S) for number in range(8)))
        assert first == [dispatch(1, range(8), FULL)]
        decisions = [made for step_ in batches_one_by_one(scheduler, first, {bad}) for made in step_]
        assert settling(decisions) == {
            number: Outcome.FAILED_BACKEND if number == bad else Outcome.COMPLETED for number in range(8)
        }
        assert FailRequest(bad, Outcome.FAILED_BACKEND, "division by zero") in decisions
        assert sum(isinstance(made, DispatchBatch) for made in decisions) == 6, "two halves, three times"


def test_a_batch_of_which_every_row_is_bad_fails_every_request() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    first = step(scheduler, 0, *(arrival(number, S) for number in range(4)))
    decisions = [made for step_ in batches_one_by_one(scheduler, first, {0, 1, 2, 3}) for made in step_]
    assert settling(decisions) == dict.fromkeys(range(4), Outcome.FAILED_BACKEND)


def test_a_request_that_failed_alone_is_not_tried_again() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, S, rows=8))
    assert step(scheduler, MS, failed(1)) == [FailRequest(1, Outcome.FAILED_BACKEND, "division by zero")]
    assert scheduler.next_wakeup_ns() is None


def test_a_cancelled_member_is_left_out_of_the_retry() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, S), arrival(2, S), arrival(3, S))
    step(scheduler, 100 * US, RequestCancelled(2))
    assert step(scheduler, MS, failed(1)) == [dispatch(2, [1], RETRY)]
    step(scheduler, MS, RequestCancelled(3))
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    assert scheduler.queue_depths() == {"m:1": 0}


def test_retries_go_before_what_waits() -> None:
    scheduler = serving(spec_of([model("m:1", 2)]), ONE)
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    assert step(scheduler, 100 * US, arrival(3, MS * 10)) == []
    assert step(scheduler, MS, failed(1)) == [dispatch(2, [1], RETRY)]
    assert step(scheduler, 1850 * US) == [dispatch(3, [2], RETRY)]


def test_a_lost_worker_s_batch_is_retried_elsewhere_in_halves() -> None:
    scheduler = serving(spec_of([model("m:1")], partitions=("cpu0", "cpu1")), GAINING)
    step(scheduler, 0, arrival(1, S), arrival(2, S, rows=2))
    assert step(scheduler, MS, PartitionLost("cpu0", "killed"), lost(1)) == [dispatch(2, [1], RETRY, partition="cpu1")]
    assert step(scheduler, 1850 * US) == [dispatch(3, [Member(2, 0, 2)], RETRY, partition="cpu1")]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    assert step(scheduler, 3 * MS, completed(3, 2 * MS, 3 * MS)) == [CompleteRequest(2, Outcome.COMPLETED)]


def test_a_request_that_takes_workers_along_is_found_by_halving_and_fails_alone() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    up = PartitionReady("cpu0", {"m:1": GAINING})
    assert step(scheduler, 0, *(arrival(number, S) for number in range(8))) == [dispatch(1, range(8), FULL)]
    assert step(scheduler, MS, PartitionLost("cpu0", "killed"), lost(1)) == []
    assert step(scheduler, 2 * MS, up) == [dispatch(2, [0, 1, 2, 3], RETRY)]
    assert step(scheduler, 3 * MS, PartitionLost("cpu0", "killed"), lost(2)) == []
    # The other half goes first: it has waited longer.
    assert step(scheduler, 4 * MS, up) == [dispatch(3, [4, 5, 6, 7], RETRY)]
    assert [type(each) for each in step(scheduler, 5 * MS, completed(3, 4 * MS, 5 * MS))] == [
        *[CompleteRequest] * 4,
        DispatchBatch,
    ]
    assert step(scheduler, 6 * MS, completed(4, 5 * MS, 6 * MS)) == [
        CompleteRequest(0, Outcome.COMPLETED),
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(5, [2, 3], RETRY),
    ]
    assert step(scheduler, 7 * MS, PartitionLost("cpu0", "killed"), lost(5)) == []
    assert step(scheduler, 8 * MS, up) == [dispatch(6, [2], RETRY)]
    assert step(scheduler, 9 * MS, PartitionLost("cpu0", "killed"), lost(6)) == [lost_again(2)]
    assert step(scheduler, 10 * MS, up) == [dispatch(7, [3], RETRY)]
    assert step(scheduler, 11 * MS, completed(7, 10 * MS, 11 * MS)) == [CompleteRequest(3, Outcome.COMPLETED)]


def test_a_batch_that_waited_when_its_worker_was_lost_stays_whole() -> None:
    scheduler = serving(spec_of([model("m:1", 2)]), ONE)
    assert step(scheduler, 0, arrival(1, S), arrival(2, S)) == [dispatch(1, [1, 2], FULL)]
    step(scheduler, 100 * US, arrival(3, S), arrival(4, S))
    assert step(scheduler, 900 * US) == [dispatch(2, [3, 4], FULL)]
    assert step(scheduler, 950 * US, PartitionLost("cpu0", "killed"), lost(1), lost(2)) == []
    assert step(scheduler, 2 * MS, PartitionReady("cpu0", {"m:1": ONE})) == [dispatch(3, [1], RETRY)]
    assert step(scheduler, 3 * MS, completed(3, 2 * MS, 3 * MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(4, [2], RETRY),
    ]
    assert step(scheduler, 4 * MS, completed(4, 3 * MS, 4 * MS)) == [
        CompleteRequest(2, Outcome.COMPLETED),
        dispatch(5, [3, 4], RETRY),
    ]


def test_what_was_running_alone_and_twice_when_its_worker_was_lost_fails_and_its_neighbours_do_not() -> None:
    scheduler = serving(spec_of([model("m:1")], partitions=("cpu0", "cpu1")), GAINING)
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    step(scheduler, MS, PartitionLost("cpu0", "killed"), lost(1))
    assert step(scheduler, 1850 * US) == [dispatch(3, [2], RETRY, partition="cpu1")]
    # Batch 3 waits behind batch 2, so it proves nothing against its members.
    assert step(scheduler, 1900 * US, PartitionLost("cpu1", "killed"), lost(2), lost(3)) == [lost_again(1)]
    assert step(scheduler, 2 * MS, PartitionReady("cpu0", {"m:1": GAINING})) == [dispatch(4, [2], RETRY)]
    assert step(scheduler, 3 * MS, completed(4, 2 * MS, 3 * MS)) == [CompleteRequest(2, Outcome.COMPLETED)]


def test_each_stage_may_lose_its_worker_once() -> None:
    spec = spec_of([model("small:1"), model("large:1")], [cascade("small:1", "large:1")], partitions=("cpu0", "cpu1"))
    tables = {"small:1": GAINING, "large:1": GAINING}
    scheduler = serving(spec, tables)
    step(scheduler, 0, arrival(1, S, "cascade:1"))
    step(scheduler, MS, PartitionLost("cpu0", "killed"), lost(1))
    step(scheduler, 2 * MS, PartitionReady("cpu0", tables))
    # Where the stage before ran, although the other partition is free as well.
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS, 0.1)) == [
        dispatch(3, [Member(1, 1, 1)], model="large:1", partition="cpu1")
    ]
    assert step(scheduler, 3 * MS, PartitionLost("cpu1", "killed"), lost(3)) == [
        dispatch(4, [Member(1, 1, 1)], RETRY, model="large:1")
    ]


def test_two_parts_of_one_request_lost_twice_in_one_batch_fail_it_once() -> None:
    spec = spec_of([model("a:1")], [ensemble("a:1", "a:1")], partitions=("cpu0", "cpu1"))
    scheduler = serving(spec, GAINING)
    parts = [Member(1, 1, 1), Member(1, 0, 1)]
    # The part that comes first has its place on cpu1.
    assert step(scheduler, 0, arrival(1, S, "ensemble:1")) == [dispatch(1, parts, model="a:1", partition="cpu1")]
    assert step(scheduler, MS, PartitionLost("cpu1", "killed"), lost(1)) == [dispatch(2, parts[:1], RETRY, model="a:1")]
    assert step(scheduler, 1850 * US) == [dispatch(3, parts[1:], RETRY, model="a:1")]
    assert step(scheduler, 2 * MS, PartitionLost("cpu0", "killed"), lost(2), lost(3)) == [lost_again(1)]


def test_a_combination_that_fails_fails_its_request_alone() -> None:
    scheduler = serving(spec_of([model("a:1")], [ensemble("a:1", "a:1")]), GAINING)
    step(scheduler, 0, arrival(1, S, "ensemble:1"), arrival(2, S, "ensemble:1"))
    assert step(scheduler, MS, completed(1, 0, MS)) == [
        CombineOutputs(Member(1, 2, 1)),
        CombineOutputs(Member(2, 2, 1)),
    ]
    assert step(scheduler, MS, CombinationFailed(1, 2, "shapes differ"), OutputsCombined(2, 2)) == [
        FailRequest(1, Outcome.FAILED_BACKEND, "shapes differ"),
        CompleteRequest(2, Outcome.COMPLETED),
    ]


def test_a_batch_without_room_is_halved_and_what_does_not_fit_alone_is_unavailable() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    no_room = BatchFailed(1, FailureCause.RESOURCES, "no room")
    assert step(scheduler, 0, no_room) == [dispatch(2, [1], RETRY)]
    assert step(scheduler, 0, BatchFailed(2, FailureCause.RESOURCES, "no room")) == [
        FailRequest(1, Outcome.FAILED_UNAVAILABLE, "no room"),
        dispatch(3, [2], RETRY),
    ]


def test_a_request_whose_next_model_did_not_come_back_fails() -> None:
    spec = spec_of([model("small:1"), model("large:1")], [cascade("small:1", "large:1")], partitions=("cpu0", "cpu1"))
    scheduler = serving(spec, {"small:1": GAINING})
    step(scheduler, 0, PartitionReady("cpu0", {"small:1": GAINING, "large:1": GAINING}))
    step(scheduler, 0, arrival(1, S, "cascade:1"))
    step(scheduler, MS, PartitionLost("cpu0", "killed"), lost(1))
    step(scheduler, 2 * MS, PartitionReady("cpu0", {"small:1": GAINING}))
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS, 0.1)) == [
        FailRequest(1, Outcome.FAILED_UNAVAILABLE, "no partition holds model large:1 any more")
    ]


def test_a_failing_branch_of_an_ensemble_settles_the_request_once() -> None:
    spec = spec_of([model("a:1"), model("b:1")], [ensemble("a:1", "b:1")], partitions=("cpu0", "cpu1"))
    scheduler = serving(spec, GAINING)
    step(scheduler, 0, arrival(1, S, "ensemble:1"))
    assert step(scheduler, MS, failed(1)) == [FailRequest(1, Outcome.FAILED_BACKEND, "division by zero")]
    assert step(scheduler, MS, failed(2)) == []
    assert step(scheduler, 2 * MS, arrival(2, S, "ensemble:1")) != []
    assert step(scheduler, 3 * MS, failed(3)) == [FailRequest(2, Outcome.FAILED_BACKEND, "division by zero")]
    assert step(scheduler, 3 * MS, completed(4, 2 * MS, 3 * MS)) == []


def test_a_failing_branch_takes_its_waiting_sibling_along() -> None:
    scheduler = serving(spec_of([model("a:1"), model("b:1")], [ensemble("a:1", "b:1")]), GAINING)
    assert step(scheduler, 0, arrival(1, S, "ensemble:1")) == [dispatch(1, [1], model="a:1")]
    assert step(scheduler, MS, failed(1)) == [FailRequest(1, Outcome.FAILED_BACKEND, "division by zero")]
    assert scheduler.queue_depths() == {"a:1": 0, "b:1": 0}


def test_an_ensemble_part_that_is_retried_is_still_joined() -> None:
    spec = spec_of([model("a:1")], [ensemble("a:1", "a:1")])
    scheduler = serving(spec, GAINING)
    step(scheduler, 0, arrival(1, S, "ensemble:1"))
    assert step(scheduler, MS, failed(1)) == [dispatch(2, [Member(1, 1, 1)], RETRY, model="a:1")]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [dispatch(3, [Member(1, 0, 1)], RETRY, model="a:1")]
    assert step(scheduler, 3 * MS, completed(3, 2 * MS, 3 * MS)) == [CombineOutputs(Member(1, 2, 1))]


def test_after_five_seconds_without_a_worker_what_waits_fails_and_what_comes_is_rejected() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    assert step(scheduler, MS, PartitionLost("cpu0", "killed")) == []
    assert step(scheduler, 2 * MS, arrival(1, 60 * S), arrival(2, 60 * S)) == []
    assert scheduler.next_wakeup_ns() == MS + 5 * S
    assert step(scheduler, MS + 5 * S - 1) == []
    assert step(scheduler, MS + 5 * S) == [
        FailRequest(1, Outcome.FAILED_UNAVAILABLE, "no partition holds model m:1 any more"),
        FailRequest(2, Outcome.FAILED_UNAVAILABLE, "no partition holds model m:1 any more"),
    ]
    assert step(scheduler, MS + 5 * S, arrival(3, 60 * S)) == [
        RejectRequest(3, Outcome.REJECTED_UNAVAILABLE, "no partition holds model m:1", S)
    ]
    assert scheduler.next_wakeup_ns() is None


def test_what_waits_for_a_retry_fails_as_well_when_no_worker_comes_back() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, 60 * S))
    assert step(scheduler, MS, PartitionLost("cpu0", "killed"), lost(1)) == []
    assert scheduler.queue_depths() == {"m:1": 1}
    assert step(scheduler, MS + 5 * S) == [
        FailRequest(1, Outcome.FAILED_UNAVAILABLE, "no partition holds model m:1 any more")
    ]
    assert scheduler.queue_depths() == {"m:1": 0}
    step(scheduler, 7 * S, PartitionReady("cpu0", {"m:1": GAINING}))
    assert step(scheduler, 7 * S, arrival(2, 60 * S)) == [dispatch(2, [2])]


def test_a_worker_that_comes_back_in_time_serves_what_waits() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, 60 * S))
    step(scheduler, MS, PartitionLost("cpu0", "killed"), lost(1))
    assert step(scheduler, 2 * MS, arrival(2, 60 * S)) == []
    assert step(scheduler, 2 * S, PartitionReady("cpu0", {"m:1": GAINING})) == [dispatch(2, [1], RETRY)]
    assert step(scheduler, 2 * S + MS, completed(2, 2 * S, 2 * S + MS)) != []


def test_what_waits_for_a_model_that_a_restarted_worker_could_not_load_fails() -> None:
    scheduler = serving(spec_of([model("m:1"), model("n:1")]), GAINING)
    step(scheduler, 0, arrival(1, 60 * S))
    step(scheduler, MS, PartitionLost("cpu0", "killed"), lost(1))
    assert step(scheduler, 2 * S, PartitionReady("cpu0", {"n:1": GAINING})) == [
        FailRequest(1, Outcome.FAILED_UNAVAILABLE, "no partition holds model m:1 any more")
    ]


def test_a_second_partition_keeps_a_model_available() -> None:
    scheduler = serving(spec_of([model("m:1")], partitions=("cpu0", "cpu1")), GAINING)
    step(scheduler, MS, PartitionLost("cpu0", "killed"))
    assert step(scheduler, 10 * S, arrival(1, 60 * S)) == [dispatch(1, [1], partition="cpu1")]


# -- limited costs


def two_prices() -> Scheduler:
    """A fast partition at 4 a second and two slow ones at 1; request 1, which may cost 0.0032, runs on the first."""
    partitions = (PartitionConfig("fast0", "fast", price=4), *(PartitionConfig(f"slow{n}", "slow") for n in (0, 1)))
    scheduler = Scheduler(spec_of([model("m:1", 1)], partitions=partitions))
    tables = {"fast": ONE, "slow": LatencyTable.from_ms({1: 3})}
    step(scheduler, 0, *(PartitionReady(each.name, {"m:1": tables[each.kind]}) for each in partitions))
    cheap = RequestArrived(1, "m:1", 1, S, max_cost=0.0032)
    assert step(scheduler, 0, cheap) == [dispatch(1, [1], FULL, partition="slow0")]
    return scheduler


def test_what_may_cost_little_is_retried_where_it_costs_little() -> None:
    """A millisecond of the fast partition costs 0.004, three of a slow one 0.003."""
    scheduler = two_prices()
    step(scheduler, MS, PartitionLost("slow0", "killed"))
    assert step(scheduler, MS, lost(1)) == [dispatch(2, [1], RETRY, partition="slow1")]


def test_what_may_cost_little_is_retried_anywhere_once_no_partition_is_up_that_costs_little() -> None:
    scheduler = two_prices()
    step(scheduler, MS, PartitionLost("slow0", "killed"), PartitionLost("slow1", "killed"))
    assert step(scheduler, MS, lost(1)) == [dispatch(2, [1], RETRY, partition="fast0")]


def test_halves_that_may_cost_little_stay_apart_where_they_run_once_that_is_lost() -> None:
    """One of them may be what killed the worker, so the other one is not to run with it again."""
    slow, fast = PartitionConfig("slow", "slow", price=1), PartitionConfig("fast", "fast", price=4)
    scheduler = Scheduler(spec_of([model("m:1")], partitions=[slow, fast]))
    step(
        scheduler,
        0,
        PartitionReady("slow", {"m:1": LatencyTable.from_ms({1: 3})}),
        PartitionReady("fast", {"m:1": ONE}),
    )
    requests = [RequestArrived(number, "m:1", 1, S, max_cost=0.0035) for number in (1, 2)]
    assert step(scheduler, 0, *requests) == [dispatch(1, [1, 2], partition="slow")]
    assert step(scheduler, MS, PartitionLost("slow", "killed"), lost(1)) == [dispatch(2, [1], RETRY, partition="fast")]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(3, [2], RETRY, partition="fast"),
    ]


def cheap_and_dear() -> Scheduler:
    """Batches of three rows cost 0.003 on the slow partition and 0.004 on the fast one."""
    slow, fast = PartitionConfig("slow", "slow", price=1), PartitionConfig("fast", "fast", price=4)
    scheduler = Scheduler(spec_of([model("m:1", 4)], partitions=[slow, fast]))
    step(
        scheduler,
        0,
        PartitionReady("slow", {"m:1": LatencyTable.from_ms({1: 3})}),
        PartitionReady("fast", {"m:1": ONE}),
    )
    return scheduler


def test_what_may_cost_little_runs_elsewhere_if_there_is_no_memory_for_it_where_it_costs_little() -> None:
    scheduler = cheap_and_dear()
    first, second = (RequestArrived(number, "m:1", 3, S, max_cost=0.0035) for number in (1, 2))
    assert step(scheduler, 0, first) == [dispatch(1, [Member(1, 0, 3)], partition="slow")]
    assert step(scheduler, 0, second) == []
    no_memory = BatchFailed(1, FailureCause.OUT_OF_MEMORY, "too much")
    assert step(scheduler, MS, no_memory) == [dispatch(2, [Member(1, 0, 3)], RETRY, partition="fast")]
    # The other one, which has not run yet, is as large.
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    assert step(scheduler, 3 * MS) == [dispatch(3, [Member(2, 0, 3)], DELAY, partition="fast")]


def test_what_may_cost_little_and_fits_stays_where_it_costs_little() -> None:
    scheduler = cheap_and_dear()
    large, small = (RequestArrived(number, "m:1", rows, S, max_cost=0.0035) for number, rows in ((1, 3), (2, 1)))
    step(scheduler, 0, large)
    step(scheduler, 0, small)
    no_memory = BatchFailed(1, FailureCause.OUT_OF_MEMORY, "too much")
    assert step(scheduler, MS, no_memory) == [
        dispatch(2, [2], FULL, partition="slow"),
        dispatch(3, [Member(1, 0, 3)], RETRY, partition="fast"),
    ]


def test_a_decoupled_batch_that_was_running_is_not_run_again_and_one_that_waited_is() -> None:
    decoupled = msgspec.structs.replace(model("m:1", 1), decoupled=True)
    scheduler = serving(spec_of([decoupled]), ONE)
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1], FULL)]
    step(scheduler, 100 * US, arrival(2, S))
    assert step(scheduler, 900 * US) == [dispatch(2, [2], FULL)]
    assert step(scheduler, 950 * US, PartitionLost("cpu0", "killed"), lost(1), lost(2)) == [
        FailRequest(1, Outcome.FAILED_WORKER_LOST, "killed by signal 9")
    ]
    assert step(scheduler, 2 * MS, PartitionReady("cpu0", {"m:1": ONE})) == [dispatch(3, [2], RETRY)]


def test_what_is_retried_runs_on_another_kind_where_it_would_be_late_on_its_own() -> None:
    kinds = (PartitionConfig("slow", "s"), PartitionConfig("fast", "f", price=5.0))
    for deadline_ns, host in ((S, "slow"), (27 * MS, "fast")):
        scheduler = Scheduler(spec_of([model("m:1", 1)], partitions=kinds))
        step(scheduler, 0, PartitionReady("slow", {"m:1": LatencyTable.from_ms({1: 20})}))
        assert step(scheduler, 0, arrival(1, deadline_ns)) == [dispatch(1, [1], FULL, partition="slow")]
        step(scheduler, 0, PartitionReady("fast", {"m:1": ONE}))
        assert step(scheduler, 20 * MS, lost(1)) == [dispatch(2, [1], RETRY, partition=host)]
