"""FaST-GShare: the most throughput per resource, or the tightest cover of a small rate."""

import numpy as np
import pytest

from sluice.batcher.planner.baselines.fast_gshare import plan_fast_gshare
from sluice.batcher.planner.problem.problem import Option, Problem, StageProblem, path_of
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_MS
from tests.support.scheduling.planning import chain, directed_acyclic, random_problem, realistic_problem

# 100 rows a second on an eighth, 400 on a quarter, 500 on a half, 800 on the whole machine.
OPTIONS = ((1, 0.125, 10), (8, 0.25, 20), (5, 0.5, 10), (40, 1.0, 50))


def choice(budget_ms: int, rate: float) -> int | None:
    described = tuple(
        Option("m:1", batch, f"kind{share}", 1, share, service_ms * NS_PER_MS) for batch, share, service_ms in OPTIONS
    )
    latency_ns = np.array([option.service_ns for option in described])
    stage = StageProblem("only", latency_ns, np.ones(len(described)), described, rate=rate)
    found = plan_fast_gshare(Problem((stage,), budget_ms * NS_PER_MS))
    return found[0].choices[0] if found else None


@pytest.mark.parametrize(
    ("budget_ms", "rate", "expected"),
    [
        (100, 0.0, 1),  # 1600 rows a second and machine
        (100, 1000.0, 1),
        (19, 0.0, 2),  # too slow: next 1000 against 800
        (100, 399.0, 1),  # what a single one of the best covers goes to the tightest
        (100, 99.0, 0),
        (100, 100.0, 1),  # more than the rate, not as much
        (9, 0.0, None),
    ],
)
def test_throughput_per_share_and_the_left_over(budget_ms: int, rate: float, expected: int | None) -> None:
    assert choice(budget_ms, rate) == expected


@pytest.mark.parametrize("seed", range(10))
def test_what_it_finds_fits(seed: int) -> None:
    planned = realistic_problem(seed, directed_acyclic(np.random.default_rng(seed), 5), slack=0.2)
    found = plan_fast_gshare(planned, 3)
    assert found == [path_of(planned, path.choices) for path in found]
    assert all(path.latency_ns <= planned.budget_ns for path in found)


def test_options_must_be_described() -> None:
    with pytest.raises(ConfigError, match="this planner needs the batch size and share of each option"):
        plan_fast_gshare(random_problem(4, chain(2), options=9))
