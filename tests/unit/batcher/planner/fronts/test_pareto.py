from collections.abc import Sequence

import numpy as np
import pytest

from sluice.batcher.planner.fronts.pareto import (
    DONE,
    Costs,
    Steps,
    Times,
    beside,
    parallel,
    pareto,
    series,
    thinned,
    up_to,
)


def steps(*points: tuple[int, float]) -> Steps:
    return Steps(np.array([time for time, _ in points]), np.array([cost for _, cost in points]))


def points(front: Steps) -> list[tuple[int, float]]:
    return list(zip(front.latency_ns.tolist(), front.cost.tolist(), strict=True))


def figures(latency_ns: Sequence[int], cost: Sequence[float]) -> tuple[Times, Costs]:
    return np.array(latency_ns, np.int64), np.array(cost, np.float64)


FAST_OR_CHEAP = steps((1, 5.0), (4, 2.0))


def test_a_front_keeps_what_nothing_beats_by_ascending_latency() -> None:
    assert pareto(*figures([5, 1, 3, 4, 2], [1, 9, 4, 6, 9])).tolist() == [1, 2, 0]


def test_of_equal_latencies_the_cheapest_is_kept_once() -> None:
    assert pareto(*figures([2, 2, 2, 1, 1], [3, 2, 2, 7, 8])).tolist() == [3, 1]


@pytest.mark.parametrize("scale", [1, 1 << 55])
def test_latencies_of_a_year_are_sorted_like_those_of_a_nanosecond(scale: int) -> None:
    latency_ns = np.array([3, 3, 1, 2, 2] * 64) * scale
    assert pareto(latency_ns, np.array([2.0, 1.0, 4.0, 3.5, 3.0] * 64)).tolist() == [2, 4, 1]


def test_one_after_the_other_adds_latencies_and_costs() -> None:
    assert points(series(FAST_OR_CHEAP, steps((10, 7.0), (12, 1.0)), 100)) == [(11, 12.0), (13, 6.0), (16, 3.0)]


def test_points_beyond_the_horizon_are_left_out_except_the_quickest() -> None:
    second = steps((10, 7.0), (12, 1.0))
    assert points(series(FAST_OR_CHEAP, second, 15)) == [(11, 12.0), (13, 6.0)]
    assert points(series(FAST_OR_CHEAP, second, 3)) == [(11, 12.0)]
    assert points(series(FAST_OR_CHEAP, DONE, 3)) == [(1, 5.0)]
    assert points(series(DONE, FAST_OR_CHEAP, 4)) == [(1, 5.0), (4, 2.0)]
    assert points(up_to(FAST_OR_CHEAP, 0)) == [(1, 5.0)]


def test_side_by_side_takes_the_longer_latency_and_adds_costs() -> None:
    assert points(parallel(FAST_OR_CHEAP, steps((3, 7.0), (4, 3.0), (9, 1.0)))) == [(3, 12.0), (4, 5.0), (9, 3.0)]


def test_the_cost_within_a_time_is_that_of_the_last_step_and_inf_before_the_first() -> None:
    assert FAST_OR_CHEAP.cost_within(np.array([0, 1, 3, 4, 99])).tolist() == [np.inf, 5.0, 5.0, 2.0, 2.0]


def test_what_runs_beside_and_what_follows_both_is_distinguished_by_the_time_left_at_the_end() -> None:
    # 10 left. The other ends with 9 left for 5.0, or with 6 left for 2.0; what follows needs 3 (8.0) or 7 (1.0).
    assert points(beside(FAST_OR_CHEAP, steps((3, 8.0), (7, 1.0)), 10)) == [(3, 10.0), (7, 6.0)]


def test_without_time_for_both_there_is_nothing_beside() -> None:
    assert points(beside(steps((8, 5.0)), steps((3, 8.0)), 10)) == []


def test_a_front_within_its_limit_is_not_thinned() -> None:
    assert thinned(np.arange(10), 10, 10) is None


def test_a_long_front_keeps_its_quickest_point_and_the_last_of_each_cell_of_time() -> None:
    keep = thinned(np.array([0, 1, 2, 24, 25, 49, 70, 99]), 100, 7)
    assert keep is not None
    assert keep.tolist() == [0, 4, 5, 7]
