import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.loadgen.reports.downsampling import envelope, lateness_points, tail_points

MS = 1_000_000
numbers = st.one_of(st.floats(0, 1e6), st.just(float("nan")))


@given(st.lists(numbers, min_size=1, max_size=300), st.integers(1, 50))
def test_an_envelope_hides_no_extreme(values: list[float], most: int) -> None:
    array = np.array(values)
    size, low, high = envelope(array, most)
    assert len(low) == len(high) == -(-len(values) // size) <= most
    for number in range(len(low)):
        group = array[number * size : (number + 1) * size]
        if np.isnan(group).all():
            assert np.isnan([low[number], high[number]]).all()
        else:
            assert (low[number], high[number]) == (np.nanmin(group), np.nanmax(group))


def test_few_values_stay_as_they_are() -> None:
    size, low, high = envelope(np.array([3.0, 1.0, 2.0]), 3)
    assert (size, low.tolist(), high.tolist()) == (1, [3, 1, 2], [3, 1, 2])


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=2000), st.integers(8, 100))
def test_points_of_the_tail_are_observed_times_at_their_ranks(times: list[int], most: int) -> None:
    ordered = np.sort(np.array(times, np.int64))
    x, latency_ms = tail_points(ordered[::-1], most)
    assert len(x) <= most + most // 4
    ranks = np.round((1 - 10.0**-x) * len(times)).astype(int)
    assert (ordered[ranks] / MS == latency_ms).all()
    assert latency_ms[-1] == ordered[-1] / MS
    assert set((ordered[-(most // 4) :] / MS).tolist()) <= set(latency_ms.tolist())


def test_without_times_there_are_no_points() -> None:
    x, latency_ms = tail_points(np.empty(0, np.int64), 100)
    assert (len(x), len(latency_ms)) == (0, 0)


def test_the_largest_lateness_of_each_span_is_shown() -> None:
    due = np.array([0, 1, 2, 9]) * MS
    ends_s, largest = lateness_points(due, np.array([5, 7, 1, 2]) * MS, 5)
    assert ends_s == pytest.approx([0.0018, 0.0036, 0.0054, 0.0072, 0.009], rel=1e-5)
    assert largest.tolist()[:2] == [7, 1]
    assert np.isnan(largest[2:4]).all()
    assert largest[4] == 2
