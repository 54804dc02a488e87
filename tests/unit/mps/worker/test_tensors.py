"""A worker's view of shared memory: what it reads and what it copies."""

from collections.abc import Iterator

import numpy as np
import pytest

from sluice.models.errors import PartitionError
from sluice.models.tensors.spec import DataType
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import InputTensor, Segment
from sluice.mps.worker.tensors import WorkerTensors

INPUTS = 7
OUTPUTS = 1
MIB = 1 << 20


@pytest.fixture
def shared() -> Iterator[tuple[WorkerTensors, np.ndarray[tuple[int], np.dtype[np.float32]]]]:
    """A worker's tensors and, as floats, the memory of a region that the gateway shares with it."""
    region = Region.create("inputs", MIB)
    tensors = WorkerTensors(OUTPUTS, MIB)
    tensors.map(INPUTS, region)
    floats = np.frombuffer(region.view, np.float32)
    floats[:] = np.arange(floats.size)
    yield tensors, floats
    tensors.unmap(INPUTS)
    tensors.unmap(OUTPUTS)


def floats_at(*spans: tuple[int, int]) -> tuple[Segment, ...]:
    return tuple(Segment(INPUTS, 4 * first, 4 * (last - first)) for first, last in spans)


def test_one_segment_reaches_the_backend_without_a_copy(
    shared: tuple[WorkerTensors, np.ndarray[tuple[int], np.dtype[np.float32]]],
) -> None:
    tensors, memory = shared
    array = tensors.read(InputTensor("x", DataType.FP32, (2, 8), floats_at((16, 32))))
    assert np.shares_memory(array, memory)
    assert array.tolist() == [list(range(16, 24)), list(range(24, 32))]


def test_several_segments_are_gathered_in_order(
    shared: tuple[WorkerTensors, np.ndarray[tuple[int], np.dtype[np.float32]]],
) -> None:
    tensors, memory = shared
    array = tensors.read(InputTensor("x", DataType.FP32, (3, 2), floats_at((10, 12), (4, 6), (20, 22))))
    assert not np.shares_memory(array, memory)
    assert array.tolist() == [[10, 11], [4, 5], [20, 21]]


def test_an_unknown_region_is_named(
    shared: tuple[WorkerTensors, np.ndarray[tuple[int], np.dtype[np.float32]]],
) -> None:
    tensors, _ = shared
    with pytest.raises(PartitionError, match="input x: region 9 is not mapped here"):
        tensors.read(InputTensor("x", DataType.FP32, (1,), (Segment(9, 0, 4),)))
