"""ESG_1Q: exact on a group of three stages, within the budget on any pipeline."""

import numpy as np
import pytest

from sluice.batcher.planner.baselines.brute_force import plan_brute_force
from sluice.batcher.planner.baselines.esg import plan_esg, search_group
from sluice.batcher.planner.problem.problem import Path, Problem, StageProblem, path_of
from sluice.models.errors import ConfigError
from tests.support.scheduling.planning import chain, directed_acyclic, random_problem, realistic_problem


def figures(paths: list[Path]) -> list[tuple[float, int]]:
    return [(path.cost, path.latency_ns) for path in paths]


def two_stages(budget_ns: int) -> Problem:
    first = StageProblem("first", np.array([10, 20, 40]), np.array([9.0, 4.0, 1.0]))
    second = StageProblem("second", np.array([30, 60]), np.array([5.0, 3.0]), sources=(0,))
    return Problem((first, second), budget_ns)


@pytest.mark.parametrize(
    ("budget_ns", "expected"),
    [
        (39, []),
        (40, [Path((0, 0), 40, 14.0)]),
        (50, [Path((1, 0), 50, 9.0), Path((0, 0), 40, 14.0)]),
        (80, [Path((2, 0), 70, 6.0), Path((1, 1), 80, 7.0)]),
        (100, [Path((2, 1), 100, 4.0), Path((2, 0), 70, 6.0)]),
    ],
)
def test_the_cheapest_paths_within_the_budget(budget_ns: int, expected: list[Path]) -> None:
    assert plan_esg(two_stages(budget_ns), 2) == expected


def test_of_equal_cost_the_quicker_comes_first() -> None:
    stage = StageProblem("only", np.array([30, 10, 20]), np.array([1.0, 1.0, 1.0]))
    assert [path.choices for path in plan_esg(Problem((stage,), 100), 3)] == [(1,), (2,), (0,)]


@pytest.mark.parametrize("seed", range(150))
def test_up_to_three_stages_of_any_shape_are_solved_exactly(seed: int) -> None:
    random = np.random.default_rng(seed)
    sources = directed_acyclic(random, int(random.integers(1, 4)), density=0.5)
    problem = random_problem(seed, sources, options=7, cascading=True)
    found = plan_esg(problem, 5)
    assert figures(found) == figures(plan_brute_force(problem, 5))
    assert found == [path_of(problem, path.choices) for path in found]


@pytest.mark.parametrize("slack", [0.05, 0.5, 0.95])
def test_the_blades_spare_the_five_best_of_sixteen_million_paths(slack: float) -> None:
    problem = realistic_problem(3, chain(3), slack)
    found, best = plan_esg(problem, 5), plan_brute_force(problem, 5)
    assert [path.choices for path in found] == [path.choices for path in best]


@pytest.mark.parametrize("seed", range(50))
def test_longer_pipelines_are_planned_in_groups_and_keep_to_the_budget(seed: int) -> None:
    random = np.random.default_rng(seed)
    sources = directed_acyclic(random, int(random.integers(4, 7)))
    problem = random_problem(seed, sources, options=4, cascading=True)
    found = plan_esg(problem, 3)
    assert found == [path_of(problem, path.choices) for path in found]
    assert all(path.latency_ns <= problem.budget_ns for path in found)
    for path, optimum in zip(found, plan_brute_force(problem, 3), strict=False):
        assert path.cost >= optimum.cost


def test_a_pipeline_of_forty_stages_is_planned() -> None:
    problem = random_problem(1, chain(40), options=64, slack=0.7)
    (path,) = plan_esg(problem)
    assert len(path.choices) == 40
    assert path.latency_ns <= problem.budget_ns


def test_a_bounded_number_of_partial_paths_is_kept() -> None:
    # Only the cheapest first stage goes on, and in time only with the quicker second one.
    assert figures(search_group(two_stages(80), 5, kept_paths=1)) == [(6.0, 70)]


def test_a_stage_without_options_is_named() -> None:
    stage = StageProblem("empty", np.zeros(0, np.int64), np.zeros(0))
    with pytest.raises(ConfigError, match="stage 'empty': no option"):
        plan_esg(Problem((stage,), 100))
