import gc
import os

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.models.errors import PartitionError
from sluice.mps.ipc.arena import MIN_BLOCK_BYTES, Arena, Region

KIB = 1024


def test_blocks_are_powers_of_two_of_at_least_4_kib() -> None:
    arena = Arena(64 * KIB)
    assert arena.allocate(1) == 0
    assert arena.allocate(5 * KIB) == 8 * KIB
    assert arena.used_bytes == 12 * KIB


def test_what_does_not_fit_is_refused_and_what_fits_is_still_served() -> None:
    arena = Arena(16 * KIB)
    assert arena.allocate(17 * KIB) is None
    assert arena.allocate(8 * KIB) == 0
    assert arena.allocate(16 * KIB) is None
    assert arena.allocate(8 * KIB) == 8 * KIB
    assert arena.allocate(1) is None


def test_the_last_freed_block_is_used_first() -> None:
    arena = Arena(64 * KIB)
    first, second = arena.allocate(4 * KIB), arena.allocate(4 * KIB)
    assert (first, second) == (0, 4 * KIB)
    arena.free(0)
    arena.free(4 * KIB)
    assert arena.allocate(4 * KIB) == 4 * KIB


def test_a_steady_load_touches_the_same_block_for_ever() -> None:
    arena = Arena(1024 * KIB)
    offsets = set()
    for _ in range(100):
        offset = arena.allocate(10 * KIB)
        assert offset is not None
        offsets.add(offset)
        arena.free(offset)
    assert offsets == {0}


def test_blocks_of_different_sizes_merge_when_the_whole_is_wanted() -> None:
    arena = Arena(64 * KIB)
    offsets = [arena.allocate(size * KIB) for size in (4, 4, 8, 16, 32)]
    for offset in offsets:
        assert offset is not None
        arena.free(offset)
    assert arena.allocate(64 * KIB) == 0


def test_a_size_that_is_no_power_of_two_is_used_whole() -> None:
    arena = Arena(28 * KIB + 100)
    assert [arena.allocate(size * KIB) for size in (16, 8, 4)] == [0, 16 * KIB, 24 * KIB]
    assert arena.allocate(1) is None


def test_freeing_what_is_not_allocated_is_an_error() -> None:
    arena = Arena(64 * KIB)
    offset = arena.allocate(4 * KIB)
    assert offset == 0
    arena.free(0)
    with pytest.raises(PartitionError, match="offset 0 is not allocated"):
        arena.free(0)
    with pytest.raises(PartitionError, match="offset 123 is not allocated"):
        arena.free(123)


class ArenaMachine(RuleBasedStateMachine):
    """An arena beside the plainest model of one: the set of byte ranges handed out."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(40 * MIN_BLOCK_BYTES)
        self.blocks: dict[int, int] = {}

    @rule(nbytes=st.integers(0, 45 * MIN_BLOCK_BYTES))
    def allocate(self, nbytes: int) -> None:
        offset = self.arena.allocate(nbytes)
        if offset is None:
            assert nbytes > 32 * MIN_BLOCK_BYTES or self.blocks
            return
        end = offset + max(nbytes, 1)
        assert offset % MIN_BLOCK_BYTES == 0
        assert end <= 40 * MIN_BLOCK_BYTES
        assert all(end <= other or offset >= other + size for other, size in self.blocks.items())
        self.blocks[offset] = max(nbytes, 1)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.blocks)))
        del self.blocks[offset]
        self.arena.free(offset)

    @invariant()
    def use_covers_what_is_out(self) -> None:
        assert sum(self.blocks.values()) <= self.arena.used_bytes <= 40 * MIN_BLOCK_BYTES

    def teardown(self) -> None:
        for offset in self.blocks:
            self.arena.free(offset)
        assert self.arena.used_bytes == 0
        assert self.arena.allocate(32 * MIN_BLOCK_BYTES) == 0
        assert self.arena.allocate(8 * MIN_BLOCK_BYTES) == 32 * MIN_BLOCK_BYTES


TestArenaAgainstModel = ArenaMachine.TestCase
TestArenaAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_two_mappings_of_a_region_share_memory() -> None:
    region = Region.create("test-shared", 8 * KIB)
    other = Region.attach(os.dup(region.fd), 8 * KIB)
    region.view[4096:4101] = b"hello"
    assert bytes(other.view[4096:4101]) == b"hello"
    region.close()
    other.close()


def test_a_region_cannot_be_resized() -> None:
    region = Region.create("test-sealed", 8 * KIB)
    with pytest.raises(PermissionError):
        os.ftruncate(region.fd, 4 * KIB)
    with pytest.raises(PermissionError):
        os.ftruncate(region.fd, 16 * KIB)
    region.close()


def test_views_outlive_the_close_of_their_region() -> None:
    region = Region.create("test-views", 4 * KIB)
    array = np.frombuffer(region.view, np.uint8)
    array[0] = 7
    region.close()
    region.close()
    assert array[0] == 7
    assert "test-views" in _mapped()
    del array
    gc.collect()
    assert "test-views" not in _mapped()


def test_a_file_that_could_shrink_or_is_too_short_is_not_mapped() -> None:
    unsealed = os.memfd_create("test-unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 4 * KIB)
    with pytest.raises(PartitionError, match="not sealed"):
        Region.attach(unsealed, 4 * KIB)
    short = Region.create("test-short", 4 * KIB)
    with pytest.raises(PartitionError, match="cannot map 8192 bytes"):
        Region.attach(os.dup(short.fd), 8 * KIB)
    short.close()


def _mapped() -> str:
    with open("/proc/self/maps") as maps:
        return maps.read()
