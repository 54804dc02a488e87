"""Memory for large bodies: where blocks lie, and when they are free again."""

import threading

import numpy as np
import pytest

from sluice.batcher.interface.decisions import DispatchBatch, Member, ReleaseReason
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.tensors.body_memory import LARGE_BYTES, MOST_PART, PART, BodyMemory
from sluice.gateway.tensors.input_slots import InputSlots
from sluice.models.tensors.arrays import Array, WireBytes
from sluice.mps.ipc.messages import Segment
from tests.support.gateway.assembly_bench import Bench as AssemblyBench
from tests.support.gateway.assembly_bench import LocalRegions, rows, take

ARENA = 1 << 20
BODIES = ARENA // PART
BODY = BODIES // MOST_PART


class Bench:
    """Memory for bodies in an arena."""

    def __init__(self) -> None:
        self.regions = LocalRegions()
        self.slots = InputSlots(self.regions, ARENA)
        self.slots.join(1)
        self.memory = BodyMemory(ARENA, self.slots.take_part)

    def take(self, nbytes: int = BODY) -> memoryview:
        memory = self.memory.allocate(nbytes)
        assert memory is not None
        assert len(memory) == nbytes
        return memory

    def place(self, memory: memoryview) -> int:
        """The begin of a block in its region."""
        located = self.memory.locate({"x": np.frombuffer(memory, np.uint8)})
        assert located is not None
        return located.located["x"].offset


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_bodies_lie_side_by_side_so_that_those_of_a_batch_are_one_piece(bench: Bench) -> None:
    held = [bench.take(nbytes) for nbytes in (1600, 1600, 1000, 1600)]
    places = [bench.place(each) for each in held]
    assert [place - places[0] for place in places] == [0, 1600, 3200, 4208]
    assert bench.memory.used_bytes == 5808


def test_a_block_is_free_once_nothing_refers_to_it(bench: Bench) -> None:
    held = [bench.take() for _ in range(MOST_PART)]
    assert bench.memory.allocate(1) is None
    tensor = np.frombuffer(held[1], np.float32)[10:20]
    place = bench.place(held[1])
    held[1] = memoryview(b"")
    assert bench.memory.allocate(BODY) is None
    tensor = np.zeros(1, np.float32)
    assert bench.place(bench.take()) == place
    del tensor


def test_a_block_may_be_given_up_by_any_thread(bench: Bench) -> None:
    held = [bench.take() for _ in range(MOST_PART)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert bench.memory.used_bytes == 0
    assert [len(bench.take()) for _ in range(MOST_PART)] == MOST_PART * [BODY]


def test_memory_at_the_bottom_is_used_again_while_more_is_free_above(bench: Bench) -> None:
    begin = bench.place(bench.take(BODY // 8))
    held = [bench.take(BODY // 8)]
    for _ in range(100):
        held = [held[-1], bench.take(BODY // 8)]
        assert bench.place(held[-1]) - begin < BODY
    del held


def test_blocks_are_found_between_others_when_all_else_is_full(bench: Bench) -> None:
    held = [bench.take(BODY // 2) for _ in range(2 * MOST_PART)]
    places = [bench.place(each) for each in held]
    held[3] = held[5] = memoryview(b"")
    again = [bench.take(BODY // 2), bench.take(BODY // 2)]
    assert sorted(map(bench.place, again)) == [places[3], places[5]]
    assert bench.memory.allocate(16) is None


def test_no_body_takes_much_of_the_memory(bench: Bench) -> None:
    assert bench.memory.allocate(BODY + 1) is None
    assert bench.memory.allocate(0) is None
    assert bench.slots.used_bytes == 0
    assert bench.slots.allocate("m", ARENA).own is False  # nothing was taken for bodies


def test_bodies_have_no_memory_while_batches_fill_the_arena(bench: Bench) -> None:
    slot = bench.slots.allocate("m", ARENA)
    assert bench.memory.allocate(BODY) is None
    bench.slots.free(slot)
    bench.take()
    assert bench.slots.used_bytes == 0  # what bodies take is counted by their own memory
    assert bench.slots.allocate("m", ARENA // 2).own is False
    assert bench.slots.allocate("m", ARENA // 2).own is True


def test_only_aligned_numbers_in_the_memory_are_read_there(bench: Bench) -> None:
    memory = bench.take(64)
    inputs: dict[str, Tensor] = {
        "floats": np.ndarray((2, 3), np.float32, memory, 8),
        "unaligned": np.ndarray((2, 2), np.float32, memory, 34),
        "bytes": np.ndarray((2, 1), np.uint8, memory, 33),
        "elsewhere": np.zeros((2, 3), np.float32),
        "text": WireBytes(memory[50:60], (2, 1), np.array([0, 5, 10])),
    }
    shared = bench.memory.locate(inputs)
    assert shared is not None
    assert shared.tensors is inputs
    begin = bench.place(memory)
    assert {name: (each.offset - begin, each.nbytes, each.shape) for name, each in shared.located.items()} == {
        "floats": (8, 24, (2, 3)),
        "bytes": (33, 2, (2, 1)),
    }
    assert bench.memory.locate({"elsewhere": inputs["elsewhere"]}) is None
    memory[8:12] = np.float32(1.5).tobytes()
    region = bench.regions.regions[shared.located["floats"].region]
    assert bytes(region.view[begin + 8 : begin + 12]) == np.float32(1.5).tobytes()


def test_nothing_is_located_before_the_first_body(bench: Bench) -> None:
    assert bench.memory.locate({"x": np.zeros(4, np.float32)}) is None
    assert bench.memory.used_bytes == 0


class LargeRequests:
    """An assembly that gets requests whose rows are in memory for bodies."""

    def __init__(self) -> None:
        self.bench = AssemblyBench(ARENA)
        self.memory = BodyMemory(ARENA, self.bench.slots.take_part)

    def admit(self, request: int, pipeline: str, *values: float) -> Segment:
        """Admit a request of one row for each value; returns the place of its rows."""
        content = rows(*values).tobytes()
        memory = self.memory.allocate(len(content))
        assert memory is not None
        memory[:] = content
        inputs = {"x": np.ndarray((len(values), 2), np.float32, memory)}
        shared = self.memory.locate(inputs)
        assert shared is not None
        self.bench.assembly.admit(request, pipeline, inputs, len(values), len(content), shared)
        place = shared.located["x"]
        return Segment(place.region, place.offset, place.nbytes)


def test_the_rows_of_bodies_side_by_side_reach_the_worker_as_one_piece_that_nothing_copied() -> None:
    large = LargeRequests()
    first, second = large.admit(1, "small:1", 1, 2), large.admit(2, "small:1", 3, 4)
    (tensor,) = large.bench.begin(10, "small:1", Member(1, 0, 2), Member(2, 0, 2))
    assert tensor.segments == (Segment(first.region, first.offset, 32),)
    assert second.offset == first.offset + 16
    assert large.bench.slots.used_bytes == 0
    np.testing.assert_array_equal(large.bench.regions.array(tensor), rows(1, 2, 3, 4))


def test_a_batch_has_rows_of_bodies_in_any_order_and_others_beside_them() -> None:
    large = LargeRequests()
    large.admit(1, "small:1", 1, 2)
    large.bench.admit(2, "small:1", x=rows(9))
    large.admit(3, "small:1", 3, 4)
    (tensor,) = large.bench.begin(10, "small:1", Member(3, 0, 2), Member(2, 0, 1), Member(1, 0, 2))
    assert [segment.nbytes for segment in tensor.segments] == [16, 8, 16]
    np.testing.assert_array_equal(large.bench.regions.array(tensor), rows(3, 4, 9, 1, 2))


def test_escalated_rows_of_a_body_are_read_where_they_are() -> None:
    large = LargeRequests()
    whole = large.admit(1, "cascade:1", 1, 2, 3, 4)
    large.bench.begin(10, "small:1", Member(1, 0, 4))
    large.bench.complete(10, "probs", rows(10, 20, 30, 40))
    (tensor,) = large.bench.begin(11, "large:1", Member(1, 1, 3, (0, 2, 3)))
    assert tensor.segments == (
        Segment(whole.region, whole.offset, 8),
        Segment(whole.region, whole.offset + 16, 16),
    )


def test_a_running_batch_keeps_the_bodies_of_requests_that_are_cancelled() -> None:
    large = LargeRequests()
    large.admit(1, "small:1", 1, 2)
    (tensor,) = large.bench.begin(10, "small:1", Member(1, 0, 2))
    large.bench.assembly.discard(1)
    assert large.memory.used_bytes == 16
    np.testing.assert_array_equal(large.bench.regions.array(tensor), rows(1, 2))
    large.bench.assembly.abandon(10)
    assert large.memory.used_bytes == 0


def test_a_batch_that_is_tried_again_reads_the_bodies_again() -> None:
    large = LargeRequests()
    large.admit(1, "small:1", 1, 2)
    large.bench.begin(10, "small:1", Member(1, 0, 2))
    large.bench.assembly.abandon(10)
    (tensor,) = large.bench.begin(11, "small:1", Member(1, 0, 2))
    np.testing.assert_array_equal(large.bench.regions.array(tensor), rows(1, 2))
    large.bench.complete(11, "probs", rows(5, 6))
    _, release = large.bench.assembly.take_outputs(1)
    release()
    assert large.memory.used_bytes == 0


def admit_large(large: LargeRequests, order: str) -> list[Segment]:
    """Admit requests of a row in the order of these digits, whose rows lie in the order of the digits' values."""
    width = LARGE_BYTES // 4
    memories = [large.memory.allocate(4 * width) for _ in order]
    places = []
    for digit in map(int, order):
        memory = memories[digit]
        assert memory is not None
        x: Array = np.ndarray((1, width), np.float32, memory)
        x[:] = digit
        shared = large.memory.locate({"x": x})
        assert shared is not None
        large.bench.assembly.admit(digit, "small:1", {"x": x}, 1, x.nbytes, shared)
        place = shared.located["x"]
        places.append(Segment(place.region, place.offset, place.nbytes))
    return places


def test_members_change_places_for_large_inputs_to_be_one_piece_and_get_their_own_outputs() -> None:
    large = LargeRequests()
    places = admit_large(large, "2013")
    members = [Member(request, 0, 1) for request in (2, 0, 1, 3)]
    batch = DispatchBatch(10, "cpu0", "small:1", 4, tuple(members), ReleaseReason.IDLE)
    (tensor,) = large.bench.assembly.begin(batch, keeps_order=False)
    assert tensor.segments == (Segment(places[0].region, places[1].offset, 4 * LARGE_BYTES),)
    large.bench.complete(10, "probs", rows(0, 1, 2, 3))
    for request in range(4):
        np.testing.assert_array_equal(take(large.bench, request)[0], rows(request))


@pytest.mark.parametrize(("batch", "keeps_order"), [((2, 0, 1, 3), True), ((2, 0, 3), False)])
def test_members_keep_their_places_if_they_must_or_others_lie_between_them(
    batch: tuple[int, ...], keeps_order: bool
) -> None:
    large = LargeRequests()
    places = dict(zip((2, 0, 1, 3), admit_large(large, "2013"), strict=True))
    members = tuple(Member(request, 0, 1) for request in batch)
    order = DispatchBatch(10, "cpu0", "small:1", len(batch), members, ReleaseReason.IDLE)
    (tensor,) = large.bench.assembly.begin(order, keeps_order=keeps_order)
    read = [segment.offset for segment in tensor.segments]
    assert read[:2] == [places[2].offset, places[0].offset]
    large.bench.complete(10, "probs", rows(*batch))
    for request in batch:
        np.testing.assert_array_equal(take(large.bench, request)[0], rows(request))
