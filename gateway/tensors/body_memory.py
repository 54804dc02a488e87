"""Shared memory for the tensors of large requests: they are received into it, and workers read them there."""

import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.tensors.request_tensors import BatchOutputs, no_release
from sluice.models.tensors.arrays import Array, datatype_of
from sluice.mps.ipc.messages import OutputTensor

LARGE_BYTES = 64 << 10
"""Smaller requests are not worth a place of their own: their rows are copied side by side."""
PART = 2
"""The part of an arena for inputs that bodies may take: the rest stays for the inputs of batches."""
MOST_PART = 4
"""No body may take more than this part of the memory for all."""
ALIGNMENT = 16
"""More than the largest element of a tensor."""


class ArenaPart:
    """A part of an arena: `memory` at `offset` of the region of this number."""

    __slots__ = ("memory", "offset", "region")

    def __init__(self, region: int, offset: int, memory: memoryview) -> None:
        self.region = region
        self.offset = offset
        self.memory = memory


class BodyMemory:
    """A part of an arena of `nbytes`, which `take` gives when the first body comes, or later if it has no room.

    A block is free again when the last array and the last view of it are gone, so that no reader finds it overwritten.
    Blocks lie in the order in which they were taken where there is room: the tensors of a batch are then mostly one
    piece, which a worker reads without copying. Memory at the bottom is used again as soon as it is at least as large
    as what is in use above it, so that little of it is touched.
    """

    def __init__(self, nbytes: int, take: Callable[[int], ArenaPart | None]) -> None:
        self._take = take
        self._part: ArenaPart | None = None
        self._address = 0
        self._limit = 1 << (nbytes // PART).bit_length() - 1
        self._cursor = 0
        self._begins: list[int] = []
        """The blocks in use, ascending."""
        self._ends: list[int] = []
        self._watched: dict[int, weakref.ref[Array]] = {}
        self._freed: deque[int] = deque()
        """Blocks that are free again: noted by any thread, at any time."""

    @property
    def used_bytes(self) -> int:
        """Bytes in use."""
        self._collect()
        return sum(self._ends) - sum(self._begins)

    def allocate(self, nbytes: int) -> memoryview | None:
        """Memory of that size; None if there is none. O(blocks in use)."""
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if not 0 < size <= self._limit // MOST_PART:
            return None
        if self._part is None:
            self._part = self._take(self._limit)
            if self._part is None:
                return None
            self._address = _address(np.frombuffer(self._part.memory, np.uint8))
        self._collect()
        begin = self._find(size)
        if begin < 0:
            return None
        position = bisect_left(self._begins, begin)
        self._begins.insert(position, begin)
        self._ends.insert(position, begin + size)
        self._cursor = begin + size
        block = np.frombuffer(self._part.memory, np.uint8, nbytes, begin)
        freed = self._freed
        self._watched[begin] = weakref.ref(block, lambda _: freed.append(begin))
        return block.data

    def locate(self, inputs: Mapping[str, Tensor]) -> BatchOutputs | None:
        """The inputs of a request with the places of those that lie in this memory; None if none does."""
        part = self._part
        if part is None:
            return None
        located: dict[str, OutputTensor] = {}
        for name, tensor in inputs.items():
            if not isinstance(tensor, np.ndarray):
                continue
            offset = _address(tensor) - self._address
            if 0 <= offset < self._limit and tensor.flags.aligned:
                located[name] = OutputTensor(
                    name, datatype_of(tensor.dtype), tensor.shape, part.region, part.offset + offset, tensor.nbytes
                )
        return BatchOutputs(inputs, located, no_release) if located else None

    def _collect(self) -> None:
        """Free the blocks that nothing refers to any more."""
        freed = self._freed
        while freed:
            begin = freed.popleft()
            del self._watched[begin]
            position = bisect_left(self._begins, begin)
            del self._begins[position], self._ends[position]

    def _find(self, size: int) -> int:
        """The begin of a free block: at the bottom, behind the block taken last, or elsewhere; -1 if there is none."""
        begins, ends = self._begins, self._ends
        bottom = begins[0] if begins else self._limit
        if bottom >= size and 2 * bottom >= self._cursor:
            return 0
        after = bisect_left(begins, self._cursor)
        for position in (*range(after, len(begins) + 1), *range(after)):
            begin = ends[position - 1] if position else 0
            if (begins[position] if position < len(begins) else self._limit) - begin >= size:
                return begin
        return -1


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
