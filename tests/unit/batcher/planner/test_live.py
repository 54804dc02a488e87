import numpy as np
import pytest

from sluice.batcher.interface.plan_data import CostToGo
from sluice.batcher.planner.exact import ExactPlanner, plan_exact
from sluice.batcher.planner.live import StageRanker
from tests.support.scheduling.planning import chain, realistic_problem

LATENCY_NS = np.array([1, 4, 6, 4])
COST = np.array([9.0, 3.0, 1.0, 4.0])
REST = CostToGo((2, 5), (7.0, 5.0))
"""With at least 5 ns left after them the options cost 14, 8, 6 and 9 in all, with 2 to 4 ns left 2 more."""


@pytest.mark.parametrize(
    ("remaining_ns", "ranked"),
    [(2, []), (3, [0]), (6, [1, 3, 0]), (8, [2, 1, 3, 0]), (9, [1, 2, 3, 0]), (11, [2, 1, 3, 0])],
)
def test_options_are_ranked_by_their_cost_and_that_of_the_rest_in_the_time_left(
    remaining_ns: int, ranked: list[int]
) -> None:
    # With 9 ns options 1 and 2 cost 8 each: the quicker comes first.
    ranker = StageRanker(LATENCY_NS, COST, REST)
    assert ranker.rank(remaining_ns) == ranked
    assert ranker.rank(remaining_ns, 2) == ranked[:2]


def test_only_live_options_are_ranked() -> None:
    ranker = StageRanker(LATENCY_NS, COST, REST)
    assert ranker.rank(11, live=np.array([True, False, False, True])) == [3, 0]
    assert ranker.rank(11, live=np.zeros(4, np.bool_)) == []


def test_an_option_waits_for_its_kind_of_partition() -> None:
    ranker = StageRanker(LATENCY_NS, COST, REST, kind=[0, 1, 1, 0])
    assert ranker.rank(11, waits_ns=[0, 0]) == [2, 1, 3, 0]
    assert ranker.rank(11, waits_ns=[0, 4]) == [3, 1, 0]
    assert ranker.rank(11, waits_ns=[0, 1 << 60]) == [3, 0]


def test_without_anything_left_to_do_the_last_stage_goes_by_its_own_cost() -> None:
    assert StageRanker(LATENCY_NS, COST, CostToGo((0,), (0.0,))).rank(4) == [1, 3, 0]


def test_of_many_options_the_first_is_that_of_the_best_path_and_none_is_named_twice() -> None:
    problem = realistic_problem(0, chain(3))
    first = problem.stages[0]
    ranked = StageRanker(first.latency_ns, first.cost, ExactPlanner(problem).rests()[0]).rank(problem.budget_ns)
    best = plan_exact(problem, 1)[0]
    assert ranked[0] == best.choices[0]
    assert len(set(ranked)) == 5
