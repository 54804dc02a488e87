"""Tensors as numpy arrays: V2 datatypes, and BYTES in wire form (u32 little-endian length, then the bytes)."""

import struct
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sluice.models.errors import BadTensor
from sluice.models.tensors.spec import DataType, element_count

Array = npt.NDArray[np.generic]
Offsets = npt.NDArray[np.int64]
Buffer = bytes | bytearray | memoryview

_NUMPY: dict[DataType, np.dtype[np.generic]] = {
    DataType.BOOL: np.dtype(np.bool_),
    DataType.UINT8: np.dtype("<u1"),
    DataType.UINT16: np.dtype("<u2"),
    DataType.UINT32: np.dtype("<u4"),
    DataType.UINT64: np.dtype("<u8"),
    DataType.INT8: np.dtype("<i1"),
    DataType.INT16: np.dtype("<i2"),
    DataType.INT32: np.dtype("<i4"),
    DataType.INT64: np.dtype("<i8"),
    DataType.FP16: np.dtype("<f2"),
    DataType.FP32: np.dtype("<f4"),
    DataType.FP64: np.dtype("<f8"),
    DataType.BF16: np.dtype("<u2"),
    DataType.BYTES: np.dtype(np.object_),
}
_DATATYPE = {dtype: datatype for datatype, dtype in _NUMPY.items() if datatype is not DataType.BF16}
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True, eq=False)
class WireBytes:
    """A BYTES tensor in wire form: row i is `buffer[row_offsets[i]:row_offsets[i + 1]]`.

    The tensor of an unbatchable model is one row.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    row_offsets: Offsets

    @property
    def nbytes(self) -> int:
        """Bytes of the wire form."""
        return int(self.row_offsets[-1] - self.row_offsets[0])


def numpy_dtype(datatype: DataType) -> np.dtype[np.generic]:
    """The numpy dtype of a V2 datatype; BYTES are objects, BF16 its raw bits, since numpy has no such type."""
    return _NUMPY[datatype]


def datatype_of(dtype: np.dtype[np.generic]) -> DataType:
    """The V2 datatype of a numpy dtype; strings and objects are BYTES. Raises BadTensor if V2 has none."""
    if dtype.kind in "SU":
        return DataType.BYTES
    datatype = _DATATYPE.get(dtype)
    if datatype is None:
        raise BadTensor(f"numpy dtype {dtype} has no V2 datatype; expected one of {', '.join(DataType)}")
    return datatype


def wire_row_offsets(buffer: Buffer, elements: int, rows: int, tensor: str = "BYTES tensor") -> Offsets:
    """Return the start of each of `rows` rows in a BYTES tensor of `elements` elements, and the end of the last row.

    Raises BadTensor, its message starting with `tensor`, unless the buffer holds exactly those elements. `elements` is
    not trusted; `rows` takes memory, so the caller has to limit it.
    """
    size = len(buffer)
    if 4 * elements > size:
        raise BadTensor(f"{tensor}: {elements} elements take at least {4 * elements} bytes, but the data has {size}")
    per_row = elements // rows if rows else 0
    offsets = [0] * (rows + 1)
    position = 0
    for row in range(rows):
        for column in range(per_row):
            end = position + 4
            if end <= size:
                end += _LENGTH.unpack_from(buffer, position)[0]
            if end > size:
                element = row * per_row + column
                raise BadTensor(f"{tensor}: element {element} runs to byte {end}, but the data has only {size} bytes")
            position = end
        offsets[row + 1] = position
    if position != size:
        raise BadTensor(f"{tensor}: {elements} elements take {position} bytes, but the data has {size}")
    return np.array(offsets, np.int64)


def decode_bytes(buffer: Buffer, shape: tuple[int, ...], tensor: str = "BYTES tensor") -> npt.NDArray[np.object_]:
    """The elements of a BYTES tensor in wire form as an array of `bytes` objects; raises BadTensor."""
    elements = element_count(shape)
    ends = wire_row_offsets(buffer, elements, elements, tensor).tolist()
    decoded = np.empty(elements, np.object_)
    for element, (begin, end) in enumerate(pairwise(ends)):
        decoded[element] = bytes(buffer[begin + 4 : end])
    return decoded.reshape(shape)


def encode_bytes(array: Array, rows: int | None = None) -> tuple[bytes, Offsets]:
    """An array of `bytes` or `str` elements (as UTF-8) in wire form, and the offsets of its rows.

    `rows` is the size of the first dimension unless given: 1 for the tensor of an unbatchable model.
    """
    if rows is None:
        rows = array.shape[0] if array.ndim else 1
    parts: list[bytes] = []
    ends = np.zeros(array.size + 1, np.int64)
    position = 0
    for index, element in enumerate(array.ravel().tolist(), start=1):
        data = element.encode() if isinstance(element, str) else bytes(element)
        parts += (_LENGTH.pack(len(data)), data)
        position += 4 + len(data)
        ends[index] = position
    per_row = array.size // rows if rows else 0
    return b"".join(parts), ends[np.arange(rows + 1) * per_row]
