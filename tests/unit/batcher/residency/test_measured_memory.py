"""Models that take more than was believed, as the first worker finds that loads them."""

import msgspec
import pytest

from sluice.batcher.interface.config import PartitionConfig, SchedulerSpec
from sluice.batcher.interface.decisions import (
    AnyDecision,
    BuildPlan,
    DispatchBatch,
    FailRequest,
    LoadModel,
    RejectRequest,
    UnloadModel,
)
from sluice.batcher.interface.events import ModelLoaded, PartitionReady, PartitionResized, PlanBuilt
from sluice.batcher.interface.residency_config import Eviction, Footprint
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.residency.on_demand import OnDemandLoader
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.measurement import ModelMemory
from tests.support.scheduling.builders import MS, ONE, S, arrival, completed, model, spec_of, step
from tests.unit.batcher.residency.test_on_demand import demanded, up

MIB = 1 << 20


def believed(spec: SchedulerSpec, mib: float = 10, room: float = 30) -> SchedulerSpec:
    """The same without profiles: of all models no more is known than the size of their files."""
    models = (msgspec.structs.replace(each, footprints={}, memory_bytes=int(mib * MIB)) for each in spec.models)
    partitions = (msgspec.structs.replace(each, memory_bytes=int(room * MIB)) for each in spec.partitions)
    residency = msgspec.structs.replace(spec.residency, load_ns=10 * MS)
    return msgspec.structs.replace(spec, models=tuple(models), partitions=tuple(partitions), residency=residency)


def free_mib(scheduler: Scheduler, name: str = "cpu0") -> float:
    loader = scheduler.served.loader
    assert isinstance(loader, OnDemandLoader)
    return loader.memories[name].free_bytes / MIB


def taken_mib(scheduler: Scheduler, key: str, kind: str = "cpu1") -> float:
    return scheduler.dispatcher.models[key].config.memory_on(kind) / MIB


def loaded(key: str, mib: float, row_mib: float = 0) -> ModelLoaded:
    return ModelLoaded("cpu0", key, ONE, ModelMemory(int(mib * MIB), int(row_mib * MIB)))


@pytest.mark.parametrize(
    ("rest_mib", "row_mib", "expected"),
    [(25, 0, 25), (20, 4, 24), (9, 0, 10), (10.9, 0, 10)],
    ids=["more", "its largest batch counts", "less is never believed", "little more means nothing"],
)
def test_a_model_takes_what_was_found_when_it_was_loaded(rest_mib: float, row_mib: float, expected: float) -> None:
    scheduler = up(believed(demanded("a", "b")), cpu0="b")
    assert step(scheduler, MS, arrival(1, S, "a")) == [LoadModel("cpu0", "a")]
    step(scheduler, 11 * MS, loaded("a", rest_mib, row_mib))
    assert taken_mib(scheduler, "a") == expected
    assert [each.memory_on("cpu1") / MIB for each in scheduler.spec.models] == [expected, 10]
    assert taken_mib(scheduler, "a", "cpu2") == 10


def test_a_profile_is_believed_rather() -> None:
    spec = believed(demanded("a", "b"))
    known = msgspec.structs.replace(spec.models[0], footprints={"cpu1": Footprint(12 * MIB)})
    scheduler = up(msgspec.structs.replace(spec, models=(known, spec.models[1])), cpu0="b")
    step(scheduler, MS, arrival(1, S, "a"))
    step(scheduler, 11 * MS, loaded("a", 25))
    assert taken_mib(scheduler, "a") == 12


def test_once_it_is_known_a_second_load_changes_nothing() -> None:
    scheduler = up(believed(demanded("a", "b"), room=50), cpu0="b")
    step(scheduler, MS, arrival(1, S, "a"))
    step(scheduler, 11 * MS, loaded("a", 25))
    step(scheduler, 12 * MS, PartitionReady("cpu0", {"a": ONE}, {"a": ModelMemory(11 * MIB)}))
    assert (taken_mib(scheduler, "a"), free_mib(scheduler)) == (25, 25)
    step(scheduler, 13 * MS, PartitionReady("cpu0", {"a": ONE}, {"a": ModelMemory(27 * MIB)}))
    assert (taken_mib(scheduler, "a"), free_mib(scheduler)) == (27, 23)


def test_the_model_that_ran_the_longest_ago_goes_at_once_when_another_one_takes_more() -> None:
    scheduler = up(believed(demanded("a", "b", "c")), cpu0="ab")
    for number, key in enumerate("ab", 1):
        step(scheduler, number * 2 * MS, arrival(number, S, key))
        step(scheduler, number * 2 * MS + MS, completed(number, number * 2 * MS, number * 2 * MS + MS))
    assert step(scheduler, 10 * MS, arrival(3, S, "c")) == [LoadModel("cpu0", "c")]
    unload, batch = step(scheduler, 20 * MS, loaded("c", 20))
    assert unload == UnloadModel("cpu0", "a")
    assert isinstance(batch, DispatchBatch)
    assert free_mib(scheduler) == 0
    assert step(scheduler, 30 * MS, arrival(4, S, "a"))[0] == UnloadModel("cpu0", "b")


@pytest.mark.parametrize("eviction", Eviction)
def test_what_is_waited_for_goes_too_rather_than_that_memory_is_exceeded(eviction: Eviction) -> None:
    scheduler = up(believed(demanded("a", "b", "c", eviction=eviction)), cpu0="ab")
    step(scheduler, MS, arrival(1, S, "a"), arrival(2, S, "a"), arrival(3, S, "a"), arrival(4, S, "c"))
    decisions = step(scheduler, 11 * MS, loaded("c", 30))
    assert decisions[:2] == [UnloadModel("cpu0", "b"), UnloadModel("cpu0", "a")]
    assert free_mib(scheduler) == 0


def test_a_model_that_no_partition_has_room_for_goes_itself() -> None:
    scheduler = up(believed(demanded("a", "b")), cpu0="a")
    step(scheduler, MS, arrival(1, S, "b"))
    unload, failed = step(scheduler, 11 * MS, loaded("b", 31))
    assert unload == UnloadModel("cpu0", "b")
    assert isinstance(failed, FailRequest)
    assert failed.reason == "model b is not loaded: no partition has room for its measured 31 MiB"
    (refused,) = step(scheduler, 12 * MS, arrival(2, S, "b"))
    assert isinstance(refused, RejectRequest)
    assert free_mib(scheduler) == 20


def test_a_pinned_model_stays_whatever_it_takes() -> None:
    scheduler = up(believed(demanded("a", "b", pinned="a")))
    decisions = step(scheduler, 0, PartitionReady("cpu0", dict.fromkeys("ab", ONE), {"a": ModelMemory(40 * MIB)}))
    assert decisions == [UnloadModel("cpu0", "b")]
    assert free_mib(scheduler) == -10


def test_what_is_found_on_one_partition_counts_on_all_of_its_kind() -> None:
    scheduler = up(believed(demanded("a", "b", "c", partitions=("cpu0", "cpu1"))), cpu0="", cpu1="abc")
    step(scheduler, MS, arrival(1, S, "a"))
    decisions = step(scheduler, 2 * MS, PartitionReady("cpu0", {"a": ONE}, {"a": ModelMemory(20 * MIB)}))
    assert decisions == [UnloadModel("cpu1", "b")]
    assert (free_mib(scheduler), free_mib(scheduler, "cpu1")) == (10, 0)


def test_a_partition_of_another_kind_has_room_for_less() -> None:
    scheduler = up(believed(demanded("a", "b", "c")), cpu0="abc")
    tables = dict.fromkeys("abc", ONE)
    resized = PartitionResized("cpu0", "cpu2", 1, 1, tables, memory={"b": ModelMemory(15 * MIB)})
    assert step(scheduler, MS, resized) == [UnloadModel("cpu0", "a")]
    assert (taken_mib(scheduler, "b"), taken_mib(scheduler, "b", "cpu2")) == (10, 15)


def test_a_plan_is_made_again_for_the_measured_memory() -> None:
    models = [msgspec.structs.replace(model(key, 1), memory_bytes=10 * MIB) for key in "ab"]
    spec = spec_of(models, partitions=[PartitionConfig("cpu0", "cpu1", memory_bytes=20 * MIB)])
    scheduler = Scheduler(spec, LivePlanner())

    def planned(now_ns: int, decisions: list[AnyDecision]) -> list[AnyDecision]:
        (order,) = (each for each in decisions if isinstance(each, BuildPlan))
        return step(scheduler, now_ns, PlanBuilt(order.build, build_plan(scheduler.spec, order.observed)))

    ready = PartitionReady("cpu0", dict.fromkeys("ab", ONE), {"b": ModelMemory(15 * MIB)})
    assert planned(MS, step(scheduler, MS, ready)) == [UnloadModel("cpu0", "b")]
