"""The classification extension: an output as its most likely classes, `value:index` or `value:index:label`."""

import msgspec
import numpy as np

from sluice.gateway.protocol.answer import Tensor
from sluice.models.errors import BadTensor, RequestError
from sluice.models.tensors.arrays import Array, WireBytes, encode_bytes
from sluice.models.tensors.spec import DataType, TensorSpec

MAX_ELEMENTS = 1_000_000
"""Largest tensor that can be classified."""

_UNRANKED = frozenset({DataType.BOOL, DataType.FP16, DataType.BF16, DataType.BYTES})


class Classification(msgspec.Struct, frozen=True):
    """The request for the `count` greatest elements of an output, in each row if the pipeline is `batchable`."""

    count: int
    spec: TensorSpec
    batchable: bool

    def __post_init__(self) -> None:
        name, datatype = self.spec.name, self.spec.datatype
        if self.count < 1:
            raise RequestError(f"output '{name}': classification must be at least 1, got {self.count}")
        if datatype in _UNRANKED:
            raise BadTensor(f"class result not available for output '{name}' due to unsupported type '{datatype}'")

    def top_classes(self, tensor: Tensor) -> WireBytes:
        """The classes of an output, greatest first: BYTES of shape [rows, count], or [count] without rows.

        Among equal elements the first one comes first; NaN comes last. Raises BadTensor for more than MAX_ELEMENTS.
        """
        assert not isinstance(tensor, WireBytes), "the datatype has been checked"
        if tensor.size > MAX_ELEMENTS:
            raise BadTensor(
                f"class result not available for output '{self.spec.name}': it has {tensor.size} elements, "
                f"the limit is {MAX_ELEMENTS}"
            )
        rows = tensor.shape[0] if self.batchable else 1
        items = tensor.reshape(rows, -1) if tensor.size else tensor.reshape(rows, 0)
        count = min(self.count, items.shape[1])
        named = [self._name(row, index) for row in items for index in _greatest(row, count)]
        shape = (rows, count) if self.batchable else (count,)
        buffer, offsets = encode_bytes(np.array(named, np.object_), rows)
        return WireBytes(buffer, shape, offsets)

    def _name(self, row: Array, index: int) -> str:
        value = f"{row[index]:f}" if row.dtype.kind == "f" else str(row[index])
        labels = self.spec.labels
        return f"{value}:{index}:{labels[index]}" if index < len(labels) else f"{value}:{index}"


def _greatest(row: Array, count: int) -> list[int]:
    """The positions of the `count` greatest elements; only candidates for them are sorted."""
    if not count:
        return []
    # Sorted in reverse, so that the first of equal elements comes first; NaN counts as the least.
    keys = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
    least = np.partition(keys, row.size - count)[row.size - count]
    candidates = np.flatnonzero(keys >= least)
    order = np.argsort(keys[candidates][::-1], kind="stable")[::-1]
    return [int(candidates[candidates.size - 1 - place]) for place in order[:count]]
