import re

import numpy as np
import pytest

from sluice.gateway.tensors.rows import contiguous_runs, merge_rows, row_positions, row_slice
from sluice.models.tensors.arrays import WireBytes

WORDS = WireBytes(b"\1\0\0\0a" + b"\2\0\0\0bc" + b"\0\0\0\0", (3, 1), np.array([0, 5, 11, 15]))


def test_positions_fall_into_runs() -> None:
    assert list(contiguous_runs([0, 1, 2, 5, 7, 8])) == [(0, 3), (5, 6), (7, 9)]
    assert list(contiguous_runs([4])) == [(4, 5)]
    assert list(contiguous_runs(range(6))) == [(0, 6)]


@pytest.mark.parametrize(
    ("wanted", "available", "expected"),
    [
        (None, None, [0, 1, 2, 3]),
        ((1, 3), None, [1, 3]),
        ((1, 3), (1, 3), [0, 1]),
        ((3,), (1, 2, 3), [2]),
        (None, (0, 1, 2, 3), [0, 1, 2, 3]),
    ],
)
def test_rows_are_found_among_those_that_ran(
    wanted: tuple[int, ...] | None, available: tuple[int, ...] | None, expected: list[int]
) -> None:
    assert list(row_positions(wanted, available, 4)) == expected


def test_a_part_of_a_bytes_tensor_has_offsets_of_its_own() -> None:
    cut = row_slice(WORDS, 1, 3)
    assert isinstance(cut, WireBytes)
    assert (bytes(cut.buffer), cut.shape, cut.row_offsets.tolist()) == (b"\2\0\0\0bc\0\0\0\0", (2, 1), [0, 6, 10])


def test_the_first_tensor_that_holds_a_row_gives_it() -> None:
    first = np.array([[10], [30]], np.int32)
    second = np.array([[0], [1], [2], [3]], np.int32)
    merged = merge_rows([(first, (1, 3)), (second, range(4))], 4)
    np.testing.assert_array_equal(merged, [[0], [10], [2], [30]])


def test_bytes_merge_row_by_row() -> None:
    other = WireBytes(b"\3\0\0\0xyz", (1, 1), np.array([0, 7]))
    merged = merge_rows([(other, (1,)), (WORDS, range(3))], 3)
    assert isinstance(merged, WireBytes)
    assert bytes(merged.buffer) == b"\1\0\0\0a" + b"\3\0\0\0xyz" + b"\0\0\0\0"
    assert (merged.shape, merged.row_offsets.tolist()) == ((3, 1), [0, 5, 12, 16])


def test_a_row_that_nobody_ran_is_an_error() -> None:
    with pytest.raises(ValueError, match="only 1 of 2 rows were computed"):
        merge_rows([(np.zeros((1, 1)), (0,))], 2)


def test_rows_of_different_shapes_are_not_merged() -> None:
    wide = WireBytes(b"\0\0\0\0" * 3, (1, 3), np.array([0, 12]))
    narrow = WireBytes(b"\0\0\0\0" * 4, (2, 2), np.array([0, 8, 16]))
    message = "rows of the shapes [2], [3] cannot be merged into one tensor"
    with pytest.raises(ValueError, match=re.escape(message)):
        merge_rows([(wide, (0,)), (narrow, range(2))], 2)
    with pytest.raises(ValueError, match=re.escape(message)):
        merge_rows([(np.zeros((1, 3)), (0,)), (np.zeros((2, 2)), range(2))], 2)
