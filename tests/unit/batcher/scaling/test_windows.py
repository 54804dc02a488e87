"""Rates over windows, from counts at certain times."""

import pytest

from sluice.batcher.scaling.windows import RateWindows
from tests.support.scheduling.builders import S


def windows_of(*samples: tuple[int, int]) -> RateWindows:
    windows = RateWindows(60 * S)
    for at_s, count in samples:
        windows.sample(at_s * S, {"m:1": count})
    return windows


def test_a_rate_is_that_of_the_window() -> None:
    windows = windows_of((0, 0), (2, 20), (4, 40), (6, 60), (8, 260))
    assert windows.rates(2 * S)["m:1"] == 100
    assert windows.rates(6 * S)["m:1"] == 40


def test_rows_between_two_samples_came_evenly() -> None:
    windows = windows_of((0, 0), (10, 100), (12, 300))
    assert windows.rates(7 * S)["m:1"] == pytest.approx((300 - 50) / 7)


def test_before_the_window_is_full_the_rate_is_that_since_the_first_sample() -> None:
    assert windows_of((100, 0), (102, 20)).rates(60 * S)["m:1"] == 10


def test_there_is_no_rate_before_the_second_sample() -> None:
    assert windows_of((0, 0)).rates(60 * S) == {}
    assert windows_of().rates(60 * S) == {}


def test_a_pipeline_that_is_new_began_with_no_rows() -> None:
    windows = windows_of((0, 0))
    windows.sample(2 * S, {"m:1": 0, "new:1": 10})
    assert windows.rates(60 * S) == {"m:1": 0, "new:1": 5}
