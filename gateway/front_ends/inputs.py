"""The inputs of requests in a front end: written once, into memory that workers read."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sluice.gateway.front_ends.templates import aligned
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.protocol.pending_answer import RelayNeeded
from sluice.gateway.tensors.body_memory import LARGE_BYTES, ArenaPart, BodyMemory
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.models.errors import RejectedError
from sluice.models.tensors.arrays import WireBytes
from sluice.mps.ipc.arena import MIN_BLOCK_BYTES, Arena, Region
from sluice.mps.ipc.messages import OutputTensor

SMALL_BLOCKS = 1024
"""Free blocks of the smallest size that are kept for the next requests, most of which need no more."""
ARENA = 0
"""The number of the arena's region; others are numbered from 1 on."""
OWN_REGIONS = 16
"""Regions beside the arena. Each takes a descriptor here, in the gateway's process and in every worker."""
_COPIED_BYTES = 4096
"""Tensors of at most this size are copied twice, which takes less time than to view them as bytes."""


class Written(NamedTuple):
    """Inputs that lie one after the other, from `offset` of a region on; `row_offsets` are those of BYTES.

    If they lie otherwise, `starts` says how far from there each of them does.
    """

    region: int
    offset: int
    row_offsets: tuple[tuple[int, ...], ...] = ()
    starts: tuple[int, ...] = ()


class _Block(NamedTuple):
    """The memory of a request's inputs: in the arena, or a region of its own."""

    region: int
    offset: int
    nbytes: int


class InputMemory:
    """An arena of `arena_bytes`. Inputs that do not fit get regions of their own, of `spare_bytes` together.

    `share` passes a new region on under its number, and closes it: only its memory is needed here. `forget` is called
    for one that is no longer used.
    """

    def __init__(
        self,
        arena_bytes: int,
        spare_bytes: int,
        share: Callable[[int, Region], None],
        forget: Callable[[int], None],
    ) -> None:
        self._arena = Arena(arena_bytes)
        region = Region.create("sluice-front-end", arena_bytes)
        self._view = region.view
        self._spare_bytes = self._most_spare_bytes = spare_bytes
        self._own_regions = 0
        self._share = share
        self._forget = forget
        self._blocks: dict[int, _Block | BatchOutputs] = {}
        self.bodies = BodyMemory(arena_bytes, self._take_part)
        self._parts = 0
        """Bytes of the arena that are the memory for bodies."""
        self._small: list[_Block] = []
        self._numbers = itertools.count(ARENA + 1)
        share(ARENA, region)

    @property
    def used_bytes(self) -> int:
        """Bytes in use, in the arena and in other regions."""
        kept = len(self._small) * MIN_BLOCK_BYTES
        written = self._arena.used_bytes - self._parts - kept + self._most_spare_bytes - self._spare_bytes
        return written + self.bodies.used_bytes

    def write(self, request: int, inputs: Mapping[str, Tensor]) -> Written:
        """Copy the inputs of a request, unless all lie in the memory for bodies; they stay until `free`.

        Raises RejectedError without memory, and RelayNeeded if it would lie in too many regions.
        """
        start = end = 0
        for tensor in inputs.values():
            end = start + tensor.nbytes
            start = aligned(end)
        shared = self.bodies.locate(inputs) if end >= LARGE_BYTES else None
        if shared is not None and len(shared.located) == len(inputs):
            self._blocks[request] = shared
            return _written(list(shared.located.values()))
        block, view = self._allocate(end)
        self._blocks[request] = block
        begin = block.offset
        row_offsets: tuple[tuple[int, ...], ...] = ()
        for tensor in inputs.values():
            end = begin + tensor.nbytes
            if isinstance(tensor, WireBytes):
                first = int(tensor.row_offsets[0])
                view[begin:end] = memoryview(tensor.buffer)[first : first + end - begin]
                row_offsets += (tuple((tensor.row_offsets - first).tolist()),)
            elif end - begin <= _COPIED_BYTES:
                view[begin:end] = tensor.tobytes()
            else:
                view[begin:end] = np.ascontiguousarray(tensor).data.cast("B")
            begin = aligned(end)
        return Written(block.region, block.offset, row_offsets)

    def free(self, request: int) -> None:
        """Free the inputs of a request."""
        block = self._blocks.pop(request)
        if isinstance(block, BatchOutputs):
            return
        if block.region != ARENA:
            self._own_regions -= 1
            self._spare_bytes += block.nbytes
            self._forget(block.region)
        elif block.nbytes == MIN_BLOCK_BYTES and len(self._small) < SMALL_BLOCKS:
            self._small.append(block)
        else:
            self._arena.free(block.offset)

    def _take_part(self, nbytes: int) -> ArenaPart | None:
        offset = self._arena.allocate(nbytes)
        if offset is None:
            return None
        self._parts += nbytes
        return ArenaPart(ARENA, offset, self._view[offset : offset + nbytes])

    def _allocate(self, nbytes: int) -> tuple[_Block, memoryview]:
        if nbytes <= MIN_BLOCK_BYTES:
            if self._small:
                return self._small.pop(), self._view
            nbytes = MIN_BLOCK_BYTES
        offset = self._arena.allocate(nbytes)
        if offset is not None:
            return _Block(ARENA, offset, nbytes), self._view
        if nbytes > self._spare_bytes:
            raise RejectedError("the server has no memory left for the tensors of the request")
        if self._own_regions >= OWN_REGIONS:
            raise RelayNeeded
        try:
            region = Region.create("sluice-front-end-large", nbytes)
        except OSError as error:
            raise RejectedError(
                f"the server has no memory left for the tensors of the request: {error.strerror}"
            ) from error
        self._own_regions += 1
        self._spare_bytes -= nbytes
        number, view = next(self._numbers), region.view
        self._share(number, region)
        return _Block(number, 0, nbytes), view


def _written(places: Sequence[OutputTensor]) -> Written:
    """Inputs that lie in the memory for bodies: that of several in one body begins where that of the last one ends."""
    first = places[0]
    starts: list[int] = []
    usual: list[int] = []
    start = 0
    for place in places:
        starts.append(place.offset - first.offset)
        usual.append(start)
        start = aligned(start + place.nbytes)
    return Written(first.region, first.offset, (), () if starts == usual else tuple(starts))
