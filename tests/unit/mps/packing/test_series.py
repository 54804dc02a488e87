import pytest

from sluice.mps.packing.series import autocorrelation, forecast, percentile, rank_correlation, variation


def test_a_percentile_is_a_sample() -> None:
    samples = [5, 1, 4, 2, 3, 10, 9, 8, 7, 6]
    assert percentile(samples, 80) == 9
    assert percentile(samples, 50) == 6
    assert percentile(samples, 100) == 10


def test_the_variation_is_relative() -> None:
    assert variation([90, 110]) == pytest.approx(0.1)
    assert variation([7, 7, 7]) == 0
    assert variation([-1, 1]) == float("inf")
    assert variation([0, 0]) == 0


@pytest.mark.parametrize(
    ("one", "other", "rho"),
    [
        ([1, 2, 3, 4, 5], [10, 20, 30, 40, 900], 1.0),
        ([1, 2, 3, 4, 5], [5, 4, 3, 2, 1], -1.0),
        # Ranks 1..5 against 2 1 4 3 5: 1 - 6 * 4 / (5 * 24).
        ([10, 20, 30, 40, 50], [2, 1, 4, 3, 5], 0.8),
        # The usual example of IQ and hours of television, with 194 of squared differences: -29/165.
        ([106, 100, 86, 101, 99, 103, 97, 113, 112, 110], [7, 27, 2, 50, 28, 29, 20, 12, 6, 17], -29 / 165),
        # Equal samples share their mean rank, 1.5.
        ([1, 1, 3], [1, 2, 3], 0.8660254037844387),
        ([4, 4, 4], [1, 2, 3], 0.0),
    ],
)
def test_spearman(one: list[float], other: list[float], rho: float) -> None:
    assert rank_correlation(one, other) == pytest.approx(rho)


def test_a_period_shows_in_the_autocorrelation() -> None:
    wave = [0.0, 1.0, 0.0, -1.0] * 10
    assert autocorrelation(wave, 4) == pytest.approx(0.9)
    assert autocorrelation(wave, 2) == pytest.approx(-0.95)
    assert autocorrelation([3.0] * 20, 1) == 0


def test_the_forecast_follows_a_line_and_a_decay() -> None:
    assert forecast([float(x) for x in range(30)], 10) == pytest.approx(39)
    assert forecast([100 * 0.9**x for x in range(30)], 1) == pytest.approx(100 * 0.9**30)
    assert forecast([5.0] * 12 + [7.0], 10) == pytest.approx(17 / 3)  # all alike before: the mean of those after
