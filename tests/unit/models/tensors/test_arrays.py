import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.models.errors import BadTensor
from sluice.models.tensors.arrays import (
    WireBytes,
    datatype_of,
    decode_bytes,
    encode_bytes,
    numpy_dtype,
    wire_row_offsets,
)
from sluice.models.tensors.spec import DataType


@pytest.mark.parametrize(
    ("datatype", "dtype"),
    [
        (DataType.BOOL, np.bool_),
        (DataType.UINT8, np.uint8),
        (DataType.UINT16, np.uint16),
        (DataType.UINT32, np.uint32),
        (DataType.UINT64, np.uint64),
        (DataType.INT8, np.int8),
        (DataType.INT16, np.int16),
        (DataType.INT32, np.int32),
        (DataType.INT64, np.int64),
        (DataType.FP16, np.float16),
        (DataType.FP32, np.float32),
        (DataType.FP64, np.float64),
    ],
)
def test_every_datatype_has_its_numpy_dtype(datatype: DataType, dtype: type[np.generic]) -> None:
    assert numpy_dtype(datatype) == np.dtype(dtype)
    assert numpy_dtype(datatype).itemsize == datatype.itemsize
    assert datatype_of(np.dtype(dtype)) is datatype


@pytest.mark.parametrize("dtype", ["O", "S3", "U3"])
def test_strings_and_objects_are_bytes(dtype: str) -> None:
    assert datatype_of(np.dtype(dtype)) is DataType.BYTES


@pytest.mark.parametrize("dtype", ["c8", "M8[s]", ">f4"])
def test_a_dtype_without_a_datatype_is_refused(dtype: str) -> None:
    with pytest.raises(BadTensor, match="has no V2 datatype; expected one of BOOL, UINT8"):
        datatype_of(np.dtype(dtype))


def test_bytes_are_a_length_and_the_data() -> None:
    buffer, offsets = encode_bytes(np.array([[b"ab", b""], [b"c", b"def"]], np.object_))
    assert buffer == b"\x02\0\0\0ab\0\0\0\0\x01\0\0\0c\x03\0\0\0def"
    assert offsets.tolist() == [0, 10, 22]
    assert wire_row_offsets(buffer, 4, 2).tolist() == [0, 10, 22]
    assert WireBytes(buffer, (2, 2), offsets).nbytes == 22


def test_text_is_utf_8() -> None:
    assert encode_bytes(np.array(["é"], np.object_))[0] == b"\x02\0\0\0\xc3\xa9"
    assert encode_bytes(np.array(["é"]))[0] == b"\x02\0\0\0\xc3\xa9"


def test_the_tensor_of_an_unbatchable_model_is_one_row() -> None:
    assert encode_bytes(np.array([b"a", b"b"], np.object_), rows=1)[1].tolist() == [0, 10]
    assert encode_bytes(np.array(b"a", np.object_))[1].tolist() == [0, 5]


@pytest.mark.parametrize(
    ("buffer", "elements", "message"),
    [
        (b"", 1, "1 elements take at least 4 bytes, but the data has 0"),
        (b"\x01\0\0", 1, "1 elements take at least 4 bytes, but the data has 3"),
        (b"\x02\0\0\0a", 1, "element 0 runs to byte 6, but the data has only 5 bytes"),
        (b"\x05\0\0\0abcde\0\0", 2, "element 1 runs to byte 13, but the data has only 11 bytes"),
        (b"\xff\xff\xff\xffa", 1, "element 0 runs to byte 4294967299, but the data has only 5 bytes"),
        (b"\x01\0\0\0ab", 1, "1 elements take 5 bytes, but the data has 6"),
        (b"\0\0\0\0", 0, "0 elements take 0 bytes, but the data has 4"),
        (b"abcd", 10**18, "1000000000000000000 elements take at least 4000000000000000000 bytes"),
    ],
)
def test_malformed_bytes_are_refused(buffer: bytes, elements: int, message: str) -> None:
    with pytest.raises(BadTensor, match=f"^input 'x': {message}"):
        wire_row_offsets(buffer, elements, 1, "input 'x'")
    with pytest.raises(BadTensor, match=f"^input 'x': {message}"):
        decode_bytes(buffer, (elements,), "input 'x'")


def test_no_elements() -> None:
    assert wire_row_offsets(b"", 0, 0).tolist() == [0]
    assert wire_row_offsets(b"", 0, 3).tolist() == [0, 0, 0, 0]
    assert decode_bytes(b"", (3, 0)).shape == (3, 0)
    assert encode_bytes(np.empty((3, 0), np.object_))[1].tolist() == [0, 0, 0, 0]
    assert encode_bytes(np.empty((0, 2), np.object_))[1].tolist() == [0]


@given(st.integers(0, 4), st.integers(0, 3), st.data())
def test_bytes_survive_the_wire(rows: int, columns: int, data: st.DataObject) -> None:
    array = np.empty((rows, columns), np.object_)
    for index in np.ndindex(rows, columns):
        array[index] = data.draw(st.binary(max_size=9))
    buffer, offsets = encode_bytes(array)
    decoded = decode_bytes(memoryview(buffer), (rows, columns))
    assert decoded.tolist() == array.tolist()
    assert wire_row_offsets(buffer, rows * columns, rows).tolist() == offsets.tolist()
    for row in range(rows):
        alone = decode_bytes(buffer[offsets[row] : offsets[row + 1]], (columns,))
        assert alone.tolist() == array[row].tolist()


@given(st.binary(max_size=24), st.integers(0, 6))
def test_any_buffer_is_decoded_or_refused(buffer: bytes, elements: int) -> None:
    try:
        decoded = decode_bytes(buffer, (elements,))
    except BadTensor:
        return
    assert b"".join(struct.pack("<I", len(element)) + element for element in decoded) == buffer
