"""A partition that gets another share of the machine while it serves."""

import msgspec
import pytest

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import BuildPlan, CompleteRequest, Member, RejectRequest, ReleaseReason
from sluice.batcher.interface.events import BatchFailed, FailureCause, PartitionResized, ServingChanged
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.residency_config import Footprint
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    MS,
    US,
    S,
    arrival,
    completed,
    dispatch,
    model,
    planned,
    serving,
    single,
    spec_of,
    step,
)

SLOW = LatencyTable.from_ms({1: 4, 8: 8})
FAST = LatencyTable.from_ms({1: 2, 8: 4})
ONE_CORE = PartitionConfig("cpu0", "cpu1", 1.0, 0.25, 100)
GROWN = PartitionResized("cpu0", "cpu2", 2.0, 0.5, {"m:1": FAST})
SHRUNK = PartitionResized("cpu0", "cpu1", 1.0, 0.25, {"m:1": SLOW})


def on_one_core(late: Late = Late.SERVE) -> Scheduler:
    return serving(spec_of([model("m:1")], [single("m:1", late)], partitions=[ONE_CORE]), SLOW)


def corrections(scheduler: Scheduler) -> dict[str, float]:
    return {kind: each.correction for kind, each in scheduler.dispatcher.models["m:1"].estimates.items()}


def test_all_that_is_served_stays_except_the_memory_of_the_partition() -> None:
    scheduler = on_one_core()
    assert step(scheduler, 0, GROWN) == []
    assert scheduler.spec.partitions == (PartitionConfig("cpu0", "cpu2", 2.0, 0.5, 100),)
    assert corrections(scheduler) == {"cpu2": 1.0}


def test_the_batch_of_the_worker_before_completes_beside_the_first_of_the_next() -> None:
    scheduler = on_one_core()
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1])]
    assert step(scheduler, MS, GROWN) == []
    assert step(scheduler, 2 * MS, arrival(2, S, rows=8)) == []
    assert step(scheduler, 4 * MS - 150 * US) == [dispatch(2, [Member(2, 0, 8)], ReleaseReason.FULL)]
    # The later one is done first, as it may be: it runs on another worker.
    assert step(scheduler, 6 * MS, completed(2, 4 * MS, 6 * MS)) == [CompleteRequest(2, Outcome.COMPLETED)]
    assert step(scheduler, 7 * MS, completed(1, 0, 7 * MS)) == [CompleteRequest(1, Outcome.COMPLETED)]


def test_what_the_worker_before_took_says_nothing_of_the_next() -> None:
    scheduler = on_one_core()
    step(scheduler, 0, arrival(1, S))
    step(scheduler, MS, GROWN)
    step(scheduler, 40 * MS, completed(1, 0, 40 * MS))
    assert corrections(scheduler) == {"cpu2": 1.0}
    step(scheduler, 50 * MS, SHRUNK)
    assert corrections(scheduler) == {"cpu1": 1.0}


def test_a_kind_that_others_are_of_keeps_what_was_learned() -> None:
    scheduler = serving(spec_of([model("m:1")], partitions=["cpu0", "cpu1"]), SLOW)
    step(scheduler, 0, arrival(1, S))
    step(scheduler, MS, GROWN)
    step(scheduler, 40 * MS, completed(1, 0, 40 * MS))
    assert corrections(scheduler) == {"cpu1": pytest.approx(1.002), "cpu2": 1.0}


def test_a_batch_that_the_worker_before_failed_with_runs_on_the_next() -> None:
    scheduler = on_one_core()
    step(scheduler, 0, arrival(1, S))
    lost = BatchFailed(1, FailureCause.WORKER_LOST, "it was killed")
    (again,) = step(scheduler, 2 * MS, GROWN, lost)
    assert (again.batch, again.members) == (2, dispatch(1, [1]).members)  # type: ignore[union-attr]


def test_what_is_known_beforehand_of_a_model_that_is_not_held_counts_on_the_new_share() -> None:
    known = {kind: Footprint(10, 0, S, table) for kind, table in (("cpu1", SLOW), ("cpu2", FAST))}
    cold = msgspec.structs.replace(model("n:1"), footprints=known)
    scheduler = serving(spec_of([model("m:1"), cold], partitions=[ONE_CORE]), {"m:1": SLOW})
    estimates = scheduler.dispatcher.models["n:1"].estimates
    for event in (GROWN, SHRUNK):
        step(scheduler, 0, event)
        assert {kind: each.table for kind, each in estimates.items()} == {event.kind: event.tables["m:1"]}


def test_models_that_were_forgotten_meanwhile_do_not_count() -> None:
    scheduler = on_one_core()
    step(scheduler, 0, msgspec.structs.replace(GROWN, tables={"m:1": FAST, "gone:1": FAST}))
    assert step(scheduler, MS, arrival(1, S)) == [dispatch(1, [1])]


def test_the_plan_is_made_again() -> None:
    spec = spec_of([model("m:1")], partitions=[ONE_CORE])
    scheduler = planned(spec, {"cpu1": {"m:1": SLOW}})
    (order,) = step(scheduler, MS, GROWN)
    assert isinstance(order, BuildPlan)
    assert order.observed.tables == {"m:1": {"cpu2": FAST}}


def test_a_larger_share_has_places_for_what_a_smaller_one_refuses() -> None:
    scheduler = on_one_core(Late.EVICT)
    (refused,) = step(scheduler, 0, arrival(1, 3 * MS))
    assert isinstance(refused, RejectRequest)
    step(scheduler, 0, GROWN)
    assert step(scheduler, 0, arrival(2, 3 * MS)) == [dispatch(1, [2])]


def test_places_last_longer_on_a_smaller_share_while_running_batches_continue() -> None:
    scheduler = on_one_core(Late.EVICT)
    step(scheduler, 0, GROWN)
    assert step(scheduler, 0, arrival(1, 3 * MS)) == [dispatch(1, [1])]
    assert step(scheduler, 0, arrival(2, 8 * MS, rows=8), arrival(3, 30 * MS)) == []
    partition = scheduler.dispatcher.fleet.partitions["cpu0"]
    assert partition.planned_ns == 4 * MS + 2 * MS
    step(scheduler, MS, SHRUNK)
    assert partition.planned_ns == 8 * MS + 4 * MS
    # Between the two another row would take 4 ms as well, and end at 2 + 8 + 4 ms.
    (refused,) = step(scheduler, MS, arrival(4, 14 * MS))
    assert isinstance(refused, RejectRequest)
    assert refused.reason == "predicted to complete in 13.2 ms, 13.0 ms are left"
    assert step(scheduler, 3 * MS, completed(1, 0, 3 * MS))[0] == CompleteRequest(1, Outcome.COMPLETED)


def test_a_pipeline_that_evicts_can_be_added_while_a_batch_of_the_worker_before_runs() -> None:
    scheduler = on_one_core()
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1])]
    step(scheduler, MS, GROWN)
    evicting = single("m:1", Late.EVICT, name="hard:1")
    assert step(scheduler, 2 * MS, ServingChanged((), (evicting,))) == []
    assert step(scheduler, 4 * MS, completed(1, 0, 4 * MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
