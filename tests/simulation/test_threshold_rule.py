"""The yardstick of a simple rule serves what can be served, and no more."""

import pytest

from benchmarks.support.overload import CASES
from benchmarks.support.threshold_rule import goodput


@pytest.mark.parametrize("case", ["single", "cascade"])
def test_little_is_lost_where_little_is_offered(case: str) -> None:
    shape = CASES[case]
    good, late = goodput(shape, 5.5 * shape.full_s(), 0.3 * shape.peak, 0.0, 1, 2.0, 4_000)
    assert good == pytest.approx(0.3 * shape.peak, rel=0.05)
    assert late < 0.001


@pytest.mark.parametrize("case", ["single", "cascade"])
def test_no_more_is_answered_in_time_than_full_batches_serve(case: str) -> None:
    shape = CASES[case]
    good, _ = goodput(shape, 5.5 * shape.full_s(), 3 * shape.peak, 0.0, 12, 2.0, 20_000)
    assert 0.8 * shape.peak < good < 1.02 * shape.peak


def test_fewer_are_late_where_more_time_is_kept() -> None:
    shape = CASES["cascade"]
    shares = [goodput(shape, 1.4 * shape.full_s(), shape.peak, 0.1, 7, each, 8_000)[1] for each in (0.5, 1.0, 2.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.01 > shares[-1]
