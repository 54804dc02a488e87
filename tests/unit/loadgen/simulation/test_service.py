import pytest

from sluice.loadgen.simulation.service import ServiceTimeDistribution, SlowdownFactors, TransportJitter
from sluice.models.errors import ConfigError


def test_a_single_quantile_is_the_time_itself() -> None:
    assert [ServiceTimeDistribution({1: [2.5]}).draw_ns(rows, 0.99) for rows in (1, 5)] == [2_500_000] * 2


def test_chance_picks_the_quantile_and_what_lies_between_two() -> None:
    times = ServiceTimeDistribution({1: [1.0, 2.0, 6.0]})
    assert [times.draw_ns(1, chance) for chance in (0.0, 0.25, 0.5, 0.75)] == [
        1_000_000,
        1_500_000,
        2_000_000,
        4_000_000,
    ]


def test_sizes_between_two_measured_ones_take_what_lies_between() -> None:
    times = ServiceTimeDistribution({2: [1.0, 2.0], 4: [3.0, 6.0]})
    assert [times.draw_ns(rows, 0.0) for rows in (1, 2, 3, 4, 9)] == [
        1_000_000,
        1_000_000,
        2_000_000,
        3_000_000,
        3_000_000,
    ]
    assert times.draw_ns(3, 0.5) == 3_000_000


@pytest.mark.parametrize("quantiles", [{}, {0: [1.0]}, {1: []}, {1: [1.0], 2: [1.0, 2.0]}, {1: [2.0, 1.0]}, {1: [0.0]}])
def test_what_are_no_quantiles_is_refused(quantiles: dict[int, list[float]]) -> None:
    with pytest.raises(ConfigError, match="service times: expected"):
        ServiceTimeDistribution(quantiles)


def test_strays_are_drawn_out_of_their_quantiles_by_seed() -> None:
    draws = [[stray() for _ in range(1000)] for stray in (TransportJitter((-40, 0, 200), seed) for seed in (1, 1, 2))]
    assert draws[0] == draws[1] != draws[2]
    assert -40_000 <= min(draws[0]) < -35_000
    assert 180_000 < max(draws[0]) <= 200_000
    assert sorted(draws[0])[500] == pytest.approx(0, abs=15_000)


def test_without_quantiles_nothing_strays() -> None:
    assert TransportJitter((), 1)() == 0


def test_pieces_of_a_pace_are_played_to_their_ends() -> None:
    pace = SlowdownFactors(((1.0, 2.0, 3.0), (5.0, 6.0, 7.0)), 1)
    played = [tuple(pace() for _ in range(3)) for _ in range(100)]
    assert set(played) == {(1.0, 2.0, 3.0), (5.0, 6.0, 7.0)}
    assert played.count((1.0, 2.0, 3.0)) == pytest.approx(50, abs=20)


def test_without_pieces_nothing_is_slower() -> None:
    pace = SlowdownFactors((), 1)
    assert [pace() for _ in range(5)] == [1.0] * 5
