from collections.abc import Callable

import numpy as np
import pytest

from sluice.loadgen.traffic.processes.bounds import ArrivalBounds, Times
from sluice.loadgen.traffic.processes.renewal import (
    constant_gaps,
    gamma_gaps,
    pareto_gaps,
    poisson_gaps,
    renewal,
    uniform_gaps,
)
from sluice.models.errors import ConfigError


def poisson(rate: float, duration_s: float | None, queries: int | None, rng: np.random.Generator) -> Times:
    return renewal(ArrivalBounds(rate, duration_s, queries), poisson_gaps(rng))


def gamma(rate: float, cv: float, duration_s: float | None, queries: int | None, rng: np.random.Generator) -> Times:
    return renewal(ArrivalBounds(rate, duration_s, queries), gamma_gaps(cv, rng))


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
        (0.0, 1.0, None, "rate: expected a number above 0"),
        (float("nan"), 1.0, None, "rate: expected a number above 0"),
        (1.0, None, None, "no end; expected --duration, --queries, or both"),
        (1.0, float("inf"), None, "duration: expected a positive number"),
        (1.0, None, 0, "queries: expected 1 to 20000000"),
        (1e6, 100.0, None, "expected at most 10000000 queries"),
    ],
)
def test_bad_bounds_are_refused(rate: float, duration_s: float | None, queries: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        poisson(rate, duration_s, queries, np.random.default_rng(0))


@pytest.mark.parametrize("cv", [0.01, 0.5, 1.0, 1.5, 4.0])
def test_gamma_gaps_have_the_mean_of_the_rate_and_the_variation_that_was_asked_for(cv: float) -> None:
    arrivals = gamma(1000.0, cv, None, 400_000, np.random.default_rng(7))
    gaps = np.diff(arrivals)
    assert gaps.min() >= 0
    # Four standard deviations of the mean of this number of gaps.
    assert gaps.mean() == pytest.approx(1_000_000, rel=4 * cv / 400_000**0.5)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_gamma_gaps_with_a_variation_of_1_are_exponential() -> None:
    gaps = np.diff(gamma(1000.0, 1.0, None, 200_000, np.random.default_rng(5)))
    assert [(gaps < limit * 1_000_000).mean() for limit in (0.1, 0.693_147, 2.0)] == pytest.approx(
        [0.0952, 0.5, 0.8647], abs=0.005
    )


def test_gamma_arrivals_of_a_seed_never_change() -> None:
    assert gamma(1000.0, 4.0, None, 5, np.random.default_rng(3)).tolist() == [10, 429322, 429656, 429656, 453971]
    assert gamma(1000.0, 0.5, None, 3, np.random.default_rng(3)).tolist() == [933538, 1669269, 3310318]


def test_a_longer_run_of_gamma_arrivals_continues_a_shorter_one() -> None:
    short = gamma(1000.0, 4.0, None, 1_000, np.random.default_rng(3))
    long = gamma(1000.0, 4.0, None, 2_000, np.random.default_rng(3))
    assert short.tolist() == long[:1_000].tolist()


@pytest.mark.parametrize("cv", [0.0, -1.0, 21.0, float("nan")])
def test_a_variation_that_cannot_be_drawn_is_refused(cv: float) -> None:
    with pytest.raises(ConfigError, match=r"cv: expected a number between 0\.01 and 20\.0"):
        gamma(1.0, cv, 1.0, None, np.random.default_rng(0))


def test_constant_arrivals_are_a_clock() -> None:
    assert renewal(ArrivalBounds(4.0, 1.1, None), constant_gaps()).tolist() == [
        250_000_000,
        500_000_000,
        750_000_000,
        10**9,
    ]


def test_uniform_gaps_lie_between_their_limits_and_have_the_variation_that_was_asked_for() -> None:
    # ESG's heavy load: from 10 to 16.8 ms, which is a variation of 3.4 / sqrt(3) / 13.4.
    gaps = np.diff(renewal(ArrivalBounds(1000 / 13.4, None, 100_000), uniform_gaps(0.146493, np.random.default_rng(2))))
    assert 9_999_900 < gaps.min() < 10_001_000
    assert 16_799_000 < gaps.max() < 16_800_100
    assert gaps.mean() == pytest.approx(13_400_000, rel=0.002)


def test_pareto_gaps_have_the_tail_of_their_shape() -> None:
    """Lomax of shape 2.5 and mean 1: P(gap > x) = (1 + x / 1.5) ** -2.5."""
    gaps = np.diff(renewal(ArrivalBounds(1000.0, None, 400_000), pareto_gaps(2.5, np.random.default_rng(4)))) / 1e6
    assert gaps.mean() == pytest.approx(1.0, rel=0.02)
    assert [(gaps > limit).mean() for limit in (1.0, 5.0, 20.0)] == pytest.approx(
        [0.27885, 0.02566, 0.001301], rel=0.06
    )


def test_a_gap_of_a_very_heavy_tail_does_not_overflow() -> None:
    arrivals = renewal(ArrivalBounds(1e-6, None, 100_000), pareto_gaps(1.05, np.random.default_rng(4)))
    assert (np.diff(arrivals) >= 0).all()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda rng: uniform_gaps(0.6, rng),
            r"cv: expected a number between 0\.01 and 0\.577 for uniform gaps, got 0\.6",
        ),
        (lambda rng: pareto_gaps(1.0, rng), r"shape: expected a number between 1\.05 and 100, got 1"),
    ],
)
def test_gaps_that_cannot_be_drawn_are_refused(draw: Callable[[np.random.Generator], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        draw(np.random.default_rng(0))
