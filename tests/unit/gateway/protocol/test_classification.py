"""Outputs given as their most likely classes."""

import math

import numpy as np
import pytest

from sluice.gateway.protocol.classification import MAX_ELEMENTS, Classification
from sluice.models.errors import BadTensor, RequestError
from sluice.models.tensors.arrays import Array, decode_bytes
from sluice.models.tensors.spec import DataType, TensorSpec


def classified(values: Array, count: int, *labels: str, batchable: bool = True) -> tuple[tuple[int, ...], list[str]]:
    spec = TensorSpec("y", DataType.FP32, (-1,), labels)
    tensor = Classification(count, spec, batchable).top_classes(values)
    return tensor.shape, [element.decode() for element in decode_bytes(tensor.buffer, tensor.shape).ravel()]


def test_each_row_tells_its_greatest_elements_with_labels_where_there_are_some() -> None:
    values = np.array([[0.1, 0.7, 0.2], [2.5, -1, 1e9]], np.float32)
    assert classified(values, 2, "cat", "dog") == (
        (2, 2),
        ["0.700000:1:dog", "0.200000:2", "1000000000.000000:2", "2.500000:0:cat"],
    )


def test_there_are_no_more_classes_than_elements() -> None:
    assert classified(np.array([[3, 5]], np.int64), 9) == ((1, 2), ["5:1", "3:0"])
    assert classified(np.empty((2, 0), np.float32), 9) == ((2, 0), [])


def test_rows_may_have_any_shape_and_tensors_none() -> None:
    assert classified(np.array([[[1, 2], [4, 3]]], np.uint8), 2) == ((1, 2), ["4:2", "3:3"])
    assert classified(np.array([1, 2, 4], np.uint64), 1, batchable=False) == ((1,), ["4:2"])
    assert classified(np.array(7, np.int8), 1, batchable=False) == ((1,), ["7:0"])


def test_of_equal_elements_the_first_goes_first_and_nan_last() -> None:
    values = np.array([[1, math.nan, 3, 3, math.inf, 3, -math.inf]], np.float32)
    assert classified(values, 3)[1] == ["inf:4", "3.000000:2", "3.000000:3"]
    assert classified(values, 7)[1][-3:] == ["1.000000:0", "nan:1", "-inf:6"]


def test_extreme_integers_keep_their_order() -> None:
    assert classified(np.array([[-128, 0, 127]], np.int8), 3)[1] == ["127:2", "0:1", "-128:0"]
    assert classified(np.array([[0, 2**64 - 1, 2**64 - 2]], np.uint64), 2)[1] == [
        "18446744073709551615:1",
        "18446744073709551614:2",
    ]


def test_the_order_is_that_of_sorting_everything() -> None:
    values = np.random.default_rng(1).integers(0, 50, (1, 1000)).astype(np.float64)
    expected = sorted(range(1000), key=lambda index: (-values[0, index], index))[:40]
    assert [int(each.split(":")[1]) for each in classified(values, 40)[1]] == expected


@pytest.mark.parametrize("datatype", [DataType.BOOL, DataType.BYTES, DataType.FP16, DataType.BF16])
def test_what_has_no_greatest_elements_is_refused(datatype: DataType) -> None:
    with pytest.raises(
        BadTensor, match=f"^class result not available for output 'y' due to unsupported type '{datatype}'"
    ):
        Classification(1, TensorSpec("y", datatype, (3,)), True)


def test_counts_and_sizes_are_bounded() -> None:
    with pytest.raises(RequestError, match="classification must be at least 1, got 0"):
        Classification(0, TensorSpec("y", DataType.FP32, (3,)), True)
    with pytest.raises(BadTensor, match=f"it has {MAX_ELEMENTS + 1} elements, the limit is {MAX_ELEMENTS}"):
        classified(np.zeros((1, MAX_ELEMENTS + 1), np.uint8), 1)
