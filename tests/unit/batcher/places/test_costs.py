"""The cost of a request is limited by `max_cost`: it is refused, or runs only where it costs no more."""

import msgspec
import pytest

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
    chain,
    completed,
    dispatch,
    model,
    serving,
    single,
    spec_of,
    step,
)

FULL, RETRY = ReleaseReason.FULL, ReleaseReason.RETRY
SLOW = LatencyTable.from_ms({1: 5})
DEAR, CHEAP = PartitionConfig("dear", "fast", price=100), PartitionConfig("cheap", "slow", price=1)


def limited(request: int, deadline_ns: int, max_cost: float, pipeline: str = "m:1", rows: int = 1) -> RequestArrived:
    return msgspec.structs.replace(arrival(request, deadline_ns, pipeline, rows=rows), max_cost=max_cost)


def two_kinds(late: Late = Late.SERVE) -> Scheduler:
    """A model that takes 1 ms for 0.1 on a dear partition and 5 ms for 0.005 on a cheap one."""
    scheduler = Scheduler(spec_of([model("m:1", 1)], [single("m:1", late)], partitions=[DEAR, CHEAP]))
    step(scheduler, 0, PartitionReady("dear", {"m:1": ONE}), PartitionReady("cheap", {"m:1": SLOW}))
    return scheduler


def outcomes(decisions: list[AnyDecision]) -> list[Outcome]:
    return [decision.outcome for decision in decisions if isinstance(decision, RejectRequest)]


@pytest.mark.parametrize("late", Late)
def test_a_request_is_admitted_only_at_its_price(late: Late) -> None:
    scheduler = serving(spec_of([model("m:1")], [single("m:1", late)]), GAINING)
    assert step(scheduler, 0, limited(1, S, 0.00099)) == [
        RejectRequest(1, Outcome.REJECTED_COST, "costs 0.001 at least, max_cost is 0.00099", None)
    ]
    # Four rows take 1.2 ms.
    assert step(scheduler, 0, limited(2, S, 0.00119, rows=4)) == [
        RejectRequest(2, Outcome.REJECTED_COST, "costs 0.0012 at least, max_cost is 0.00119", None)
    ]
    assert step(scheduler, 0, limited(3, S, 0.001)) == [dispatch(1, [3])]


def test_all_stages_count() -> None:
    scheduler = serving(spec_of([model("a:1"), model("b:1")], [chain("a:1", "b:1")]), GAINING)
    assert step(scheduler, 0, limited(1, S, 0.00199, "chain:1")) == [
        RejectRequest(1, Outcome.REJECTED_COST, "costs 0.002 at least, max_cost is 0.00199", None)
    ]
    assert step(scheduler, 0, limited(2, S, 0.002, "chain:1")) == [dispatch(1, [2], model="a:1")]


@pytest.mark.parametrize("late", Late)
def test_a_request_never_runs_where_it_costs_more_than_it_may(late: Late) -> None:
    scheduler = two_kinds(late)
    # The cheap one would be too late, and the dear one idles.
    assert step(scheduler, 0, limited(1, 3 * MS, 0.09)) == [
        RejectRequest(1, Outcome.REJECTED_DEADLINE, "predicted to complete in 5.2 ms, 3.0 ms are left", 2150 * US)
    ]
    assert step(scheduler, 0, limited(2, 6 * MS, 0.09)) == [dispatch(1, [2], FULL, partition="cheap")]
    # The cheap one is taken until 5 ms.
    assert outcomes(step(scheduler, 0, limited(3, 10 * MS, 0.09))) == [Outcome.REJECTED_DEADLINE]
    assert step(scheduler, 0, limited(4, 11 * MS, 0.09)) == []
    assert step(scheduler, 0, arrival(5, 3 * MS)) == [dispatch(2, [5], FULL, partition="dear")]
    assert step(scheduler, MS, completed(2, 0, MS)) == [CompleteRequest(5, Outcome.COMPLETED)]
    assert step(scheduler, 5 * MS, completed(1, 0, 5 * MS)) == [
        CompleteRequest(2, Outcome.COMPLETED),
        dispatch(3, [4], FULL, partition="cheap"),
    ]
    assert step(scheduler, 10 * MS, completed(3, 5 * MS, 10 * MS)) == [CompleteRequest(4, Outcome.COMPLETED)]


def test_a_request_that_may_cost_as_much_runs_on_the_quick_one_in_a_hurry() -> None:
    assert step(two_kinds(), 0, limited(1, 3 * MS, 0.1)) == [dispatch(1, [1], FULL, partition="dear")]


def test_requests_with_and_without_a_limit_share_a_partition() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    # One runs until 1 ms; the one that waits can be overtaken.
    assert outcomes(step(scheduler, 500 * US, limited(3, 2 * MS, 1.0))) == [Outcome.REJECTED_DEADLINE]
    assert step(scheduler, 500 * US, limited(4, 2150 * US, 1.0)) == []
    assert step(scheduler, MS, completed(1, 0, MS)) == [CompleteRequest(1, Outcome.COMPLETED), dispatch(2, [4], FULL)]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [
        CompleteRequest(4, Outcome.COMPLETED),
        dispatch(3, [2], FULL),
    ]


def test_requests_with_a_limit_share_batches() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    assert step(scheduler, 0, limited(1, S, 1.0), limited(2, S, 1.0)) == [dispatch(1, [1, 2])]


def test_a_cancelled_request_gives_its_place_to_the_next() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, 0, limited(1, S, 1.0))
    assert step(scheduler, 0, limited(2, 2150 * US, 1.0)) == []
    assert outcomes(step(scheduler, 0, limited(3, 2150 * US, 1.0))) == [Outcome.REJECTED_DEADLINE]
    step(scheduler, 0, RequestCancelled(2))
    assert step(scheduler, 0, limited(4, 2150 * US, 1.0)) == []


def test_what_waits_for_the_cheap_partition_runs_elsewhere_once_that_is_lost() -> None:
    scheduler = two_kinds()
    step(scheduler, 0, limited(1, S, 0.09), limited(2, S, 0.09))
    lost = (PartitionLost("cheap", "killed"), BatchFailed(1, FailureCause.WORKER_LOST, "killed"))
    # An answer that was promised counts for more than its price.
    (first,) = step(scheduler, MS, *lost)
    assert first == dispatch(2, [1], RETRY, partition="dear")
    (second,) = step(scheduler, 1850 * US)
    assert second == dispatch(3, [2], FULL, partition="dear")
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    assert step(scheduler, 3 * MS, completed(3, 2 * MS, 3 * MS)) == [CompleteRequest(2, Outcome.COMPLETED)]


def test_what_waits_for_a_lost_partition_finds_a_place_on_its_equal() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], partitions=("cpu0", "cpu1")), ONE)
    step(scheduler, 0, *(limited(number, 10 * MS, 1.0) for number in (1, 2, 3, 4)))
    lost = (PartitionLost("cpu0", "killed"), BatchFailed(1, FailureCause.WORKER_LOST, "killed"))
    decisions = step(scheduler, 500 * US, *lost)
    for batch in (2, 3, 4, 5):
        now_ns = (batch - 1) * MS
        decisions += step(scheduler, now_ns, completed(batch, now_ns - MS, now_ns))
    assert sorted(each.request for each in decisions if isinstance(each, CompleteRequest)) == [1, 2, 3, 4]
