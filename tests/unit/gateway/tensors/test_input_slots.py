"""A batch that finds no shared memory fails for lack of memory, and takes none."""

import errno
import os

import pytest

from sluice.gateway.tensors.input_slots import InputSlots
from sluice.models.errors import PartitionError
from tests.support.gateway.assembly_bench import LocalRegions


def test_a_region_that_the_system_refuses_is_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    slots = InputSlots(LocalRegions(), 8192)
    slots.allocate(8192)
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", refuse)
        with pytest.raises(PartitionError, match=r"no memory can be shared for the 8192 bytes of a batch: "):
            slots.allocate(8192)
    assert slots.used_bytes == 8192
    assert slots.allocate(8192).own  # the bytes that may be added are all still there
