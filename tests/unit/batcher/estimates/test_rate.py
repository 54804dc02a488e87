from itertools import accumulate

import pytest

from sluice.batcher.estimates.rate import RateEstimate
from tests.support.scheduling.builders import S


def taken(*rows: int, elapsed_ns: int = S) -> list[float]:
    """The estimates when these numbers of rows came in one period after the other."""
    estimate = RateEstimate()
    return [estimate.take(total, elapsed_ns) for total in accumulate(rows)]


def test_a_constant_rate_is_the_estimate_from_the_first_period_on() -> None:
    assert taken(100, 100, 100, 100) == [100, 100, 100, 100]


def test_the_rate_is_by_the_second() -> None:
    assert taken(50, 50, elapsed_ns=2 * S) == [25, 25]
    assert taken(50, 50, elapsed_ns=S // 2) == [100, 100]


def test_a_step_moves_level_and_trend() -> None:
    # The level goes two fifths of the way, the trend takes a fifth of that; then from 148 as much of the other 52.
    assert taken(100, 200) == pytest.approx([100, 148])
    assert taken(100, 200, 200)[-1] == pytest.approx(148 + 20.8 + 8 + 0.2 * (28.8 - 8))


def test_after_a_step_the_estimate_passes_the_new_rate_a_little_and_comes_back() -> None:
    estimates = taken(100, *[200] * 60)
    assert 200 < max(estimates) < 225
    assert estimates[-1] == pytest.approx(200, abs=0.1)


def test_a_ramp_is_foreseen() -> None:
    """Ten rows a second more in every period: what is expected is what comes next."""
    counts = range(100, 1_100, 10)
    estimates = taken(*counts)
    assert estimates[-1] == pytest.approx(counts[-1] + 10, abs=0.1)


def test_without_traffic_the_estimate_falls_to_zero_and_no_further() -> None:
    estimates = taken(100, *[0] * 40)
    assert estimates[1] == pytest.approx(100 - 40 - 8)
    assert min(estimates) == 0
    assert estimates[-1] == pytest.approx(0, abs=0.5)


def test_nothing_ever_is_a_rate_of_nothing() -> None:
    assert taken(0, 0) == [0, 0]


def test_nothing_comes_at_no_rate_and_the_first_rows_move_level_and_trend() -> None:
    # Level 40 and trend 8; then level 28.8 and trend 4.16.
    assert taken(0, 0, 0, 100, 0) == pytest.approx([0, 0, 0, 48, 32.96])
