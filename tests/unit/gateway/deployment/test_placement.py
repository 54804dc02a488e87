"""New models have room beside those that are served, or are refused for want of room."""

import pytest

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.residency.placement import ModelNeed
from sluice.gateway.deployment.placement import find_room


def partition(name: str, memory_bytes: int) -> PartitionConfig:
    return PartitionConfig(name, "cpu1", memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("memory_bytes", "held", "residency", "spare", "free"),
    [
        (0, {"a": "m", "b": "m"}, {"a": ("n",), "b": ("n",)}, {}, 0),  # without bounds, everywhere
        (10, {"a": "", "b": "m"}, {"a": ("n",)}, {}, 10),
        (10, {"a": "m", "b": "m"}, {"b": ("n",)}, {"b": ("m",)}, 4),  # a copy goes first
        (10, {"a": "m", "b": "k"}, {}, {}, 4),  # no last copy goes
        (12, {"a": "m", "b": "k"}, {"a": ("n",)}, {}, 6),
    ],
)
def test_a_model_has_the_room_that_is_left_and_that_of_spare_copies(
    memory_bytes: int,
    held: dict[str, str],
    residency: dict[str, tuple[str, ...]],
    spare: dict[str, tuple[str, ...]],
    free: int,
) -> None:
    needs = {key: ModelNeed(6) for key in {"n", *"".join(held.values())}}
    room = find_room(needs, {"n"}, [partition("a", memory_bytes), partition("b", memory_bytes)], held, held)
    assert (room.residency, room.spare, max(room.free, 0)) == (residency, spare, free)


def test_a_copy_on_a_partition_that_is_down_or_still_loads_is_no_copy() -> None:
    needs = {key: ModelNeed(6) for key in "mn"}
    partitions = [partition("a", 10), partition("b", 10)]
    room = find_room(needs, {"n"}, partitions, {"a": "m", "b": "m"}, {"a": "", "b": "m"})
    assert (room.residency, room.free) == ({}, 4)
