from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sluice.batcher.interface.plan_data import CostToGo
from sluice.batcher.planner.baselines.brute_force import plan_brute_force
from sluice.batcher.planner.exact import ExactPlanner, plan_exact
from sluice.batcher.planner.problem.problem import Path, Problem, StageProblem
from sluice.models.errors import ConfigError
from tests.support.scheduling.planning import chain, directed_acyclic, longest_ns, random_problem, realistic_problem

DIAMOND = ((), (0,), (0,), (1, 2))
NOTHING = CostToGo((0,), (0.0,))


def stage(
    name: str, *options: tuple[int, float], sources: Sequence[int] = (), probability: float = 1.0, on_path: bool = True
) -> StageProblem:
    latency_ns = np.array([latency for latency, _ in options], np.int64)
    cost = np.array([cost for _, cost in options], np.float64)
    return StageProblem(name, latency_ns, cost, (), tuple(sources), probability, on_path)


def two_stages(budget_ns: int) -> Problem:
    """Both quick: 3 ns for 12; the first slow: 6 for 9; the second slow: 7 for 6; both slow: 10 for 3."""
    first = stage("first", (1, 5), (4, 2), (4, 3))
    return Problem((first, stage("second", (6, 1), (2, 7), sources=[0])), budget_ns)


@pytest.mark.parametrize(
    ("budget_ns", "paths"),
    [
        (2, []),
        (3, [Path((0, 1), 3, 12)]),
        (6, [Path((1, 1), 6, 9)]),
        (9, [Path((0, 0), 7, 6)]),
        (10, [Path((1, 0), 10, 3)]),
        (1000, [Path((1, 0), 10, 3)]),
    ],
)
def test_the_cheapest_path_within_the_budget(budget_ns: int, paths: list[Path]) -> None:
    assert plan_exact(two_stages(budget_ns)) == paths


def test_the_best_paths_come_cheapest_first_options_off_the_front_among_them() -> None:
    assert plan_exact(two_stages(10), 4) == [
        Path((1, 0), 10, 3),
        Path((2, 0), 10, 4),
        Path((0, 0), 7, 6),
        Path((1, 1), 6, 9),
    ]
    assert len(plan_exact(two_stages(10), 99)) == 6


def test_of_equal_costs_the_quicker_comes_first() -> None:
    stages = (stage("a", (5, 1), (3, 2), (2, 3)), stage("b", (5, 3), (6, 2), (1, 4), sources=[0]))
    assert plan_exact(Problem(stages, 9), 3) == [Path((1, 1), 9, 4), Path((0, 2), 6, 5), Path((1, 0), 8, 5)]
    beside = (stage("a", (5, 1), (4, 1)), stage("b", (3, 2), (2, 2)))
    assert plan_exact(Problem(beside, 9)) == [Path((1, 1), 4, 3)]


def test_a_cascade_counts_costs_by_probability_and_latency_in_full() -> None:
    stages = (stage("small", (2, 1), (6, 0.5)), stage("large", (2, 9), (6, 6), sources=[0], probability=0.125))
    assert plan_exact(Problem(stages, 12)) == [Path((1, 1), 12, 1.25)]
    assert plan_exact(Problem(stages, 8)) == [Path((1, 0), 8, 1.625)]
    assert plan_exact(Problem(stages, 7)) == [Path((0, 0), 4, 2.125)]


def test_a_stage_off_the_path_takes_no_time_and_is_as_cheap_as_can_be() -> None:
    stages = (stage("small", (2, 1)), stage("large", (2, 9), (700, 4), sources=[0], probability=0.5, on_path=False))
    assert plan_exact(Problem(stages, 2)) == [Path((0, 1), 2, 3)]


@pytest.mark.parametrize(("probability", "cost"), [(0.0, 1.0), (1.0, 10.0)])
def test_a_stage_that_never_or_always_runs(probability: float, cost: float) -> None:
    stages = (stage("small", (2, 1)), stage("large", (2, 9), (5, 9), sources=[0], probability=probability))
    assert plan_exact(Problem(stages, 9)) == [Path((0, 0), 4, cost)]


def test_branches_share_the_time_and_a_combiner_takes_none() -> None:
    stages = (
        stage("prepare", (2, 1)),
        stage("a", (3, 8), (7, 2), sources=[0]),
        stage("b", (5, 6), (6, 5), sources=[0]),
        stage("vote", (0, 0), sources=[1, 2]),
    )
    assert plan_exact(Problem(stages, 6)) == []
    assert plan_exact(Problem(stages, 8), 2) == [Path((0, 0, 1, 0), 8, 14), Path((0, 0, 0, 0), 7, 15)]
    assert plan_exact(Problem(stages, 9)) == [Path((0, 1, 1, 0), 9, 8)]


def test_an_order_that_is_not_series_parallel_is_planned_exactly() -> None:
    options = ((1, 8), (4, 3), (6, 1))
    stages = (
        stage("a", *options),
        stage("b", *options),
        stage("c", *options, sources=[0, 1]),
        stage("d", (8, 2), (3, 9), sources=[1]),
    )
    assert plan_exact(Problem(stages, 1)) == plan_exact(Problem(stages, 3)) == []
    assert plan_exact(Problem(stages, 4)) == [Path((0, 0, 0, 1), 4, 33)]
    assert plan_exact(Problem(stages, 9)) == [Path((1, 0, 1, 0), 9, 16)]
    assert plan_exact(Problem(stages, 12)) == [Path((2, 1, 2, 0), 12, 7)]


def test_the_quickest_path_is_the_cheapest_of_those_and_asks_for_no_budget() -> None:
    assert ExactPlanner(two_stages(0)).quickest() == Path((0, 1), 3, 12)
    stages = (stage("a", (2, 1)), stage("b", (1, 9), (2, 3), (3, 1)), stage("c", (0, 0), sources=[0, 1]))
    assert ExactPlanner(Problem(stages, 0)).quickest() == Path((0, 1, 0), 2, 4)


def test_the_rest_of_a_chain_is_what_follows_each_stage() -> None:
    stages = (*two_stages(0).stages, stage("third", (1, 1), sources=[1], probability=0.5))
    assert ExactPlanner(Problem(stages, 100)).rests() == (CostToGo((3, 7), (7.5, 1.5)), CostToGo((1,), (0.5,)), NOTHING)


def test_the_rest_ends_at_the_budget_but_has_its_quickest_point() -> None:
    assert ExactPlanner(two_stages(5)).rests() == (CostToGo((2,), (7.0,)), NOTHING)
    assert ExactPlanner(two_stages(1)).rests() == (CostToGo((2,), (7.0,)), NOTHING)


def test_the_rest_of_a_branch_counts_what_joins_it_and_not_its_siblings() -> None:
    stages = (
        stage("prepare", (2, 1)),
        stage("a", (3, 8), (7, 2), sources=[0]),
        stage("b", (5, 6), sources=[0]),
        stage("vote", (1, 4), (2, 3), sources=[1, 2]),
    )
    after_branch = CostToGo((1, 2), (4.0, 3.0))
    assert ExactPlanner(Problem(stages, 100)).rests() == (
        CostToGo((6, 7, 8, 9), (18.0, 17.0, 12.0, 11.0)),
        after_branch,
        after_branch,
        NOTHING,
    )


def test_the_rest_in_an_order_that_is_not_series_parallel_counts_all_that_follows() -> None:
    stages = (
        stage("a", (1, 1)),
        stage("b", (1, 1)),
        stage("c", (2, 5), (3, 4), sources=[0, 1]),
        stage("d", (1, 8), (3, 7), sources=[1]),
        stage("e", (10, 16), sources=[2, 3]),
    )
    assert ExactPlanner(Problem(stages, 100)).rests() == (
        CostToGo((12, 13), (21.0, 20.0)),
        CostToGo((12, 13), (29.0, 27.0)),
        CostToGo((10,), (16.0,)),
        CostToGo((10,), (16.0,)),
        NOTHING,
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (stage("bad"), "stage 'bad': no option"),
        (stage("bad", (1, 1), (-1, 1)), "stage 'bad': option 1 takes -1 ns"),
        (stage("bad", (1 << 60, 1)), "stage 'bad': option 0 takes 1152921504606846976 ns"),
        (stage("bad", (1, 1), (2, float("nan"))), "stage 'bad': option 1 costs nan"),
        (stage("bad", (1, float("inf"))), "stage 'bad': option 0 costs inf"),
        (stage("bad", (1, 1), probability=1.5), r"stage 'bad': probability 1\.5"),
        (stage("bad", (1, 1), sources=[1]), "stage 'bad': source 1 does not come before it"),
        (StageProblem("bad", np.ones(2, np.int64), np.ones(3)), r"stage 'bad': latencies \(2,\) and costs \(3,\)"),
    ],
)
@pytest.mark.parametrize("solve", [plan_exact, plan_brute_force, ExactPlanner])
def test_figures_that_make_no_sense_are_refused_by_the_name_of_the_stage(
    solve: Callable[[Problem], object], bad: StageProblem, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        solve(Problem((stage("good", (1, 1)), bad), 10))


def test_a_problem_without_stages_is_refused() -> None:
    with pytest.raises(ConfigError, match="no stages"):
        plan_exact(Problem((), 10))


def test_a_plan_of_forty_stages_fits_and_uses_its_budget() -> None:
    problem = realistic_problem(0, chain(40))
    (path,) = plan_exact(problem)
    assert 0.99 * problem.budget_ns < path.latency_ns <= problem.budget_ns
    assert path.latency_ns == longest_ns(problem.stages, path.choices)


def test_four_thousand_options_a_stage_none_of_them_beaten() -> None:
    latency_ns = np.arange(1, 4097)
    stages = tuple(
        StageProblem(f"s{index}", latency_ns, (4096 - latency_ns).astype(np.float64), sources=before)
        for index, before in enumerate(chain(5))
    )
    (path,) = plan_exact(Problem(stages, 10_000))
    least = 5 * 4096 - 10_000
    assert path.latency_ns <= 10_000
    assert least <= path.cost <= 1.01 * least


def test_what_cannot_be_opened_is_planned_within_the_budget_whenever_the_quickest_fits() -> None:
    sources = directed_acyclic(np.random.default_rng(3), 40, 0.1)
    problem = random_problem(3, sources, 6, slack=0.0)
    planner = ExactPlanner(problem)
    assert [path.latency_ns for path in planner.paths(3)] == [problem.budget_ns]
    assert planner.quickest().latency_ns == problem.budget_ns
    roomy = random_problem(3, sources, 6, slack=1.0)
    (path,) = plan_exact(roomy)
    assert path.latency_ns <= roomy.budget_ns
    assert path.cost == sum(stage.cost.min() for stage in roomy.stages)
