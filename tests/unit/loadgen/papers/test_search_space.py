"""Counting the paths that blades leave, and what groups of stages lose."""

from itertools import product

import numpy as np
import pytest

from sluice.batcher.planner.problem.problem import Problem, StageProblem
from sluice.loadgen.papers.search_space import chain, paths_left, play


def small_chain() -> Problem:
    """Figures that lie on a grid of 20 steps of time and of 10 of cost."""
    return Problem(
        (
            StageProblem("first", np.array([2, 5, 9]), np.array([7.0, 4.0, 1.0])),
            StageProblem("second", np.array([3, 6]), np.array([5.0, 2.0]), sources=(0,)),
            StageProblem("third", np.array([1, 8, 8]), np.array([6.0, 1.0, 3.0]), sources=(1,)),
        ),
        20,
    )


def enumerated(problem: Problem, most_ns: float, most_cost: float) -> int:
    """The partial paths within both limits, by trying all."""
    count = 0
    stages = problem.stages
    for length in range(1, len(stages) + 1):
        left_ns = sum(each.latency_ns.min() for each in stages[length:])
        left_cost = sum(each.cost.min() for each in stages[length:])
        for choices in product(*(range(len(each.cost)) for each in stages[:length])):
            ns = sum(stage.latency_ns[choice] for stage, choice in zip(stages, choices, strict=False))
            cost = sum(stage.cost[choice] for stage, choice in zip(stages, choices, strict=False))
            count += ns + left_ns <= most_ns and cost + left_cost <= most_cost
    return count


def test_partial_paths_are_counted_as_an_enumeration_counts_them() -> None:
    problem, most_cost = small_chain(), 10.0
    assert paths_left(problem, None, times=False) == 3 + 3 * 2 + 3 * 2 * 3
    assert paths_left(problem, None, grid=20) == enumerated(problem, 20, np.inf) < 27
    assert paths_left(problem, most_cost, times=False, grid=10) == enumerated(problem, np.inf, most_cost) < 27
    assert paths_left(problem, most_cost, grid=20) == enumerated(problem, 20, most_cost)


@pytest.mark.parametrize(("stages", "paths"), [(3, 16_843_008), (5, 1_103_823_438_080)])
def test_each_blade_leaves_fewer_paths_than_none_and_both_leave_fewer_than_each(stages: int, paths: int) -> None:
    result = play(1, stages, 0.3)
    assert result.none == paths
    assert result.both < min(result.time, result.cost) < max(result.time, result.cost) < result.none


def test_one_group_loses_nothing_and_several_groups_look_at_fewer_paths_for_a_loss() -> None:
    assert play(1, 3, 0.3).lost == pytest.approx(0.0, abs=1e-12)
    longer = play(2, 5, 0.3)
    assert longer.lost is not None
    assert longer.lost > 0.01
    assert longer.groups < longer.both


def test_a_chain_with_fewer_options_keeps_its_quickest_and_its_slowest() -> None:
    full, few = chain(3, 2, 0.5), chain(3, 2, 0.5, options=7)
    assert [len(each.cost) for each in few.stages] == [7, 7]
    for whole, some in zip(full.stages, few.stages, strict=True):
        assert (some.latency_ns.min(), some.latency_ns.max()) == (whole.latency_ns.min(), whole.latency_ns.max())
