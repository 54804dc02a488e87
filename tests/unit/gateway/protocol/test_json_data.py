"""JSON data to flat arrays and back."""

import json
import math

import msgspec
import numpy as np
import pytest

from sluice.gateway.config.json_rules import JsonNan
from sluice.gateway.protocol.json_data import PIECE, DataTooLarge, decode_data, encode_data
from sluice.models.errors import BadTensor
from sluice.models.tensors.arrays import Array, WireBytes, encode_bytes

LIMIT = 1 << 30


def decode(datatype: str, text: str) -> Array | list[str]:
    return decode_data("x", datatype, msgspec.Raw(text.encode()))


@pytest.mark.parametrize(
    ("datatype", "text", "dtype", "values"),
    [
        ("BOOL", "[true, false]", np.bool_, [True, False]),
        ("UINT8", "[0, 255]", np.uint8, [0, 255]),
        ("UINT16", "[65535]", np.uint16, [65535]),
        ("UINT32", "[4294967295]", np.uint32, [4294967295]),
        ("UINT64", "[18446744073709551615]", np.uint64, [18446744073709551615]),
        ("INT8", "[-128, 127]", np.int8, [-128, 127]),
        ("INT16", "[-32768]", np.int16, [-32768]),
        ("INT32", "[-2147483648]", np.int32, [-2147483648]),
        ("INT64", "[-9223372036854775808]", np.int64, [-9223372036854775808]),
        ("FP32", "[1, 2.5, 3.4e38]", np.float32, [1, 2.5, np.float32(3.4e38)]),
        ("FP64", "[1e300]", np.float64, [1e300]),
        ("FP32", "[[[1, 2], [3]], [[4]]]", np.float32, [1, 2, 3, 4]),
        ("FP32", " [ [] , [] ]", np.float32, []),
    ],
)
def test_lists_become_flat_arrays_of_the_datatype(datatype: str, text: str, dtype: type, values: list[float]) -> None:
    array = decode(datatype, text)
    assert isinstance(array, np.ndarray)
    assert array.dtype == dtype
    assert array.tolist() == values


def test_strings_stay_a_flat_list() -> None:
    assert decode("BYTES", '[["a", "\\u00e4"], ["", "d\\u0000"]]') == ["a", "ä", "", "d\0"]


@pytest.mark.parametrize(
    ("datatype", "text", "problem"),
    [
        ("INT8", "[128]", "<= 127"),
        ("UINT8", "[-1]", ">= 0"),
        ("UINT64", "[18446744073709551616]", "out of range of UINT64"),
        ("INT64", "[9223372036854775808]", "out of range of INT64"),
        ("INT32", "[1.5]", "Expected `int`, got `float`"),
        ("INT32", "[true]", "Expected `int`, got `bool`"),
        ("FP32", "[true]", "Expected `float`, got `bool`"),
        ("FP32", "[null]", "got `null`"),
        ("FP32", '["1"]', "got `str`"),
        ("FP32", "[3.5e38]", "out of range of FP32"),
        ("FP64", "[1e400]", "out of range"),
        ("BOOL", "[1]", "Expected `bool`"),
        ("BYTES", "[1]", "Expected `str`"),
        ("FP32", "[1, [2]]", "Expected `float`, got `array`"),
        ("FP32", "1", "must be a list"),
        ("FP32", "[" * 101 + "]" * 101, "at most 100 levels, got 101"),
        ("FP16", "[1]", "FP16 cannot be given as JSON data"),
        ("BF16", "[1]", "BF16 cannot be given as JSON data"),
        ("FP31", "[1]", "FP31 is not a datatype"),
    ],
)
def test_data_that_does_not_fit_is_refused_by_the_name_of_its_tensor(datatype: str, text: str, problem: str) -> None:
    with pytest.raises(BadTensor, match=r"^input 'x'") as caught:
        decode(datatype, text)
    assert problem in str(caught.value)


def test_arrays_are_written_flat_and_as_short_as_their_type_allows() -> None:
    array = np.array([[0.1, 2], [3, 4]], np.float32)
    assert encode_data("y", array, LIMIT) == b"[0.1,2.0,3.0,4.0]"
    assert encode_data("y", np.array([True, False]), LIMIT) == b"[true,false]"
    assert encode_data("y", np.array([2**64 - 1], np.uint64), LIMIT) == b"[18446744073709551615]"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("nan", "text"),
    [
        (JsonNan.LITERAL, b"[1.5,NaN,Infinity,-Infinity]"),
        (JsonNan.STRING, b'[1.5,"NaN","Infinity","-Infinity"]'),
        (JsonNan.NULL, b"[1.5,null,null,null]"),
    ],
)
def test_nan_and_infinities_are_written_as_configured(nan: JsonNan, text: bytes, dtype: type) -> None:
    assert encode_data("y", np.array([[1.5, math.nan], [math.inf, -math.inf]], dtype), LIMIT, nan) == text


@pytest.mark.parametrize("nan", JsonNan)
def test_other_values_are_written_alike_however_nan_is(nan: JsonNan) -> None:
    assert encode_data("y", np.array([0.5, -1], np.float32), LIMIT, nan) == b"[0.5,-1.0]"
    assert encode_data("y", np.array([7], np.int64), LIMIT, nan) == b"[7]"
    assert encode_data("y", np.array([True]), LIMIT, nan) == b"[true]"


def test_bytes_are_written_as_text_from_the_rows_they_span() -> None:
    buffer, offsets = encode_bytes(np.array([["skipped"], ["ä"], ["b"]], np.object_))
    tensor = WireBytes(buffer, (2, 1), offsets[1:])
    assert json.loads(encode_data("y", tensor, LIMIT)) == ["ä", "b"]
    buffer, offsets = encode_bytes(np.array([b"\xff"], np.object_))
    with pytest.raises(BadTensor, match="output 'y' is not UTF-8 text"):
        encode_data("y", WireBytes(buffer, (1,), offsets), LIMIT)


def test_large_arrays_are_one_list_as_well() -> None:
    values = np.arange(3 * PIECE + 5, dtype=np.float64)
    values[2 * PIECE] = math.nan
    text = encode_data("y", values.reshape(1, -1), LIMIT)
    np.testing.assert_array_equal(json.loads(text), values)
    words = [f"ä{number}" for number in range(2 * PIECE)]
    buffer, offsets = encode_bytes(np.array([words], np.object_))
    assert json.loads(encode_data("y", WireBytes(buffer, (1, len(words)), offsets), LIMIT)) == words


@pytest.mark.parametrize("count", [4, PIECE, 3 * PIECE + 5])
def test_text_may_be_as_long_as_its_limit_and_no_longer(count: int) -> None:
    numbers = np.linspace(0, 1, count)
    buffer, offsets = encode_bytes(np.array([["\n"] * count], np.object_))
    for values in (numbers, WireBytes(buffer, (1, count), offsets)):
        size = len(encode_data("y", values, LIMIT))
        assert len(encode_data("y", values, size)) == size
        for limit in (0, count, 3 * count, size - 1):
            with pytest.raises(DataTooLarge):
                encode_data("y", values, limit)
