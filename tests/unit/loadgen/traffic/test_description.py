import numpy as np
import pytest

from sluice.loadgen.traffic.arrivals import Arrivals
from sluice.loadgen.traffic.description import describe_arrivals


def test_a_clock_has_no_variation_and_no_dispersion() -> None:
    figures = describe_arrivals(np.arange(0, 121, 0.5))
    assert (figures.rate, figures.cv, figures.idc) == (2.0, 0.0, {"1": 0.0, "60": 0.0})
    assert figures.gap_ms == {"p50": 500.0, "p99": 500.0, "max": 500.0}
    assert (figures.peak_per_s, figures.peak_ratio) == (2, 1.0)


def test_dispersion_is_the_variance_of_counts_over_their_mean() -> None:
    # Counts of 4, 0, 1 and 1 in four whole seconds: mean 1.5, variance 2.25.
    figures = describe_arrivals(np.array([0, 0.1, 0.2, 0.3, 2.5, 3.5, 4.0]))
    assert figures.idc == {"1": 1.5, "60": None}
    assert (figures.peak_per_s, figures.span_s, figures.rate) == (4, 4.0, 1.5)


def test_a_poisson_process_has_a_variation_and_a_dispersion_of_1() -> None:
    due_ns = Arrivals().draw(100.0, 3600.0, None, np.random.default_rng(8))
    figures = describe_arrivals(due_ns / 1e9)
    assert figures.cv == pytest.approx(1.0, abs=0.01)
    assert figures.idc["1"] == pytest.approx(1.0, abs=0.1)
    assert figures.idc["60"] == pytest.approx(1.0, abs=0.6)


def test_arrivals_days_apart_are_described_without_a_counter_for_each_second() -> None:
    figures = describe_arrivals(np.array([0.0, 1e12, 2e12]))
    assert (figures.peak_per_s, figures.cv) == (1, 0.0)
    assert figures.idc["1"] == pytest.approx(1.0)


def test_one_arrival_has_neither_rate_nor_gaps() -> None:
    figures = describe_arrivals(np.array([3.0]))
    assert (figures.arrivals, figures.rate, figures.cv, figures.gap_ms, figures.peak_ratio) == (1, None, None, {}, None)
