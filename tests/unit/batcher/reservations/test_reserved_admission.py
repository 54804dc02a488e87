"""Hard objectives are admitted with reserved places only; the cost of a request is limited by `max_cost`."""

import msgspec

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import AnyDecision, CompleteRequest, RejectRequest, ReleaseReason
from sluice.batcher.interface.events import (
    BatchFailed,
    FailureCause,
    PartitionLost,
    PartitionReady,
    RequestArrived,
    RequestCancelled,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    GAINING,
    MS,
    ONE,
    US,
    S,
    arrival,
    completed,
    dispatch,
    model,
    serving,
    single,
    spec_of,
    step,
)

FULL = ReleaseReason.FULL


def hard(*partitions: str | PartitionConfig) -> Scheduler:
    """A model that takes 1 ms, 1.15 ms with the hand-off, and gains nothing from batching."""
    spec = spec_of([model("m:1", 1)], [single("m:1", Late.EVICT)], partitions=partitions or ("cpu0",))
    return serving(spec, ONE)


def limited(request: int, deadline_ns: int, max_cost: float) -> RequestArrived:
    return msgspec.structs.replace(arrival(request, deadline_ns), max_cost=max_cost)


def outcomes(decisions: list[AnyDecision]) -> list[Outcome]:
    return [decision.outcome for decision in decisions if isinstance(decision, RejectRequest)]


def test_a_request_without_a_place_learns_when_it_could_have_been_complete() -> None:
    scheduler = hard()
    assert step(scheduler, 0, arrival(1, 1150 * US - 1)) == [
        RejectRequest(
            1,
            Outcome.REJECTED_DEADLINE,
            "could be complete in 1.1 ms at the soonest, 1.1 ms are left",
            retry_after_ns=1,
        )
    ]
    assert step(scheduler, 0, arrival(2, 1150 * US)) == [dispatch(1, [2], FULL)]
    assert step(scheduler, 0, arrival(3, 2 * MS)) == [
        RejectRequest(
            3,
            Outcome.REJECTED_DEADLINE,
            "could be complete in 2.3 ms at the soonest, 2.0 ms are left",
            retry_after_ns=300 * US,
        )
    ]
    assert step(scheduler, 0, arrival(4, 2300 * US)) == []


def test_a_place_that_is_given_back_is_there_for_the_next() -> None:
    scheduler = hard()
    step(scheduler, 0, arrival(1, S))
    assert step(scheduler, 0, arrival(2, 2300 * US)) == []
    assert outcomes(step(scheduler, 0, arrival(3, 2300 * US))) == [Outcome.REJECTED_DEADLINE]
    step(scheduler, 0, RequestCancelled(2))
    assert step(scheduler, 0, arrival(4, 2300 * US)) == []


def test_a_hard_request_is_admitted_only_at_its_price() -> None:
    scheduler = hard()
    assert step(scheduler, 0, limited(1, 5 * MS, 0.00114)) == [
        RejectRequest(1, Outcome.REJECTED_COST, "costs 0.00115 at least, max_cost is 0.00114", None)
    ]
    assert step(scheduler, 0, limited(2, 5 * MS, 0.00115)) == [dispatch(1, [2], FULL)]


def test_of_two_kinds_the_cheap_one_is_enough_only_for_those_with_time() -> None:
    partitions = [PartitionConfig("dear", "fast", price=10), PartitionConfig("cheap", "slow", price=1)]
    scheduler = Scheduler(spec_of([model("m:1", 1)], [single("m:1", Late.EVICT)], partitions=partitions))
    slow = LatencyTable.from_ms({1: 4})
    step(scheduler, 0, PartitionReady("dear", {"m:1": ONE}), PartitionReady("cheap", {"m:1": slow}))
    assert step(scheduler, 0, limited(1, 3 * MS, 0.005)) == [
        RejectRequest(1, Outcome.REJECTED_COST, "costs 0.0115 at least, max_cost is 0.005", None)
    ]
    assert step(scheduler, 0, limited(2, 5 * MS, 0.005)) == [dispatch(1, [2], FULL, partition="cheap")]


def test_a_soft_request_is_admitted_only_at_its_price() -> None:
    scheduler = serving(spec_of([model("m:1")], [single("m:1")]), GAINING)
    assert step(scheduler, 0, limited(1, S, 0.00114)) == [
        RejectRequest(1, Outcome.REJECTED_COST, "costs 0.00115 at least, max_cost is 0.00114", None)
    ]
    assert step(scheduler, 0, limited(2, S, 0.00115)) == [dispatch(1, [2])]


def test_a_soft_request_never_runs_where_it_costs_more_than_it_may() -> None:
    partitions = [PartitionConfig("dear", "fast", price=100), PartitionConfig("cheap", "slow", price=1)]
    scheduler = Scheduler(spec_of([model("m:1", 1)], [single("m:1")], partitions=partitions))
    slow = LatencyTable.from_ms({1: 5})
    step(scheduler, 0, PartitionReady("dear", {"m:1": ONE}), PartitionReady("cheap", {"m:1": slow}))
    assert step(scheduler, 0, limited(1, 3 * MS, 0.0115)) == [
        RejectRequest(1, Outcome.REJECTED_COST, "costs 0.115 at least, max_cost is 0.0115", None)
    ]
    assert step(scheduler, 0, limited(2, 6 * MS, 0.0115)) == [dispatch(1, [2], FULL, partition="cheap")]
    # The cheap one is taken until 5 ms, and the dear one idles.
    assert step(scheduler, 0, limited(3, 10 * MS, 0.0115)) == [
        RejectRequest(3, Outcome.REJECTED_COST, "costs 0.115 at least, max_cost is 0.0115", S)
    ]
    assert step(scheduler, 0, limited(4, 11 * MS, 0.0115)) == []
    assert step(scheduler, 0, arrival(5, 3 * MS)) == [dispatch(2, [5], FULL, partition="dear")]
    assert step(scheduler, MS, completed(2, 0, MS)) == [CompleteRequest(5, Outcome.COMPLETED)]
    assert step(scheduler, 5 * MS, completed(1, 0, 5 * MS)) == [
        CompleteRequest(2, Outcome.COMPLETED),
        dispatch(3, [4], FULL, partition="cheap"),
    ]


def test_a_limit_of_cost_may_come_while_others_run_and_wait() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], [single("m:1")]), ONE)
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    # One runs, taken to have just begun, and nothing is reserved for the other: it can wait.
    assert step(scheduler, 500 * US, limited(3, 2 * MS, 1.0)) == [
        RejectRequest(
            3, Outcome.REJECTED_DEADLINE, "could be complete in 2.3 ms at the soonest, 1.5 ms are left", 800 * US
        )
    ]
    assert step(scheduler, 500 * US, limited(4, 2800 * US, 1.0)) == []
    assert step(scheduler, MS, completed(1, 0, MS)) == [CompleteRequest(1, Outcome.COMPLETED), dispatch(2, [4], FULL)]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [
        CompleteRequest(4, Outcome.COMPLETED),
        dispatch(3, [2], FULL),
    ]


def test_no_place_can_be_had_of_a_worker_that_is_about_to_come_back() -> None:
    scheduler = hard()
    step(scheduler, 0, PartitionLost("cpu0", "killed"))
    assert step(scheduler, MS, arrival(1, 10 * S)) == [
        RejectRequest(1, Outcome.REJECTED_UNAVAILABLE, "no running partition holds one of its models", S)
    ]
    assert step(scheduler, S, PartitionReady("cpu0", {"m:1": ONE}), arrival(2, 10 * S)) == [dispatch(1, [2], FULL)]


def test_what_waits_for_a_worker_that_is_lost_finds_a_place_elsewhere_and_what_runs_is_repeated() -> None:
    scheduler = hard("cpu0", "cpu1")
    step(scheduler, 0, arrival(1, 10 * MS), arrival(2, 10 * MS))
    step(scheduler, 0, arrival(3, 10 * MS), arrival(4, 10 * MS))
    # The second batches of both are closed before the first ones end.
    assert len(step(scheduler, 850 * US)) == 2
    lost: tuple[PartitionLost | BatchFailed, ...] = (
        PartitionLost("cpu0", "killed"),
        BatchFailed(1, FailureCause.WORKER_LOST, "killed"),
        BatchFailed(3, FailureCause.WORKER_LOST, "killed"),
    )
    assert step(scheduler, 900 * US, *lost) == []
    first = step(scheduler, MS, completed(2, 0, MS))
    assert CompleteRequest(2, Outcome.COMPLETED) in first
    settled = [decision.request for decision in first if isinstance(decision, CompleteRequest)]
    for batch in (4, 5, 6):
        decisions = step(scheduler, batch * 1200 * US, completed(batch, (batch - 1) * 1200 * US, batch * 1200 * US))
        settled += [decision.request for decision in decisions if isinstance(decision, CompleteRequest)]
    assert sorted(settled) == [1, 2, 3, 4]


def test_estimates_that_a_bad_minute_has_driven_up_are_forgotten() -> None:
    scheduler = hard()
    for number in range(70):
        now_ns = number * S
        step(scheduler, now_ns, arrival(number, now_ns + S))
        step(scheduler, now_ns + 50 * MS, completed(number + 1, now_ns, now_ns + 50 * MS))
    tries = 0
    while True:
        now_ns = (100 + tries) * S
        tries += 1
        if not outcomes(step(scheduler, now_ns, arrival(1_000 + tries, now_ns + 5 * MS))):
            break
    assert tries == 2
