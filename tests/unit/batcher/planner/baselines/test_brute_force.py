import numpy as np
import pytest

from sluice.batcher.planner.baselines import brute_force
from sluice.batcher.planner.baselines.brute_force import plan_brute_force
from sluice.batcher.planner.problem.problem import Path, Problem, StageProblem
from sluice.models.errors import ConfigError
from tests.support.scheduling.planning import chain

STAGES = (
    StageProblem("a", np.array([1, 4, 4]), np.array([5.0, 2.0, 3.0])),
    StageProblem("b", np.array([6, 2]), np.array([1.0, 7.0]), sources=(0,)),
    StageProblem("c", np.array([9]), np.array([4.0]), probability=0.5),
)
BEST = [Path((1, 0, 0), 10, 5), Path((2, 0, 0), 10, 6), Path((0, 0, 0), 9, 8), Path((1, 1, 0), 9, 11)]


@pytest.mark.parametrize("block_paths", [1, 2, 1 << 18])
def test_all_paths_are_looked_at_in_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch, block_paths: int) -> None:
    monkeypatch.setattr(brute_force, "BLOCK_PATHS", block_paths)
    assert plan_brute_force(Problem(STAGES, 10), 4) == BEST
    assert plan_brute_force(Problem(STAGES, 9), 1) == BEST[2:3]
    assert plan_brute_force(Problem(STAGES, 8)) == []
    assert len(plan_brute_force(Problem(STAGES, 100), 99)) == 6


def test_too_many_paths_are_refused() -> None:
    stages = tuple(
        StageProblem(f"s{index}", np.ones(60, np.int64), np.ones(60), sources=before)
        for index, before in enumerate(chain(5))
    )
    with pytest.raises(ConfigError, match="777600000 paths, expected at most 50000000"):
        plan_brute_force(Problem(stages, 10))
