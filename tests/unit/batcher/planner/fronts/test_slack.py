import numpy as np
import pytest

from sluice.batcher.planner.fronts.slack import spend_slack
from sluice.batcher.planner.problem.problem import Problem, StageProblem

# The second stage ends beside the first, the third after both; the last runs off the path.
STAGES = (
    StageProblem("a", np.array([1, 3, 6]), np.array([9.0, 6.0, 5.0])),
    StageProblem("b", np.array([4, 5]), np.array([8.0, 7.0])),
    StageProblem("c", np.array([2, 4]), np.array([5.0, 1.0]), sources=(0, 1)),
    StageProblem("d", np.array([1, 50]), np.array([3.0, 2.0]), sources=(2,), probability=0.5, on_path=False),
)


@pytest.mark.parametrize(
    ("budget_ns", "choices"),
    [(6, (1, 0, 0, 1)), (7, (1, 1, 0, 1)), (8, (1, 0, 1, 1)), (9, (1, 1, 1, 1)), (10, (2, 1, 1, 1))],
)
def test_what_saves_most_for_its_time_is_changed_first_until_nothing_fits(
    budget_ns: int, choices: tuple[int, ...]
) -> None:
    assert spend_slack(Problem(STAGES, budget_ns), (0, 0, 0, 0)) == choices


def test_a_path_that_cannot_be_made_cheaper_is_kept() -> None:
    assert spend_slack(Problem(STAGES, 99), (2, 1, 1, 1)) == (2, 1, 1, 1)
