"""Splitting the time of a pipeline over its stages."""

import numpy as np
import pytest

from sluice.batcher.planner.baselines.slo_split import (
    StageGroup,
    dominators,
    normalised_lengths,
    split_groups,
    stage_budgets,
    subproblem,
)
from sluice.batcher.planner.problem.problem import Path, Problem, StageProblem, path_of
from tests.support.scheduling.planning import chain, directed_acyclic, random_problem

DIAMOND = ((), (0,), (0,), (1, 2))


def pipeline(sources: tuple[tuple[int, ...], ...], latencies: list[int], budget_ns: int = 1000) -> Problem:
    """Stages with one option each, which costs 1."""
    stages = [
        StageProblem(f"s{index}", np.array([latency_ns]), np.array([1.0]), sources=before)
        for index, (before, latency_ns) in enumerate(zip(sources, latencies, strict=True))
    ]
    return Problem(tuple(stages), budget_ns)


def test_a_path_is_as_long_as_its_longest_branch_and_costs_all_of_them() -> None:
    assert path_of(pipeline(DIAMOND, [10, 20, 30, 40]), [0, 0, 0, 0]) == Path((0, 0, 0, 0), 80, 4.0)


def test_stages_that_seldom_run_cost_their_share_and_take_no_time() -> None:
    often = StageProblem("often", np.array([10]), np.array([2.0]))
    seldom = StageProblem("seldom", np.array([90]), np.array([8.0]), sources=(0,), probability=0.25, on_path=False)
    assert path_of(Problem((often, seldom), 100), [0, 0]) == Path((0, 0), 10, 4.0)


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (chain(3), [0, 1, 2]),
        (DIAMOND, [0, 3]),
        (((), (), (0, 1)), [2]),  # two entries
        (((), (0,), (0,)), [0]),  # two exits
        (((), (0,), (0, 1), (2,)), [0, 2, 3]),  # a way past the second stage
        (((), ()), []),
        (((), (0,), (0,), (1, 2), (3,), (3,), (4, 5)), [0, 3, 6]),
    ],
)
def test_dominators_of_the_exit(sources: tuple[tuple[int, ...], ...], expected: list[int]) -> None:
    assert dominators(sources) == expected


def test_lengths_of_a_chain_are_shares_of_its_time() -> None:
    assert normalised_lengths(pipeline(chain(3), [10, 30, 60])) == pytest.approx([0.1, 0.3, 0.6])


def test_a_fork_counts_its_longest_branch() -> None:
    assert normalised_lengths(pipeline(DIAMOND, [10, 20, 30, 60])) == pytest.approx([0.1, 0.2, 0.3, 0.6])


def test_lengths_average_over_configurations() -> None:
    first = StageProblem("first", np.array([10, 30]), np.array([1.0, 1.0]))
    second = StageProblem("second", np.array([30, 10, 20]), np.array([1.0, 1.0, 1.0]), sources=(0,))
    lengths = normalised_lengths(Problem((first, second), 100))
    assert sum(lengths) == pytest.approx(1.0)
    assert lengths[0] == pytest.approx(0.5, abs=0.01)


def test_stages_are_given_their_part_of_the_longest_path_through_them() -> None:
    problem = pipeline(DIAMOND, [10, 20, 30, 60], budget_ns=200)
    assert stage_budgets(problem, normalised_lengths(problem)) == [20, 44, 60, 120]
    assert stage_budgets(problem, [1.0] * 4) == [66, 66, 66, 66]


def test_a_stage_that_takes_no_time_is_given_all_of_it() -> None:
    problem = pipeline(chain(3), [10, 0, 10], budget_ns=100)
    assert stage_budgets(problem, [1.0, 0.0, 1.0]) == [50, 100, 50]
    assert stage_budgets(problem, normalised_lengths(problem)) == [50, 100, 50]


@pytest.mark.parametrize(
    ("sources", "latencies", "expected"),
    [
        (chain(3), [10, 20, 70], [StageGroup((0, 1, 2), 1000)]),
        (chain(7), [10] * 7, [StageGroup((0, 1, 2), 428), StageGroup((3, 4, 5), 428), StageGroup((6,), 142)]),
        # Two stages side by side count once: the first group has length 2, the second 1.
        (DIAMOND, [10, 10, 10, 10], [StageGroup((0, 1, 2), 666), StageGroup((3,), 333)]),
        # Branches have the same time each, and are divided by themselves when they are long.
        (
            ((), (), (0,), (1,), (2,), (3,)),
            [10] * 6,
            [StageGroup((0, 2, 4), 1000), StageGroup((1, 3, 5), 1000)],
        ),
        # No stage divides it and no branches: each stage by itself.
        (
            ((), (), (0, 1), (1,)),
            [10, 20, 30, 40],
            [StageGroup((0,), 250), StageGroup((1,), 333), StageGroup((2,), 600), StageGroup((3,), 666)],
        ),
    ],
)
def test_groups_of_three_and_their_time(
    sources: tuple[tuple[int, ...], ...], latencies: list[int], expected: list[StageGroup]
) -> None:
    problem = pipeline(sources, latencies)
    assert split_groups(problem, normalised_lengths(problem)) == expected


@pytest.mark.parametrize("seed", range(50))
def test_groups_that_keep_to_their_budgets_keep_to_the_problems(seed: int) -> None:
    random = np.random.default_rng(seed)
    problem = random_problem(seed, directed_acyclic(random, int(random.integers(1, 12))), options=4)
    groups = split_groups(problem, normalised_lengths(problem))
    assert sorted(stage for group in groups for stage in group.stages) == list(range(len(problem.stages)))
    assert all(len(group.stages) <= 3 for group in groups)
    # The worst that can be: the last stage of every longest way through a group takes all the time of the group.
    worst = [0] * len(problem.stages)
    for group in groups:
        part = subproblem(problem, group.stages, group.budget_ns)
        lengths = [float(stage.on_path and stage.latency_ns.any()) for stage in part.stages]
        for index, budget_ns in zip(group.stages, stage_budgets(part, lengths), strict=True):
            worst[index] = budget_ns if problem.stages[index].latency_ns.any() else 0
    full = pipeline(tuple(stage.sources for stage in problem.stages), worst)
    assert path_of(full, [0] * len(worst)).latency_ns <= problem.budget_ns
