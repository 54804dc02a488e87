"""The exact planner against enumeration, on random pipelines of all shapes; a failure names its seed."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.interface.plan_data import CostToGo
from sluice.batcher.interface.planner_protocol import LiveOption
from sluice.batcher.planner.baselines.brute_force import plan_brute_force
from sluice.batcher.planner.exact import ExactPlanner, plan_exact
from sluice.batcher.planner.live import FewOptionsRanker, ManyOptionsRanker, StageRanker
from sluice.batcher.planner.problem.graph import tangle
from sluice.batcher.planner.problem.problem import Path, Problem
from sluice.models.units import INFINITE_NS
from tests.support.scheduling.planning import chain, directed_acyclic, longest_ns, random_problem, series_parallel

SEEDS = st.integers(0, 2**32 - 1)


def costs(paths: list[Path]) -> list[float]:
    return [path.cost for path in paths]


def series_parallel_problem(seed: int, *, cascading: bool = False) -> Problem:
    random = np.random.default_rng(seed)
    return random_problem(seed, series_parallel(random, int(random.integers(1, 7))), 5, cascading=cascading)


def check(problem: Problem, paths: list[Path]) -> None:
    """Assert that paths have the stated figures, are distinct, in order, and within the budget."""
    for path in paths:
        assert path.latency_ns == longest_ns(problem.stages, path.choices) <= problem.budget_ns
    assert len({path.choices for path in paths}) == len(paths)
    assert paths == sorted(paths, key=lambda path: (path.cost, path.latency_ns))


@settings(max_examples=700, deadline=None)
@given(SEEDS, st.integers(1, 8))
def test_the_best_paths_of_series_parallel_pipelines_are_those_of_brute_force(seed: int, count: int) -> None:
    problem = series_parallel_problem(seed)
    paths, expected = plan_exact(problem, count), plan_brute_force(problem, count)
    check(problem, paths)
    assert costs(paths) == costs(expected)
    assert [path.latency_ns for path in paths[:1]] == [path.latency_ns for path in expected[:1]]


@settings(max_examples=400, deadline=None)
@given(SEEDS, st.integers(1, 4))
def test_cascades_with_stages_that_seldom_run_are_planned_like_brute_force(seed: int, count: int) -> None:
    problem = series_parallel_problem(seed, cascading=True)
    paths = plan_exact(problem, count)
    check(problem, paths)
    assert costs(paths) == costs(plan_brute_force(problem, count))


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_the_best_path_of_any_small_pipeline_is_that_of_brute_force(seed: int) -> None:
    random = np.random.default_rng(seed)
    sources = directed_acyclic(random, int(random.integers(4, 7)))
    problem = random_problem(seed, sources, 4)
    paths = plan_exact(problem)
    check(problem, paths)
    assert costs(paths) == costs(plan_brute_force(problem))
    several = plan_exact(problem, 4)
    check(problem, several)
    assert costs(several[:1]) == costs(paths)
    if not tangle(sources):
        assert costs(several) == costs(plan_brute_force(problem, 4))


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_any_large_pipeline_is_planned_within_its_budget_if_its_quickest_path_is(seed: int) -> None:
    random = np.random.default_rng(seed)
    problem = random_problem(seed, directed_acyclic(random, int(random.integers(8, 20)), 0.25), 6)
    paths = plan_exact(problem, 2)
    check(problem, paths)
    fastest = ExactPlanner(problem).quickest()
    assert fastest.latency_ns == longest_ns(problem.stages, [int(s.latency_ns.argmin()) for s in problem.stages])
    assert bool(paths) == (fastest.latency_ns <= problem.budget_ns)
    assert all(path.cost <= fastest.cost for path in paths[:1])


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_more_time_never_costs_more(seed: int) -> None:
    problem = series_parallel_problem(seed)
    last = float("inf")
    for budget_ns in range(0, problem.budget_ns + 20, 7):
        paths = plan_exact(replace(problem, budget_ns=budget_ns))
        assert paths or last == float("inf")
        if paths:
            assert paths[0].cost <= last
            last = paths[0].cost


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.integers(4, 12), st.integers(1, 4))
def test_with_the_time_grid_plans_fit_and_cost_no_less_than_the_least(seed: int, points: int, count: int) -> None:
    random = np.random.default_rng(seed)
    shape = series_parallel if seed % 2 else directed_acyclic
    problem = random_problem(seed, shape(random, int(random.integers(2, 6))), 8)
    paths, expected = ExactPlanner(problem, points).paths(count), plan_brute_force(problem, count)
    check(problem, paths)
    assert bool(paths) == bool(expected)
    assert all(path.cost >= least.cost for path, least in zip(paths, expected, strict=False))


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_following_the_first_ranked_option_stage_by_stage_is_the_best_path(seed: int) -> None:
    problem = random_problem(seed, chain(4), 6)
    left_ns, cost = problem.budget_ns, 0.0
    for stage, rest in zip(problem.stages, ExactPlanner(problem).rests(), strict=True):
        ranked = StageRanker(stage.latency_ns, stage.cost, rest).rank(left_ns, 3)
        if not ranked:
            break
        left_ns -= int(stage.latency_ns[ranked[0]])
        cost += float(stage.cost[ranked[0]])
    else:
        assert [cost] == costs(plan_exact(problem))
        return
    assert plan_exact(problem) == []


@given(
    st.lists(st.tuples(st.integers(1, 16), st.integers(1, 40), st.floats(0.1, 9)), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 30), st.floats(0.1, 9)), max_size=4, unique_by=lambda step: step[0]),
    st.tuples(*[st.sampled_from([0, 3, 10, INFINITE_NS])] * 3),
    st.integers(-10, 80),
    st.integers(1, 20),
    st.integers(1, 17),
)
def test_options_are_ranked_alike_one_by_one_and_all_at_once(
    given_options: list[tuple[int, int, float]],
    steps: list[tuple[int, float]],
    waits_ns: tuple[int, ...],
    remaining_ns: int,
    rows: int,
    least_rows: int,
) -> None:
    options = [LiveOption(number % 3, *option) for number, option in enumerate(given_options)]
    rest = CostToGo(tuple(sorted(step[0] for step in steps)), tuple(sorted((step[1] for step in steps), reverse=True)))
    waits = list(waits_ns)[: max(option.group for option in options) + 1]
    one_by_one = FewOptionsRanker(options, rest).rank(remaining_ns, rows, waits, least_rows)
    assert one_by_one == ManyOptionsRanker(options, rest).rank(remaining_ns, rows, waits, least_rows)
