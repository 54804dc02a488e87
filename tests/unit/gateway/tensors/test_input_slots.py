"""A batch that finds no memory for its inputs is refused, and a model leaves room for the batches of others."""

import errno
import os

import pytest

from sluice.gateway.tensors.input_slots import InputSlots
from sluice.models.errors import PartitionError
from tests.support.gateway.assembly_bench import LocalRegions

ARENA = 1 << 16


def test_a_model_whose_batches_fill_all_memory_leaves_room_for_those_of_others() -> None:
    slots = InputSlots(LocalRegions(), ARENA)
    slots.join(2)
    # The arena, as much again for those that come first, and the part of one of two models.
    held = [slots.allocate("greedy", 4096) for _ in range((ARENA + ARENA + ARENA // 2) // 4096)]
    with pytest.raises(PartitionError, match=rf"{ARENA} bytes {ARENA} are in use, and 0 may be added for its model"):
        slots.allocate("greedy", 4096)
    other = slots.allocate("other", ARENA // 2)
    assert other.own
    slots.free(held.pop())
    assert slots.allocate("greedy", 4096).own
    slots.free(other)
    slots.leave(1)
    assert slots.allocate("greedy", ARENA // 2).own


def test_a_region_that_the_system_refuses_is_a_lack_of_memory_and_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    slots = InputSlots(LocalRegions(), ARENA)
    slots.join(1)
    slots.allocate("m", ARENA)
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", refuse)
        with pytest.raises(PartitionError, match=rf"no memory can be shared for the {ARENA} bytes of a batch: "):
            slots.allocate("m", ARENA)
    assert slots.used_bytes == ARENA
    assert slots.allocate("m", 2 * ARENA).own  # the bytes that may be added are all still there
