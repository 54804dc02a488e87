"""Orion: steps up from the smallest configuration until the objective is met."""

import numpy as np
import pytest

from sluice.batcher.planner.baselines.orion import plan_orion
from sluice.batcher.planner.problem.problem import Option, Path, Problem, StageProblem, path_of
from sluice.models.errors import ConfigError
from tests.support.scheduling.planning import chain, directed_acyclic, random_problem, realistic_problem


def stage(name: str, latencies: dict[tuple[float, int], int], sources: tuple[int, ...] = ()) -> StageProblem:
    """Options by (share, batch), each of which costs its share."""
    options = tuple(
        Option("m:1", batch, f"kind{share}", 1, share, latency) for (share, batch), latency in latencies.items()
    )
    return StageProblem(
        name,
        np.array(list(latencies.values())),
        np.array([option.share for option in options]),
        options,
        sources,
    )


FIRST = stage("first", {(0.5, 1): 60, (0.25, 1): 80, (0.25, 2): 90, (1.0, 1): 50})
SECOND = stage("second", {(0.25, 1): 100, (0.5, 1): 70, (0.5, 2): 65}, sources=(0,))


@pytest.mark.parametrize(
    ("budget_ns", "expected"),
    [
        (180, Path((1, 0), 180, 0.5)),  # both at their smallest
        (179, Path((1, 1), 150, 0.75)),  # the second stage gains 30, the first 20
        (149, Path((0, 1), 130, 1.0)),  # now the first gains 20, a larger batch of the second 5
        (120, Path((3, 1), 120, 1.5)),
        (115, Path((3, 2), 115, 1.5)),
    ],
)
def test_each_step_is_the_one_that_helps_most(budget_ns: int, expected: Path) -> None:
    assert plan_orion(Problem((FIRST, SECOND), budget_ns), 5) == [expected]


def test_nothing_is_found_when_the_largest_is_too_slow() -> None:
    assert plan_orion(Problem((FIRST, SECOND), 114)) == []


def test_branches_of_equal_length_do_not_stop_the_search() -> None:
    both = (stage("left", {(0.25, 1): 80, (0.5, 1): 40}), stage("right", {(0.25, 1): 80, (0.5, 1): 40}))
    assert plan_orion(Problem(both, 50)) == [Path((1, 1), 40, 1.0)]


def test_the_number_of_steps_is_bounded() -> None:
    assert plan_orion(Problem((FIRST, SECOND), 115)) != []
    assert plan_orion(Problem((FIRST, SECOND), 115), max_steps=1) == []


@pytest.mark.parametrize("seed", range(10))
def test_what_it_finds_fits(seed: int) -> None:
    problem = realistic_problem(seed, directed_acyclic(np.random.default_rng(seed), 5), slack=0.2)
    (path,) = plan_orion(problem)
    assert path == path_of(problem, path.choices)
    assert path.latency_ns <= problem.budget_ns


def test_options_must_be_described() -> None:
    with pytest.raises(ConfigError, match="stage 's0': this planner needs the batch size and share of each option"):
        plan_orion(random_problem(4, chain(2), options=9))
