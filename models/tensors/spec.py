"""Tensors in terms of the protocol: datatypes, specs and shapes (no array library here)."""

import enum

import msgspec

VARIABLE = -1
"""A dimension whose size each request chooses."""


class DataType(enum.StrEnum):
    """The datatypes of the V2 protocol that Sluice serves."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BF16 = "BF16"
    BYTES = "BYTES"

    @property
    def itemsize(self) -> int:
        """Bytes an element takes; 0 for BYTES, whose elements have no fixed width."""
        return _ITEMSIZE[self]


_ITEMSIZE: dict[DataType, int] = {
    DataType.BOOL: 1,
    DataType.UINT8: 1,
    DataType.UINT16: 2,
    DataType.UINT32: 4,
    DataType.UINT64: 8,
    DataType.INT8: 1,
    DataType.INT16: 2,
    DataType.INT32: 4,
    DataType.INT64: 8,
    DataType.FP16: 2,
    DataType.FP32: 4,
    DataType.FP64: 8,
    DataType.BF16: 2,
    DataType.BYTES: 0,
}


RAW_ONLY = frozenset({DataType.FP16, DataType.BF16})
"""Datatypes for which neither JSON nor the protocol's messages have numbers: they travel in wire form."""


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output of a model: `shape` is that of one item, without the batch dimension; -1 is variable.

    `labels` name the elements of an output whose index is a class; an output without labels has none. An input that is
    `optional` may be left out of a request.
    """

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    labels: tuple[str, ...] = ()
    optional: bool = False

    @property
    def keyed(self) -> bool:
        """Return whether requests can differ in it so that they cannot share a batch."""
        return self.optional or not self.fixed

    @property
    def fixed(self) -> bool:
        """Return whether every dimension of an item is known."""
        return VARIABLE not in self.shape

    @property
    def item_bytes(self) -> int:
        """Bytes of an item, 0 where they are not fixed: BYTES, or a variable dimension."""
        return element_count(self.shape) * self.datatype.itemsize if self.fixed else 0

    def accepts(self, item_shape: tuple[int, ...]) -> bool:
        """Return whether an item may have that shape."""
        return len(item_shape) == len(self.shape) and all(
            want in (VARIABLE, got) for want, got in zip(self.shape, item_shape, strict=True)
        )


class DeclaredTensors(msgspec.Struct, frozen=True, array_like=True):
    """The tensors that a model says it takes and gives; shapes are those of items, without the batch dimension."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def element_count(shape: tuple[int, ...]) -> int:
    """The number of elements of a tensor of `shape` (1 for a scalar)."""
    count = 1
    for dimension in shape:
        count *= dimension
    return count


def merged_shape(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """The item shape that both allow, None if there is none."""
    if len(one) != len(other):
        return None
    merged = tuple(b if a == VARIABLE else a for a, b in zip(one, other, strict=True))
    return merged if all(b in (VARIABLE, m) for b, m in zip(other, merged, strict=True)) else None


def joined_shape(given: TensorSpec, batched: bool, taken: TensorSpec, by_batch: bool) -> tuple[int, ...] | None:
    """The item shape of a tensor as narrowed by an input that takes it; None if it does not fit.

    If only one of them has a batch dimension, a request is one row, and the tensor without it is that row, or a batch
    of one row: then its first dimension must be 1, or variable.
    """
    shape = merged_shape(given.shape, taken.shape)
    if shape is not None or batched == by_batch:
        return shape
    if batched:
        return merged_shape(given.shape, taken.shape[1:]) if taken.shape[:1] in {(1,), (VARIABLE,)} else None
    rest = merged_shape(given.shape[1:], taken.shape)
    return None if rest is None or given.shape[:1] != (1,) else (1, *rest)


def describe(tensor: TensorSpec) -> str:
    """The datatype and shape of a tensor, in words."""
    return f"{tensor.datatype} {list(tensor.shape)}"
