"""Schedules that are made with all times known."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from sluice.loadgen.papers.engines.esg_bounds import in_time_cheapest_first, in_time_first_come, most_in_time_of
from sluice.loadgen.papers.engines.esg_cluster import CELLS
from sluice.loadgen.papers.engines.first_fit import RequestPaths, TimedPath, in_time_by_first_fit

SLOW, QUICK = TimedPath(("slow",), (4,)), TimedPath(("quick",), (2,))


def test_a_request_takes_the_first_path_that_is_in_time() -> None:
    # Both fit on the slow instance one after the other only by a deadline of 8.
    assert in_time_by_first_fit([RequestPaths(0, 8, [SLOW])] * 2, {"slow": 1}) == [True, True]
    assert in_time_by_first_fit([RequestPaths(0, 7, [SLOW])] * 2, {"slow": 1}) == [True, False]
    assert in_time_by_first_fit([RequestPaths(0, 7, [SLOW, QUICK])] * 3, {"slow": 1, "quick": 1}) == [True] * 3


def test_stages_follow_each_other_in_gaps_between_others() -> None:
    chain = TimedPath(("a", "b"), (2, 3))
    # The first chain has a until 2 and b until 5. A stage of 3 fits behind it on a, one of 2 before it on b.
    requests = [
        RequestPaths(0, 5, [chain]),
        RequestPaths(0, 5, [TimedPath(("a",), (3,))]),
        RequestPaths(0, 2, [TimedPath(("b",), (2,))]),
        RequestPaths(0, 4, [TimedPath(("b",), (1,))]),
    ]
    assert in_time_by_first_fit(requests, {"a": 1, "b": 1}) == [True, True, True, False]


def test_what_is_refused_takes_no_time() -> None:
    # The chain has no time for its second stage, so that its first one is free for the next request.
    late = RequestPaths(0, 4, [TimedPath(("a", "b"), (2, 3))])
    assert in_time_by_first_fit([late, RequestPaths(0, 2, [TimedPath(("a",), (2,))])], {"a": 1, "b": 1}) == [
        False,
        True,
    ]


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=5),
)
def test_one_machine_has_no_more_in_time_than_by_trying_all_orders(jobs: list[tuple[int, int, int]]) -> None:
    requests = [RequestPaths(came, came + took + slack, [TimedPath(("m",), (took,))]) for came, took, slack in jobs]
    most = 0
    for order in permutations(requests):
        at, count = 0, 0
        for request in order:
            end = max(at, request.came_ns) + request.paths[0].times_ns[0]
            if end <= request.deadline_ns:
                at, count = end, count + 1
        most = max(most, count)
    found = [sum(in_time_by_first_fit(order, {"m": 1})) for order in permutations(requests)]
    assert max(found) == most


def test_schedules_of_the_cluster_are_between_nothing_and_the_bound() -> None:
    heavy = CELLS[6]
    first_come, cheapest_first = in_time_first_come(heavy, 1, 4), in_time_cheapest_first(heavy, 1, 4)
    assert 0 < first_come < cheapest_first <= most_in_time_of(heavy, 1, 4)
    assert in_time_first_come(CELLS[0], 1, 4) == in_time_cheapest_first(CELLS[0], 1, 4) > 0
