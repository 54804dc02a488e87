"""The memory of a front end's inputs."""

import numpy as np
import pytest

from sluice.gateway.front_ends.inputs import ARENA, OWN_REGIONS, InputMemory
from sluice.gateway.front_ends.messages import ALIGNMENT
from sluice.gateway.protocol.pending_answer import RelayNeeded
from sluice.gateway.tensors.body_memory import LARGE_BYTES
from sluice.models.errors import RejectedError
from sluice.models.tensors.arrays import WireBytes
from sluice.mps.ipc.arena import MIN_BLOCK_BYTES, Region

ARENA_BYTES = 1 << 16


class Memory:
    """An input memory, and the regions that it has shared."""

    def __init__(self, spare_bytes: int = 1 << 20, arena_bytes: int = ARENA_BYTES) -> None:
        self.regions: dict[int, Region] = {}
        self.memory = InputMemory(arena_bytes, spare_bytes, self.regions.__setitem__, self.regions.__delitem__)

    def read(self, region: int, offset: int, nbytes: int) -> bytes:
        return bytes(self.regions[region].view[offset : offset + nbytes])


def test_inputs_lie_side_by_side_and_are_found_where_they_are_said_to_be() -> None:
    bench = Memory()
    floats = np.arange(6, dtype=np.float32).reshape(2, 3)
    bits = np.array([[True], [False]])
    text = WireBytes(b"....\1\0\0\0a\2\0\0\0bc", (2, 1), np.array([4, 9, 15]))
    large = np.arange(2000, dtype=np.float32).reshape(2, -1)[:, ::2]
    written = bench.memory.write(1, {"f": floats, "b": bits, "t": text, "l": large})
    assert written.offset % ALIGNMENT == 0
    contents = (floats.tobytes(), bits.tobytes(), b"\1\0\0\0a\2\0\0\0bc", large.tobytes())
    for number, content in enumerate(contents):
        where = written.offset + number * ALIGNMENT
        assert bench.read(written.region, where, len(content)) == content
    assert written.row_offsets == ((0, 5, 11),)


def test_freed_memory_is_used_again() -> None:
    bench = Memory()
    small, large = np.zeros(4, np.float32), np.zeros(ARENA_BYTES // 8, np.float32)
    for request in range(100):
        for array in (small, large):
            bench.memory.write(2 * request, {"x": array})
            bench.memory.write(2 * request + 1, {"x": small})
            bench.memory.free(2 * request)
            bench.memory.free(2 * request + 1)
    assert list(bench.regions) == [ARENA]
    assert bench.memory.used_bytes == 0
    bench.memory.write(0, {"x": small})
    assert bench.memory.used_bytes == MIN_BLOCK_BYTES


def test_what_does_not_fit_has_a_region_of_its_own_until_it_is_freed() -> None:
    bench = Memory(spare_bytes=3 * ARENA_BYTES)
    large = np.arange(ARENA_BYTES // 2, dtype=np.float32)
    placed = bench.memory.write(1, {"x": large})
    assert bench.read(placed.region, placed.offset, large.nbytes) == large.tobytes()
    assert set(bench.regions) == {ARENA, placed.region}
    assert bench.memory.used_bytes == large.nbytes
    with pytest.raises(RejectedError, match="no memory left"):
        bench.memory.write(2, {"x": large})
    bench.memory.free(1)
    assert set(bench.regions) == {ARENA}
    bench.memory.write(3, {"x": large})


def test_small_inputs_are_where_they_are_said_to_be_after_the_arena_was_full() -> None:
    bench = Memory()
    zeros = np.zeros(ARENA_BYTES // 4, np.float32)
    full = bench.memory.write(1, {"x": zeros})
    beside = bench.memory.write(2, {"x": np.full(4, 2, np.float32)})
    assert full.region == ARENA != beside.region
    bench.memory.free(2)
    assert set(bench.regions) == {ARENA}
    third = np.full(4, 3, np.float32)
    placed = bench.memory.write(3, {"x": third})
    assert bench.read(placed.region, placed.offset, third.nbytes) == third.tobytes()
    assert bench.read(ARENA, full.offset, zeros.nbytes) == zeros.tobytes()


def test_regions_beside_the_arena_are_not_too_many() -> None:
    bench = Memory()
    bench.memory.write(0, {"x": np.zeros(ARENA_BYTES // 4, np.float32)})
    small = {"x": np.zeros(4, np.float32)}
    for request in range(1, OWN_REGIONS + 1):
        bench.memory.write(request, small)
    with pytest.raises(RelayNeeded):
        bench.memory.write(OWN_REGIONS + 1, small)
    bench.memory.free(1)
    bench.memory.write(OWN_REGIONS + 2, small)


def test_inputs_that_were_received_into_the_memory_for_bodies_are_not_copied() -> None:
    bench = Memory(arena_bytes=4 << 20)
    body = bench.memory.bodies.allocate(LARGE_BYTES)
    assert body is not None
    received = np.frombuffer(body, np.float32)
    received[:] = np.arange(received.size)
    taken = bench.memory.used_bytes
    assert taken == LARGE_BYTES
    written = bench.memory.write(1, {"x": received.reshape(2, -1)})
    assert bench.read(written.region, written.offset, LARGE_BYTES) == received.tobytes()
    assert (written.row_offsets, written.starts) == ((), ())
    assert bench.memory.used_bytes == taken
    del body, received
    assert bench.memory.used_bytes == taken, "the request still needs it"
    bench.memory.free(1)
    assert bench.memory.used_bytes == 0


@pytest.mark.parametrize("in_order", [True, False])
def test_several_inputs_of_one_body_are_found_where_they_lie(in_order: bool) -> None:
    bench = Memory(arena_bytes=4 << 20)
    body = bench.memory.bodies.allocate(LARGE_BYTES + 12)
    assert body is not None
    data = np.frombuffer(body, np.uint8)
    data[:] = np.arange(data.size) % 251
    parts: dict[str, np.ndarray] = {"b": data[:12].reshape(1, -1), "f": data[12:].view(np.float32).reshape(1, -1)}
    inputs = parts if in_order else {name: parts[name] for name in ("f", "b")}
    written = bench.memory.write(1, inputs)
    assert bench.memory.used_bytes == -(-(LARGE_BYTES + 12) // 16) * 16
    for start, tensor in zip(written.starts, inputs.values(), strict=True):
        assert bench.read(written.region, written.offset + start, tensor.nbytes) == tensor.tobytes()


@pytest.mark.parametrize("other", [1, 5], ids=["elsewhere", "unaligned"])
def test_inputs_of_which_one_cannot_be_read_where_it_lies_are_copied(other: int) -> None:
    bench = Memory(arena_bytes=4 << 20)
    body = bench.memory.bodies.allocate(LARGE_BYTES + 8)
    assert body is not None
    body[:] = bytes(LARGE_BYTES + 8)
    inputs = {"f": np.ndarray((1, LARGE_BYTES // 4), np.float32, body)}
    inputs["o"] = np.ones((1, 1), np.float32) if other == 1 else np.ndarray((1, 1), np.float32, body, 5)
    inputs["f"][:] = 7
    written = bench.memory.write(1, inputs)
    assert written.starts == ()
    assert written.offset % ALIGNMENT == 0
    for start, tensor in zip((0, LARGE_BYTES), inputs.values(), strict=True):
        assert bench.read(written.region, written.offset + start, tensor.nbytes) == tensor.tobytes()


def test_tensors_without_elements_take_no_memory() -> None:
    bench = Memory()
    placed = bench.memory.write(1, {"x": np.zeros((1, 0), np.float32)})
    assert placed.region == ARENA
    bench.memory.free(1)
