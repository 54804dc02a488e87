"""Lines by quantile regression, beside a search of all lines through two points."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.estimates.quantile_line import quantile_line

Points = list[tuple[int, int]]


def loss(points: Points, quantile: float, intercept: float, slope: float) -> float:
    """The pinball loss of a line."""
    residuals = [y - intercept - slope * x for x, y in points]
    return sum(quantile * each if each > 0 else (quantile - 1) * each for each in residuals)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 1000)), min_size=1, max_size=12),
    st.sampled_from([0.5, 0.8, 0.9, 0.99]),
    st.data(),
)
@settings(max_examples=150)
def test_no_line_through_two_points_has_less_loss(points: Points, quantile: float, data: st.DataObject) -> None:
    line = quantile_line(points, quantile, data.draw(st.integers(0, len(points) - 1)))
    pairs = [pair for pair in combinations(points, 2) if pair[0][0] != pair[1][0]]
    if line is None:
        assert not pairs
        return
    slopes = [(first, (second[1] - first[1]) / (second[0] - first[0])) for first, second in pairs]
    best = min(loss(points, quantile, y - slope * x, slope) for (x, y), slope in slopes)
    assert loss(points, quantile, line[0], line[1]) == pytest.approx(best, abs=1e-6)


def test_points_on_a_line_give_that_line() -> None:
    line = quantile_line([(rows, 840 + 32 * rows) for rows in (1, 2, 4, 8, 16)], 0.99, 0)
    assert line is not None
    assert line[:2] == (840, 32)


def test_a_high_quantile_of_few_points_is_above_all_of_them() -> None:
    points = [(1, 10), (1, 14), (2, 20), (2, 29), (3, 31), (3, 33)]
    line = quantile_line(points, 0.99, 0)
    assert line is not None
    assert all(y <= line[0] + line[1] * x + 1e-9 for x, y in points)


def test_there_is_no_line_through_points_of_one_size() -> None:
    assert quantile_line([(4, 10), (4, 12)], 0.99, 0) is None
