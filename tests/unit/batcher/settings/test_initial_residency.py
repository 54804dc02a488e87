"""The models that a server begins with where there is no room for all of them."""

import msgspec
import pytest

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.residency_config import Loading
from sluice.batcher.interface.scaling_config import ScaledClass, ScalingConfig
from sluice.batcher.settings.initial_residency import initial_residency
from sluice.batcher.settings.residency import LoadingMode, ResidencySettings
from tests.unit.batcher.settings.initial_models import spec


@pytest.mark.parametrize(
    ("mode", "memory", "loading"),
    [
        (LoadingMode.AUTO, 2, Loading.PLAN),
        (LoadingMode.AUTO, 1, Loading.DEMAND),
        (LoadingMode.AUTO, 0, Loading.PLAN),
        (LoadingMode.PLAN, 1, Loading.PLAN),
        (LoadingMode.DEMAND, 2, Loading.DEMAND),
        (LoadingMode.DEMAND, 0, Loading.PLAN),
    ],
)
def test_models_are_loaded_on_demand_where_there_is_no_room_for_all(
    mode: LoadingMode, memory: int, loading: Loading
) -> None:
    begin = initial_residency(spec(memory, m={}, n={}), ResidencySettings(mode))
    assert begin.spec.residency.loading is loading


def test_pinned_models_come_first_and_then_those_of_a_high_priority() -> None:
    begin = initial_residency(
        spec(2, a={}, b={}, c={"priority": 3}, d={"priority": 1, "pinned": True}), ResidencySettings()
    )
    assert begin.residency == {"only": ("c:1", "d:1")}
    assert begin.unplaced == ("a:1", "b:1")


def test_pinned_models_leave_room_for_the_largest_and_those_that_never_get_any_are_known() -> None:
    given = spec(0, logreg={"memory_bytes": 27, "pinned": True}, rf={"memory_bytes": 77}, mlp={"memory_bytes": 50})
    partitions = (PartitionConfig("a", "cpu1", memory_bytes=90), PartitionConfig("b", "cpu1", memory_bytes=60))
    begin = initial_residency(msgspec.structs.replace(given, partitions=partitions), ResidencySettings())
    assert "logreg:1" in begin.residency["b"]
    assert begin.kept_out == []
    begin = initial_residency(msgspec.structs.replace(given, partitions=partitions[:1]), ResidencySettings())
    assert (begin.waiting, begin.kept_out) == (["rf:1"], ["rf:1"])


def test_models_are_spread_over_the_partitions_that_are_up_at_the_start() -> None:
    given = spec(0, a={"memory_bytes": 60}, b={"memory_bytes": 60})
    slots = tuple(f"edge-{number}" for number in range(3))
    partitions = (
        PartitionConfig("own", "cpu1", memory_bytes=120),
        *(PartitionConfig(slot, "cpu1", memory_bytes=60) for slot in slots),
    )
    scaling = ScalingConfig((ScaledClass("edge", slots, 0, 3, to_zero=True),))
    begin = initial_residency(
        msgspec.structs.replace(given, partitions=partitions, scaling=scaling), ResidencySettings()
    )
    assert begin.residency["own"] == ("a:1", "b:1")
    assert {begin.residency[slot] for slot in slots} == {("a:1",)}
    assert begin.unplaced == ()


def test_a_model_that_is_larger_than_every_partition_does_not_wait() -> None:
    begin = initial_residency(spec(2, a={}, b={}, c={}, big={"memory_bytes": 3}), ResidencySettings())
    assert (begin.unplaced, begin.waiting) == (("big:1", "c:1"), ["c:1"])
