"""Batches that take far too long run elsewhere as well, where that is in time; the first answer counts."""

import msgspec

from sluice.batcher.interface.config import Limits, PartitionConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CancelRequest,
    CombineOutputs,
    CompleteRequest,
    DispatchBatch,
    EvictRequest,
    FailRequest,
    Member,
    ReleaseReason,
    RevokeBatch,
)
from sluice.batcher.interface.events import (
    BatchFailed,
    BatchRevoked,
    FailureCause,
    OutputsCombined,
    PartitionLost,
    PartitionReady,
    RequestCancelled,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    CERTAINTY,
    GAINING,
    MS,
    S,
    arrival,
    cascade,
    completed,
    dispatch,
    ensemble,
    model,
    serving,
    single,
    spec_of,
    step,
)

FULL, RETRY = ReleaseReason.FULL, ReleaseReason.RETRY
SLOW = LatencyTable.from_ms({1: 50})
OVERDUE = 100 * MS
"""When a batch of 1 ms is overdue that was dispatched at 0, if its requests have more time."""


def two_partitions() -> Scheduler:
    return serving(spec_of([model("m:1")], partitions=("cpu0", "cpu1")), GAINING)


def until(scheduler: Scheduler, end_ns: int) -> list[AnyDecision]:
    """The decisions on all wake-ups up to a time."""
    decisions = []
    while (due_ns := scheduler.next_wakeup_ns()) is not None and due_ns <= end_ns:
        decisions += step(scheduler, due_ns)
    return decisions


def done(request: int, outcome: Outcome = Outcome.COMPLETED) -> CompleteRequest:
    return CompleteRequest(request, outcome)


def lost(batch: int) -> BatchFailed:
    return BatchFailed(batch, FailureCause.WORKER_LOST, "killed")


def test_rows_of_an_overdue_batch_run_on_the_other_partition_and_the_late_answer_is_dropped() -> None:
    scheduler = two_partitions()
    assert step(scheduler, 0, arrival(1, S), arrival(2, S)) == [dispatch(1, [1, 2])]
    assert step(scheduler, OVERDUE - 1) == []
    assert step(scheduler, OVERDUE) == [dispatch(2, [1, 2], RETRY, partition="cpu1")]
    assert step(scheduler, OVERDUE + 2 * MS, completed(2, OVERDUE, OVERDUE + MS)) == [done(1), done(2)]
    assert step(scheduler, 5 * S, completed(1, 0, 5 * S)) == []
    assert scheduler.next_wakeup_ns() is None
    assert scheduler.queue_depths() == {"m:1": 0}


def test_the_answer_of_the_overdue_batch_counts_if_it_comes_first() -> None:
    scheduler = two_partitions()
    step(scheduler, 0, arrival(1, S))
    assert step(scheduler, OVERDUE) == [dispatch(2, [1], RETRY, partition="cpu1")]
    assert step(scheduler, OVERDUE + MS, completed(1, 0, OVERDUE + MS)) == [done(1)]
    assert step(scheduler, OVERDUE + 2 * MS, completed(2, OVERDUE, OVERDUE + MS)) == []


def test_a_copy_that_waits_is_withdrawn_once_the_overdue_batch_is_answered() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], partitions=("cpu0", "cpu1")), SLOW)
    step(scheduler, 0, arrival(1, S))
    assert until(scheduler, 139 * MS) == []
    step(scheduler, 140 * MS, arrival(2, S))
    assert until(scheduler, 150 * MS) == []
    assert scheduler.queue_depths() == {"m:1": 1}
    assert step(scheduler, 160 * MS, completed(1, 0, 160 * MS)) == [done(1)]
    assert scheduler.queue_depths() == {"m:1": 0}
    assert step(scheduler, 190 * MS, completed(2, 140 * MS, 190 * MS)) == [done(2)]


def test_an_overdue_partition_gets_nothing_until_its_batch_has_ended() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], partitions=("cpu0", "cpu1")), GAINING)
    step(scheduler, 0, arrival(1, S))
    step(scheduler, OVERDUE)
    step(scheduler, OVERDUE + MS, completed(2, OVERDUE, OVERDUE + MS))
    assert step(scheduler, 150 * MS, arrival(3, S)) == [dispatch(3, [3], FULL, partition="cpu1")]
    assert step(scheduler, 151 * MS, completed(3, 150 * MS, 151 * MS)) == [done(3)]
    assert step(scheduler, 160 * MS, completed(1, 0, 160 * MS)) == []
    assert step(scheduler, 170 * MS, arrival(4, S)) == [dispatch(4, [4], FULL)]


def test_the_batch_behind_an_overdue_one_runs_elsewhere_too_if_it_cannot_be_revoked() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], partitions=("cpu0", "cpu1")), LatencyTable.from_ms({1: 1}))
    assert step(scheduler, 0, *(arrival(number, S) for number in range(4))) == [
        dispatch(1, [0], FULL),
        dispatch(2, [1], FULL, partition="cpu1"),
    ]
    both = step(scheduler, 850_000)
    assert [(each.partition, each.batch) for each in both if isinstance(each, DispatchBatch)] == [
        ("cpu0", 3),
        ("cpu1", 4),
    ]
    step(scheduler, MS, completed(2, 0, MS))
    assert step(scheduler, 2 * MS, completed(4, MS, 2 * MS)) == [done(3), RevokeBatch(3)], "its worker does not answer"
    assert step(scheduler, OVERDUE) == [dispatch(5, [0], RETRY, partition="cpu1")]
    assert step(scheduler, 101 * MS, completed(5, OVERDUE, 101 * MS)) == [
        done(0),
        dispatch(6, [2], RETRY, partition="cpu1"),
    ]
    assert step(scheduler, 102 * MS, completed(6, 101 * MS, 102 * MS)) == [done(2)]
    assert step(scheduler, 5 * S, completed(1, 0, 5 * S), BatchRevoked(3)) == []
    assert step(scheduler, 6 * S, arrival(9, 7 * S)) == [dispatch(7, [9], FULL)]


def test_a_batch_is_overdue_at_three_times_its_99th_percentile() -> None:
    scheduler = serving(spec_of([model("m:1")], partitions=("cpu0", "cpu1")), SLOW)
    step(scheduler, 0, arrival(1, S))
    assert until(scheduler, 150 * MS - 1) == []
    assert step(scheduler, 150 * MS) == [dispatch(2, [1], RETRY, partition="cpu1")]


def test_a_batch_is_overdue_sooner_where_a_request_would_be_late_elsewhere() -> None:
    scheduler = two_partitions()
    step(scheduler, 0, arrival(1, 60 * MS), arrival(2, S))
    # That leaves the time of two batches, of which one may run there already, and 0.15 ms for the hand-off.
    assert until(scheduler, 57_649_999) == []
    assert until(scheduler, 57_650_000) == [dispatch(2, [1, 2], RETRY, partition="cpu1")]


def test_a_batch_gets_20_ms_even_if_a_request_is_late_then() -> None:
    scheduler = two_partitions()
    step(scheduler, 0, arrival(1, 10 * MS), arrival(2, 25 * MS))
    assert until(scheduler, 22_649_999) == []
    assert until(scheduler, 22_650_000) == [dispatch(2, [2], RETRY, partition="cpu1")]


def test_what_would_be_late_elsewhere_is_left_where_it_is() -> None:
    scheduler = two_partitions()
    step(scheduler, 0, arrival(1, 10 * MS), arrival(2, S))
    assert until(scheduler, OVERDUE) == [dispatch(2, [2], RETRY, partition="cpu1")]
    assert step(scheduler, 101 * MS, completed(2, OVERDUE, 101 * MS)) == [done(2)]
    assert step(scheduler, 200 * MS, completed(1, 0, 200 * MS)) == [done(1, Outcome.COMPLETED_LATE)]


def test_a_lone_partition_is_never_overdue_and_nothing_wakes_up_for_it() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, S))
    assert scheduler.next_wakeup_ns() is None


def test_a_partition_that_alone_holds_a_model_is_not_overdue_by_it() -> None:
    spec = spec_of([model("m:1", 1), model("other:1")], partitions=("cpu0", "cpu1"))
    scheduler = Scheduler(spec)
    step(scheduler, 0, PartitionReady("cpu0", {"m:1": GAINING}), PartitionReady("cpu1", {"other:1": GAINING}))
    step(scheduler, 0, arrival(1, 9 * S))
    assert step(scheduler, OVERDUE) == []
    assert step(scheduler, 200 * MS, arrival(2, 9 * S)) == [dispatch(2, [2], FULL)]


def test_when_both_partitions_are_slow_one_is_left_that_is_not_overdue() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], partitions=("cpu0", "cpu1")), GAINING)
    step(scheduler, 0, arrival(1, 9 * S), arrival(2, 9 * S))
    assert step(scheduler, OVERDUE) == [dispatch(3, [1], RETRY, partition="cpu1")]
    assert until(scheduler, S) == []
    assert step(scheduler, S, completed(1, 0, S)) == [RevokeBatch(3), done(1)]


def test_after_the_driver_stood_still_a_batch_gets_its_time_again() -> None:
    scheduler = two_partitions()
    step(scheduler, 0, arrival(1, 9 * S))
    assert step(scheduler, 5 * S) == []
    assert step(scheduler, 5 * S + OVERDUE) == [dispatch(2, [1], RETRY, partition="cpu1")]


def test_a_request_whose_copy_answered_is_not_retried_when_the_worker_is_lost() -> None:
    scheduler = two_partitions()
    step(scheduler, 0, arrival(1, S))
    step(scheduler, OVERDUE)
    step(scheduler, 101 * MS, completed(2, OVERDUE, 101 * MS))
    assert step(scheduler, 10 * S, PartitionLost("cpu0", "killed"), lost(1)) == []
    assert step(scheduler, 11 * S, PartitionReady("cpu0", {"m:1": GAINING})) == []


def test_a_copy_goes_on_when_the_overdue_worker_is_lost() -> None:
    scheduler = two_partitions()
    step(scheduler, 0, arrival(1, S))
    step(scheduler, OVERDUE)
    assert step(scheduler, 101 * MS, PartitionLost("cpu0", "killed"), lost(1)) == []
    assert step(scheduler, 102 * MS, completed(2, OVERDUE, 102 * MS)) == [done(1)]


def test_a_copy_whose_worker_is_lost_is_retried_while_the_first_one_is_overdue() -> None:
    scheduler = two_partitions()
    step(scheduler, 0, arrival(1, 9 * S))
    step(scheduler, OVERDUE)
    assert step(scheduler, 101 * MS, PartitionLost("cpu1", "killed"), lost(2)) == []
    assert step(scheduler, S, PartitionReady("cpu1", {"m:1": GAINING})) == [dispatch(3, [1], RETRY, partition="cpu1")]


def test_a_request_that_hangs_its_workers_fails_after_the_second() -> None:
    scheduler = serving(spec_of([model("m:1")], partitions=("cpu0", "cpu1", "cpu2")), GAINING)
    step(scheduler, 0, arrival(1, 60 * S))
    assert step(scheduler, OVERDUE) == [dispatch(2, [1], RETRY, partition="cpu1")]
    assert step(scheduler, 150 * MS, PartitionLost("cpu0", "hung"), lost(1)) == []
    assert step(scheduler, 200 * MS) == [], "no third worker hangs"
    assert step(scheduler, 300 * MS, PartitionLost("cpu1", "hung"), lost(2)) == [
        FailRequest(1, Outcome.FAILED_WORKER_LOST, "the worker was lost again, with this request alone: killed")
    ]


def test_a_cancelled_request_releases_its_memory_when_the_last_copy_ends() -> None:
    scheduler = two_partitions()
    step(scheduler, 0, arrival(1, S, memory_bytes=7))
    step(scheduler, OVERDUE)
    assert step(scheduler, 101 * MS, RequestCancelled(1)) == [CancelRequest(1, Outcome.CANCELLED_CLIENT)]
    step(scheduler, 102 * MS, completed(2, OVERDUE, 102 * MS))
    assert scheduler.memory.used_bytes == 7
    step(scheduler, 200 * MS, completed(1, 0, 200 * MS))
    assert scheduler.memory.used_bytes == 0


def test_an_answered_request_holds_its_memory_until_the_stopped_worker_has_ended() -> None:
    scheduler = two_partitions()
    step(scheduler, 0, arrival(1, S, memory_bytes=7))
    step(scheduler, OVERDUE)
    assert step(scheduler, 101 * MS, completed(2, OVERDUE, 101 * MS)) == [done(1)]
    assert scheduler.memory.used_bytes == 7
    step(scheduler, 10 * S, PartitionLost("cpu0", "hung"), lost(1))
    assert scheduler.memory.used_bytes == 0


def test_a_request_of_several_stages_goes_on_from_the_first_answer() -> None:
    spec = spec_of(
        [model("small:1", confidences=(CERTAINTY,)), model("large:1", confidences=(CERTAINTY,))],
        [cascade("small:1", "large:1")],
        partitions=("cpu0", "cpu1"),
    )
    scheduler = serving(spec, GAINING)
    step(scheduler, 0, arrival(1, S, "cascade:1"))
    assert step(scheduler, OVERDUE) == [dispatch(2, [1], RETRY, model="small:1", partition="cpu1")]
    assert step(scheduler, 101 * MS, completed(2, OVERDUE, 101 * MS, 0.1)) == [
        dispatch(3, [Member(1, 1, 1)], model="large:1", partition="cpu1")
    ]
    # It would have been sure: the first answer counts.
    assert step(scheduler, 102 * MS, completed(1, 0, 102 * MS, 1.0)) == []
    assert step(scheduler, 103 * MS, completed(3, 101 * MS, 103 * MS, 0.1)) == [done(1)]


def test_both_parts_of_an_ensemble_are_copied_and_joined_once() -> None:
    spec = spec_of([model("a:1")], [ensemble("a:1", "a:1")], partitions=("cpu0", "cpu1"))
    scheduler = serving(spec, GAINING)
    (first,) = step(scheduler, 0, arrival(1, S, "ensemble:1"))
    assert isinstance(first, DispatchBatch)
    other = "cpu0" if first.partition == "cpu1" else "cpu1"
    assert step(scheduler, OVERDUE) == [dispatch(2, first.members, RETRY, model="a:1", partition=other)]
    assert step(scheduler, 101 * MS, completed(2, OVERDUE, 101 * MS)) == [CombineOutputs(Member(1, 2, 1))]
    assert step(scheduler, 102 * MS, completed(1, 0, 102 * MS)) == []
    assert step(scheduler, 102 * MS, OutputsCombined(1, 2)) == [done(1)]


def test_answers_stay_in_order_where_that_is_asked() -> None:
    spec = spec_of([model("m:1", 1, TimeoutConfig(preserve_ordering=True))], partitions=("cpu0", "cpu1"))
    scheduler = serving(spec, LatencyTable.from_ms({1: 1}))
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    assert step(scheduler, MS, completed(2, 0, MS)) == []
    assert step(scheduler, OVERDUE) == [dispatch(3, [1], RETRY, partition="cpu1")]
    assert step(scheduler, 101 * MS, completed(3, OVERDUE, 101 * MS)) == [done(1), done(2)]
    assert step(scheduler, 5 * S, completed(1, 0, 5 * S)) == []


def test_a_copy_that_waits_too_long_is_evicted_where_late_requests_are() -> None:
    spec = spec_of([model("m:1", 1)], [single("m:1", Late.EVICT)], partitions=("cpu0", "cpu1"))
    scheduler = serving(spec, SLOW)
    step(scheduler, 0, arrival(1, 260 * MS), arrival(2, S), arrival(3, S), arrival(4, S))
    assert until(scheduler, 50 * MS) == [dispatch(3, [3], FULL), dispatch(4, [4], FULL, partition="cpu1")]
    assert until(scheduler, 209 * MS) == []
    assert scheduler.queue_depths() == {"m:1": 2}
    (evicted,) = until(scheduler, 210 * MS)
    assert isinstance(evicted, EvictRequest)
    assert evicted.request == 1


def test_a_request_of_limited_cost_is_not_copied_to_a_dearer_partition() -> None:
    hosts = (PartitionConfig("cheap", "cpu1", price=1), PartitionConfig("dear", "cpu2", price=9))
    scheduler = serving(spec_of([model("m:1")], partitions=hosts), GAINING)
    limited = arrival(1, S)
    limited = type(limited)(limited.request, limited.pipeline, 1, limited.deadline_ns, max_cost=0.002)
    assert step(scheduler, 0, limited) == [dispatch(1, [1], partition="cheap")]
    assert until(scheduler, OVERDUE) == []
    assert scheduler.queue_depths() == {"m:1": 0}


def test_partitions_are_looked_at_together_fifty_times_a_second_at_most() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], partitions=("cpu0", "cpu1")), LatencyTable.from_ms({1: 1000}))
    step(scheduler, 0, *(arrival(number, 9 * S) for number in range(2)))
    looks = 0
    while (due_ns := scheduler.next_wakeup_ns()) is not None and due_ns <= S:
        looks += 1
        assert step(scheduler, due_ns) == []
    assert looks == 50


def test_a_batch_of_a_decoupled_model_takes_as_long_as_it_likes() -> None:
    decoupled = msgspec.structs.replace(model("m:1", 1), decoupled=True)
    scheduler = serving(spec_of([decoupled], partitions=("cpu0", "cpu1")), GAINING)
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1], FULL)]
    assert until(scheduler, 60 * S) == []
    assert step(scheduler, 60 * S, completed(1, 0, 60 * S)) == [done(1, Outcome.COMPLETED_LATE)]


def test_a_factor_says_after_how_many_medians_a_batch_runs_elsewhere_as_well() -> None:
    spec = spec_of([model("m:1")], partitions=("cpu0", "cpu1"), limits=Limits(straggler_factor=1.5))
    scheduler = serving(spec, SLOW)
    step(scheduler, 0, arrival(1, 10 * S))
    assert until(scheduler, 75 * MS - 1) == []
    assert until(scheduler, 75 * MS) == [dispatch(2, [1], RETRY, partition="cpu1")]
    quick = serving(msgspec.structs.replace(spec, limits=Limits(straggler_factor=2)), LatencyTable.from_ms({1: 1}))
    step(quick, 0, arrival(1, 10 * S))
    assert until(quick, 20 * MS - 1) == [], "the kernel may hold a worker up for as long"
    assert until(quick, 20 * MS) == [dispatch(2, [1], RETRY, partition="cpu1")]
