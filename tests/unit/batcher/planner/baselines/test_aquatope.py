"""Aquatope: a fixed number of trials, the best of those that fit."""

import numpy as np
import pytest

from sluice.batcher.planner.baselines.aquatope import plan_aquatope
from sluice.batcher.planner.problem.problem import Path, Problem, path_of
from sluice.models.errors import ConfigError
from tests.support.scheduling.planning import chain, random_problem, realistic_problem, with_budget


def plan(problem: Problem, seed: int = 1, count: int = 1) -> list[Path]:
    return plan_aquatope(problem, count, generator=np.random.default_rng(seed))


@pytest.mark.parametrize("sources", [chain(3), ((), (0,), (0,), (1, 2))])
def test_trials_that_fit_come_cheapest_first(sources: tuple[tuple[int, ...], ...]) -> None:
    problem = realistic_problem(7, sources)
    found = plan(problem, count=100)
    assert 2 < len(found) <= 70
    assert len(set(found)) == len(found)
    assert found == sorted(found, key=lambda path: path.cost)
    assert found == [path_of(problem, path.choices) for path in found]
    assert all(path.latency_ns <= problem.budget_ns for path in found)


def test_the_seed_settles_the_answer() -> None:
    problem = realistic_problem(7, chain(3))
    assert plan(problem, seed=2) == plan(problem, seed=2)


def test_it_learns_where_the_cheap_ones_are() -> None:
    gains = []
    for seed in range(5):
        problem = realistic_problem(seed, chain(3))
        random = np.random.default_rng(seed)
        trials = (path_of(problem, random.integers(0, 256, 3).tolist()) for _ in range(70))
        gains.append(plan(problem)[0].cost / min(path.cost for path in trials if path.latency_ns <= problem.budget_ns))
    assert np.median(gains) < 0.9


def test_nothing_is_found_where_nothing_fits() -> None:
    assert plan(with_budget(realistic_problem(7, chain(3)).stages, -1.0)) == []


def test_options_must_be_described() -> None:
    with pytest.raises(ConfigError, match="this planner needs the batch size and share of each option"):
        plan(random_problem(4, chain(2), options=9))
