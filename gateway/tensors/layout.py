"""The layout of one input of a batch: copied arrays lie side by side, segments stay where they are."""

from collections.abc import Sequence

import numpy as np

from sluice.gateway.tensors.input_slots import InputSlot
from sluice.models.tensors.arrays import Array
from sluice.mps.ipc.messages import Segment

_ALIGNMENT = 64


class InputLayout:
    """One input of a batch before it has a slot: the arrays to copy, and the room they take."""

    __slots__ = ("_copied", "_nbytes", "_pieces", "aligned_bytes")

    def __init__(self, pieces: Sequence[Array | Segment]) -> None:
        self._pieces = pieces
        self._copied = [piece for piece in pieces if not isinstance(piece, Segment)]
        self._nbytes = sum([piece.nbytes for piece in self._copied])
        self.aligned_bytes = -(-self._nbytes // _ALIGNMENT) * _ALIGNMENT

    def place(self, slot: InputSlot | None, offset: int) -> tuple[Segment, ...]:
        """Copy the arrays to `offset` of the slot's region; returns the segments of the whole input in row order."""
        region = 0
        if slot is not None and self._nbytes:
            region = slot.region
            copy_rows(self._copied, slot.view, offset, self._nbytes)
            if len(self._copied) == len(self._pieces):
                return (Segment(region, offset, self._nbytes),)
        segments: list[Segment] = []
        for piece in self._pieces:
            if isinstance(piece, Segment):
                segment = piece
            else:
                segment = Segment(region, offset, piece.nbytes)
                offset += piece.nbytes
            if not segment.nbytes:
                continue  # rows without elements have no segment
            last = segments[-1] if segments else None
            if last is not None and last.region == segment.region and last.offset + last.nbytes == segment.offset:
                segments[-1] = Segment(last.region, last.offset, last.nbytes + segment.nbytes)
            else:
                segments.append(segment)
        return tuple(segments)


def copy_rows(arrays: Sequence[Array], memory: memoryview, offset: int, nbytes: int) -> None:
    """Write arrays of one dtype and item shape, `nbytes` in total, one after the other: the only copy of a request."""
    first = arrays[0]
    area = np.frombuffer(memory, first.dtype, nbytes // first.itemsize, offset).reshape(-1, *first.shape[1:])
    np.concatenate(arrays, out=area)
