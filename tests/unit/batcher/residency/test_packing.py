"""Packing policies place models: at the start, by plans, and when they are loaded on demand."""

import msgspec
import pytest

from sluice.batcher.interface.config import PartitionConfig, SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision, LoadModel, RejectRequest, UnloadModel
from sluice.batcher.interface.events import MemorySampled, PartitionReady
from sluice.batcher.interface.residency_config import Footprint, Loading, ResidencyConfig
from sluice.batcher.residency.placement import ModelNeed, find_room, place_models
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.mps.packing.peak_safe import PeakSafe
from sluice.mps.packing.policies import POLICIES, AnyPolicy
from tests.support.scheduling.builders import MS, ONE, S, arrival, model, spec_of, step

MIB = 1 << 20
NEEDS = {"a": ModelNeed(40 * MIB), "b": ModelNeed(30 * MIB), "c": ModelNeed(20 * MIB)}
PARTITIONS = [PartitionConfig(f"p{number}", "cpu1", memory_bytes=100 * MIB) for number in range(3)]


@pytest.mark.parametrize(
    ("policy", "placed"),
    [
        (None, [("a", "b", "c"), ("a", "b", "c"), ("a", "b", "c")]),
        (POLICIES["exclusive"], [("a",), ("b",), ("c",)]),
        (POLICIES["best_fit"], [("a", "b", "c"), (), ()]),
        (PeakSafe(headroom_mib=20), [("a", "b"), ("c",), ()]),
        (PeakSafe(headroom_mib=10), [("a", "b", "c"), (), ()]),
    ],
)
def test_a_policy_places_each_model_once_and_leaves_the_rest_free(
    policy: AnyPolicy | None, placed: list[tuple[str, ...]]
) -> None:
    plan = place_models(NEEDS, PARTITIONS, policy=policy)
    assert list(plan.residency.values()) == placed
    assert plan.unplaced == ()


def test_a_model_that_the_policy_lets_go_nowhere_is_left_out() -> None:
    assert place_models(NEEDS, PARTITIONS[:2], policy=POLICIES["exclusive"]).unplaced == (
        "a",
    )  # smaller ones come first
    held = {"p0": ["a"], "p1": ["b"]}
    placement = find_room(NEEDS, ["c"], PARTITIONS[:2], held, held, POLICIES["exclusive"])
    assert (placement.residency, placement.unplaced) == ({}, ("c",))


def packed(policy: AnyPolicy | None, *keys: str) -> SchedulerSpec:
    """Models of 20 MiB on two partitions of 100 MiB; a load takes 10 ms."""
    models = [
        msgspec.structs.replace(
            model(key, 1),
            memory_bytes=20 * MIB,
            footprints={"cpu1": Footprint(20 * MIB, load_ns=10 * MS, table=ONE)},
        )
        for key in keys
    ]
    spec = spec_of(models, partitions=PARTITIONS[:2])
    return msgspec.structs.replace(spec, residency=ResidencyConfig(Loading.DEMAND, packing=policy))


def up(policy: AnyPolicy | None) -> Scheduler:
    """The first partition holds nothing, the second one a model."""
    scheduler = Scheduler(packed(policy, "a", "b", "c"))
    step(scheduler, 0, PartitionReady("p0", {}))
    step(scheduler, 0, PartitionReady("p1", {"a": ONE}))
    return scheduler


def asked(scheduler: Scheduler, now_ns: int, key: str) -> list[AnyDecision]:
    return step(scheduler, now_ns, arrival(now_ns, now_ns + S, key))


def test_on_demand_a_model_goes_to_the_partition_that_fits_best() -> None:
    assert asked(up(None), MS, "b") == [LoadModel("p0", "b")]
    assert asked(up(POLICIES["best_fit"]), MS, "b") == [LoadModel("p1", "b")]


def test_memory_that_is_in_use_without_a_model_keeps_models_away() -> None:
    scheduler = up(PeakSafe(headroom_mib=10))
    step(scheduler, MS, MemorySampled({"p1": 75 * MIB}))
    # Of 75 MiB in use a takes 20, and with 20 more for b less than 10 of 100 would be left.
    assert asked(scheduler, 2 * MS, "b") == [LoadModel("p0", "b")]
    scheduler = up(PeakSafe(headroom_mib=10))
    step(scheduler, MS, MemorySampled({"p1": 70 * MIB}))
    assert asked(scheduler, 2 * MS, "b") == [LoadModel("p1", "b")]


def test_what_the_policy_refuses_everywhere_waits_or_is_refused_with_its_reason() -> None:
    scheduler = up(PeakSafe(headroom_mib=10))
    step(scheduler, MS, MemorySampled({"p0": 75 * MIB, "p1": 75 * MIB}))
    (refused,) = step(scheduler, 2 * MS, arrival(1, 12 * MS, "b"))
    assert isinstance(refused, RejectRequest)
    step(scheduler, 3 * MS, MemorySampled({"p0": 0, "p1": 75 * MIB}))
    assert asked(scheduler, 4 * MS, "b") == [LoadModel("p0", "b")]


def test_loads_go_one_at_a_time_where_the_policy_says_so() -> None:
    scheduler = up(PeakSafe(headroom_mib=10))
    assert asked(scheduler, MS, "b") == [LoadModel("p1", "b")]
    assert asked(scheduler, 2 * MS, "c") == [LoadModel("p0", "c")]


def test_as_many_models_are_evicted_as_the_policy_asks_for() -> None:
    scheduler = Scheduler(packed(PeakSafe(headroom_mib=30), "a", "b", "c", "d"))
    step(scheduler, 0, PartitionReady("p0", dict.fromkeys("abc", ONE)))
    # 40 MiB are free, of which 30 have to stay.
    assert asked(scheduler, MS, "d") == [UnloadModel("p0", "a"), LoadModel("p0", "d")]


def test_a_model_that_the_policy_never_lets_in_is_refused_with_its_reason() -> None:
    scheduler = Scheduler(packed(PeakSafe(headroom_mib=81), "a", "b"))
    step(scheduler, 0, PartitionReady("p0", {"a": ONE}))
    (refused,) = asked(scheduler, MS, "b")
    assert isinstance(refused, RejectRequest)
    assert refused.reason == (
        "model b is not loaded: the packing policy refuses every partition: "
        "all would come to 40 MiB, of 100 less 81 of headroom"
    )
