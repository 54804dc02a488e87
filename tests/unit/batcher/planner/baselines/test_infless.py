"""INFless: by itself, each stage takes what serves most per share within its part of the objective."""

import numpy as np
import pytest

from sluice.batcher.planner.baselines.infless import plan_infless
from sluice.batcher.planner.problem.problem import Option, Path, Problem, StageProblem, path_of
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_MS
from tests.support.scheduling.planning import chain, directed_acyclic, random_problem, realistic_problem


def problem(*options: tuple[int, float, int], budget_ms: int = 100, rate: float = 0.0, waits_ms: int = 0) -> Problem:
    """One stage with options (batch, share, service ms); option i costs i."""
    described = tuple(
        Option("m:1", batch, f"kind{share}", 1, share, service_ms * NS_PER_MS) for batch, share, service_ms in options
    )
    latency_ns = np.array([option.service_ns + waits_ms * NS_PER_MS for option in described])
    stage = StageProblem("only", latency_ns, np.arange(len(options), dtype=float), described, rate=rate)
    return Problem((stage,), budget_ms * NS_PER_MS)


def choice(planned: Problem) -> int | None:
    found = plan_infless(planned)
    return found[0].choices[0] if found else None


def test_a_batch_may_take_half_of_the_objective_and_a_single_row_all_of_it() -> None:
    assert choice(problem((1, 1.0, 100), (8, 1.0, 51))) == 0
    assert choice(problem((1, 1.0, 100), (8, 1.0, 50))) == 1
    assert choice(problem((1, 1.0, 101), (8, 1.0, 51))) is None


def test_the_most_rows_a_second_per_share_win() -> None:
    # 400 rows a second on all of the machine, 250 on half of it.
    assert choice(problem((16, 1.0, 40), (10, 0.5, 40))) == 1
    assert choice(problem((16, 1.0, 40), (10, 0.75, 40))) == 0


def test_a_batch_that_the_rate_does_not_fill_in_time_is_not_admitted() -> None:
    # After 20 of 100 ms of service, 80 ms are left to gather 8 rows: 100 a second.
    assert choice(problem((1, 1.0, 10), (8, 1.0, 20), rate=100.0)) == 1
    assert choice(problem((1, 1.0, 10), (8, 1.0, 20), rate=99.0)) == 0
    assert choice(problem((8, 1.0, 20), (4, 1.0, 20), rate=40.0)) is None


@pytest.mark.parametrize("rate", [1.0, 0.5, 1e-9, 5e-324])
def test_a_single_row_is_admitted_at_any_rate(rate: float) -> None:
    assert choice(problem((1, 1.0, 10), (8, 1.0, 20), rate=rate)) == 0


def test_an_option_whose_waits_do_not_fit_is_left_out() -> None:
    assert choice(problem((8, 1.0, 40), waits_ms=60)) == 0
    assert choice(problem((8, 1.0, 40), waits_ms=61)) is None


def test_each_stage_keeps_to_its_part_of_the_objective() -> None:
    ms = NS_PER_MS
    first = Option("a:1", 1, "small", 1, 0.5, 10 * ms), Option("a:1", 4, "small", 1, 0.5, 30 * ms)
    second = Option("b:1", 1, "small", 1, 0.5, 30 * ms), Option("b:1", 4, "small", 1, 0.5, 90 * ms)
    latencies = [np.array([option.service_ns for option in options]) for options in (first, second)]
    stages = (
        StageProblem("first", latencies[0], np.array([2.0, 1.0]), first),
        StageProblem("second", latencies[1], np.array([2.0, 1.0]), second, sources=(0,)),
    )
    # A quarter of the time is the first stage's: 2 * 30 ms of 60, though the second leaves 150 of its 180 unused.
    assert plan_infless(Problem(stages, 240 * ms), 3) == [Path((1, 1), 120 * ms, 2.0)]
    assert plan_infless(Problem(stages, 236 * ms), 3) == [Path((0, 0), 40 * ms, 4.0)]


@pytest.mark.parametrize("seed", range(10))
def test_what_it_finds_fits(seed: int) -> None:
    planned = realistic_problem(seed, directed_acyclic(np.random.default_rng(seed), 5), slack=0.2)
    found = plan_infless(planned)
    assert found == [path_of(planned, path.choices) for path in found]
    assert all(path.latency_ns <= planned.budget_ns for path in found)


def test_options_must_be_described() -> None:
    with pytest.raises(ConfigError, match="this planner needs the batch size and share of each option"):
        plan_infless(random_problem(4, chain(2), options=9))
