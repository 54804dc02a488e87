"""Pipelines none of whose admitted requests may be late run strictly as planned; batches of a row take 1 ms."""

import math

import msgspec
import pytest

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.interface.decisions import AnyDecision, CompleteRequest, DispatchBatch, RejectRequest
from sluice.batcher.interface.events import PartitionReady
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from tests.support.scheduling.builders import (
    GAINING,
    MS,
    ONE,
    US,
    S,
    arrival,
    chain,
    completed,
    model,
    single,
    spec_of,
    step,
)


def chain_and_single(percentile: float = 100) -> Scheduler:
    """A chain of `a` on cpu0 and of `b` on cpu1, where `c` is as well."""
    pipelines = [msgspec.structs.replace(each, percentile=percentile) for each in (chain("a:1", "b:1"), single("c:1"))]
    models = [model(name, 1) for name in ("a:1", "b:1", "c:1")]
    scheduler = Scheduler(spec_of(models, pipelines, partitions=("cpu0", "cpu1")))
    step(scheduler, 0, PartitionReady("cpu0", {"a:1": ONE}), PartitionReady("cpu1", {"b:1": ONE, "c:1": ONE}))
    return scheduler


def run(decisions: list[AnyDecision]) -> list[tuple[str, str]]:
    """The partitions and models of the batches that are dispatched."""
    return [(each.partition, each.model) for each in decisions if isinstance(each, DispatchBatch)]


@pytest.mark.parametrize(("percentile", "is_admitted"), [(99, True), (100, False)])
def test_time_that_a_partition_is_idle_until_a_later_stage_is_ready_counts_in_strict_plans(
    percentile: float, is_admitted: bool
) -> None:
    """The second stage runs from 1 to 2 ms and has to end by 2.35 ms. What comes at 0.6 ms then ends at 3 ms."""
    scheduler = chain_and_single(percentile)
    step(scheduler, 0, arrival(1, 2500 * US, "chain:1"))
    decisions = step(scheduler, 600 * US, arrival(2, 3100 * US, "c:1"))
    assert (decisions == []) is is_admitted
    assert all(isinstance(each, RejectRequest) and each.outcome is Outcome.REJECTED_DEADLINE for each in decisions)


def test_a_percentile_just_below_100_keeps_finite_margins() -> None:
    scheduler = chain_and_single(math.nextafter(100, 0))
    assert run(step(scheduler, 0, arrival(1, 5 * MS, "chain:1"))) == [("cpu0", "a:1")]


def test_what_is_planned_behind_a_later_stage_runs_behind_it() -> None:
    scheduler = chain_and_single()
    step(scheduler, 0, arrival(1, 2500 * US, "chain:1"))
    assert step(scheduler, 600 * US, arrival(2, 3150 * US, "c:1")) == []
    assert run(step(scheduler, MS, completed(1, 0, MS))) == [("cpu1", "b:1")]
    assert run(step(scheduler, 2 * MS, completed(2, MS, 2 * MS))) == [("cpu1", "c:1")]
    assert step(scheduler, 3 * MS, completed(3, 2 * MS, 3 * MS)) == [CompleteRequest(2, Outcome.COMPLETED)]


def test_what_fits_into_the_time_before_a_later_stage_runs_at_once() -> None:
    scheduler = chain_and_single()
    step(scheduler, 0, arrival(1, 2500 * US, "chain:1"))
    assert run(step(scheduler, 0, arrival(2, 1150 * US, "c:1"))) == [("cpu1", "c:1")]
    assert run(step(scheduler, MS, completed(1, 0, MS), completed(2, 0, MS))) == [("cpu1", "b:1")]


def test_what_has_time_runs_before_its_turn_if_the_later_stage_can_wait() -> None:
    """Behind it, the second stage ends at 2.6 ms, and may do so until 3 ms less the hand-off."""
    scheduler = chain_and_single()
    step(scheduler, 0, arrival(1, 3 * MS, "chain:1"))
    assert run(step(scheduler, 600 * US, arrival(2, S, "c:1"))) == [("cpu1", "c:1")]


def test_a_batch_waits_for_all_its_rows_and_runs_as_soon_as_the_last_is_there() -> None:
    """Two first stages run one after the other, and their second stages share a batch."""
    pipelines = [msgspec.structs.replace(chain("a:1", "b:1"), percentile=100)]
    scheduler = Scheduler(spec_of([model("a:1", 1), model("b:1", 8)], pipelines, partitions=("cpu0", "cpu1")))
    step(scheduler, 0, PartitionReady("cpu0", {"a:1": ONE}), PartitionReady("cpu1", {"b:1": GAINING}))
    step(scheduler, 0, arrival(1, 8 * MS, "chain:1"), arrival(2, 8 * MS, "chain:1"))
    check_invariants(scheduler)
    planned = scheduler.dispatcher.fleet.partitions["cpu1"].planned
    assert [(batch.members, batch.begin_ns, batch.end_ns) for batch in planned] == [(2, 2 * MS, 3100 * US)]


def test_a_request_without_room_for_its_second_stage_is_refused_before_its_first_one_runs() -> None:
    scheduler = chain_and_single()
    step(scheduler, 0, *(arrival(number, 20 * MS, "c:1") for number in range(1, 5)))
    refused = step(scheduler, 0, arrival(9, 2500 * US, "chain:1"))
    assert run(refused) == [("cpu0", "a:1")]  # it goes before those that wait and have more time
    refused = step(scheduler, 0, arrival(10, 2500 * US, "chain:1"))
    assert [each.outcome for each in refused if isinstance(each, RejectRequest)] == [Outcome.REJECTED_DEADLINE]


def test_batches_that_take_longer_than_expected_leave_nothing_behind() -> None:
    """Once something is not there at its turn, what is there runs."""
    scheduler = chain_and_single()
    step(scheduler, 0, arrival(1, 2500 * US, "chain:1"))
    assert step(scheduler, 600 * US, arrival(2, 4 * MS, "c:1")) == []
    wake_ns = scheduler.next_wakeup_ns()
    assert wake_ns == 1150 * US
    assert run(step(scheduler, wake_ns)) == [("cpu1", "c:1")]
    assert run(step(scheduler, 5 * MS, completed(1, 0, 5 * MS), completed(2, MS, 2 * MS))) == [("cpu1", "b:1")]
    assert step(scheduler, 6 * MS, completed(3, 5 * MS, 6 * MS)) == [CompleteRequest(1, Outcome.COMPLETED_LATE)]
    check_invariants(scheduler)
