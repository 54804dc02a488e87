"""Rows of tensors: selecting, locating and merging them."""

from collections.abc import Iterator, Sequence

import numpy as np

from sluice.gateway.protocol.answer import Tensor
from sluice.models.tensors.arrays import Array, WireBytes


def contiguous_runs(row_positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The ascending `positions` as maximal runs `(first, one past the last)`."""
    if isinstance(row_positions, range):
        yield row_positions.start, row_positions.stop
        return
    first = last = row_positions[0]
    for position in row_positions[1:]:
        if position != last + 1:
            yield first, last + 1
            first = position
        last = position
    yield first, last + 1


def row_positions(wanted: tuple[int, ...] | None, available: tuple[int, ...] | None, rows: int) -> Sequence[int]:
    """The positions of the rows `wanted` among those `available`, both ascending; None stands for all `rows` rows."""
    if wanted == available:
        return range(rows if available is None else len(available))
    if available is None:
        assert wanted is not None
        return wanted
    place = {row: position for position, row in enumerate(available)}
    return [place[row] for row in (range(rows) if wanted is None else wanted)]


def row_slice(tensor: Tensor, first: int, end: int) -> Tensor:
    """Rows `first` to `end` of a tensor, as a view."""
    if not isinstance(tensor, WireBytes):
        return tensor[first:end]
    offsets = tensor.row_offsets[first : end + 1]
    return WireBytes(
        memoryview(tensor.buffer)[offsets[0] : offsets[-1]], (end - first, *tensor.shape[1:]), offsets - offsets[0]
    )


def content(tensor: Tensor) -> Array:
    """The tensor's memory as an array that can be copied: BYTES in wire form, a scalar as one element."""
    if isinstance(tensor, WireBytes):
        whole = np.frombuffer(tensor.buffer, np.uint8)
        return whole[int(tensor.row_offsets[0]) : int(tensor.row_offsets[-1])]
    return tensor if tensor.ndim else tensor.reshape(1)


def reshaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same elements in another shape, as a view; raises ValueError if the sizes differ."""
    if isinstance(tensor, WireBytes):
        return WireBytes(tensor.buffer, shape, tensor.row_offsets)
    return tensor.reshape(shape)


def merge_rows(stage_outputs: Sequence[tuple[Tensor, Sequence[int]]], rows: int) -> Tensor:
    """Merge `(tensor, its rows in the result)` into a tensor of `rows` rows in new memory.

    If several tensors hold a row, the first one counts. Raises ValueError if a row is missing or the items' shapes
    differ.
    """
    pieces: list[tuple[Tensor, int] | None] = [None] * rows
    for tensor, held in reversed(stage_outputs):
        for position, row in enumerate(held):
            pieces[row] = (tensor, position)
    chosen = [row_slice(tensor, position, position + 1) for tensor, position in filter(None, pieces)]
    if len(chosen) < rows:
        raise ValueError(f"only {len(chosen)} of {rows} rows were computed")
    shapes = sorted({piece.shape[1:] for piece in chosen})
    if len(shapes) > 1:
        raise ValueError(
            f"rows of the shapes {', '.join(str(list(shape)) for shape in shapes)} cannot be merged into one tensor"
        )
    joined = np.concatenate([content(piece) for piece in chosen])
    if not isinstance(chosen[0], WireBytes):
        return joined
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum([piece.nbytes for piece in chosen], out=offsets[1:])
    return WireBytes(joined.data, (rows, *chosen[0].shape[1:]), offsets)
