import numpy as np
import pytest

from loadgen.arrivals import poisson
from models.errors import ConfigError


def test_gaps_are_exponential_with_the_mean_of_the_rate() -> None:
    arrivals = poisson(1000.0, None, 200_000, np.random.default_rng(7))
    gaps = np.diff(arrivals)
    assert arrivals.dtype == np.int64
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1_000_000, rel=0.01)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.01)
    # An exponential gap is below ln 2 of its mean half of the time.
    assert (gaps < 693_147).mean() == pytest.approx(0.5, abs=0.005)


def test_counts_of_disjoint_seconds_have_the_variance_of_a_poisson_process() -> None:
    arrivals = poisson(500.0, 400.0, None, np.random.default_rng(11))
    counts = np.bincount(arrivals // 1_000_000_000, minlength=400)
    assert counts.mean() == pytest.approx(500, rel=0.01)
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.15)


def test_duration_is_an_exclusive_bound() -> None:
    arrivals = poisson(1000.0, 2.0, None, np.random.default_rng(1))
    assert arrivals[-1] < 2_000_000_000
    assert 1800 < len(arrivals) < 2200


def test_whichever_bound_comes_first_ends_the_run() -> None:
    assert len(poisson(1000.0, 2.0, 50, np.random.default_rng(1))) == 50
    assert len(poisson(1000.0, 0.5, 5000, np.random.default_rng(1))) < 700


def test_a_longer_run_continues_a_shorter_one() -> None:
    short = poisson(1000.0, None, 70_000, np.random.default_rng(3))
    long = poisson(1000.0, None, 140_000, np.random.default_rng(3))
    assert short[:65_536].tolist() == long[:65_536].tolist()
    assert (np.diff(long) >= 0).all()


@pytest.mark.parametrize(
    ("rate", "duration_s", "queries", "message"),
    [
        (0.0, 1.0, None, "rate: must be above 0"),
        (float("nan"), 1.0, None, "rate: must be above 0"),
        (1.0, None, None, "give a duration, a number of queries, or both"),
        (1.0, float("inf"), None, "duration: must be a positive number"),
        (1.0, None, 0, "queries: must be between 1 and 20000000"),
        (1e6, 100.0, None, "is more than the 10000000 queries"),
    ],
)
def test_bad_bounds_are_refused(rate: float, duration_s: float | None, queries: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        poisson(rate, duration_s, queries, np.random.default_rng(0))
