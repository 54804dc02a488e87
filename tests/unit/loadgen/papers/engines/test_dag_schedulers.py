"""Schedulers of DAGs: what each does with a few requests, by hand."""

import pytest

from sluice.loadgen.papers.engines.dag_schedulers import (
    Cluster,
    DagFunction,
    DagRequest,
    NodeKind,
    first_come,
    sampled_placements,
    whole_dags,
)
from sluice.models.profiles.latency_table import LatencyTable

SLOW = {"a": LatencyTable.from_ms({1: 10, 2: 20}), "b": LatencyTable.from_ms({1: 4, 2: 8})}
FAST = {"a": LatencyTable.from_ms({1: 1, 2: 1.5}), "b": LatencyTable.from_ms({1: 4, 2: 8})}
CHAIN = (DagFunction("a"), DagFunction("b", (0,)))


def cluster(slow: int = 1, fast: int = 1) -> Cluster:
    """Nodes at 1 unit a millisecond, and fast ones at 8; a chain of `a`, which is fast there, and `b`, which is not."""
    return Cluster((NodeKind(slow, 1.0, SLOW), NodeKind(fast, 8.0, FAST)), (CHAIN,))


def test_first_come_first_served_takes_the_quickest_idle_node_and_refuses_nobody() -> None:
    done = first_come(cluster(), [DagRequest(0, 0.0, 5.0), DagRequest(0, 0.0, 5.0)])
    # The first runs `a` on the fast node until 1 ms, then `b` there; the second runs both on the slow one.
    assert [(each.ended_ms, each.cost, each.is_in_time) for each in done] == [(5.0, 40.0, True), (14.0, 14.0, False)]


def test_whole_dags_are_batched_on_one_node_or_refused() -> None:
    scheduler = whole_dags(cluster())
    # The first begins at once. The second waits until 5 ms on the fast node, and the third joins it there.
    assert [scheduler.admit(DagRequest(0, at, 20.0)) for at in (0.0, 0.5, 1.0)] == [True, True, True]
    assert not scheduler.admit(DagRequest(0, 2.0, 3.0)), "it would be late on either node"
    assert [each.ended_ms for each in scheduler.finish()] == [5.0, 14.5, 14.5]


@pytest.mark.parametrize(("max_cost", "costs"), [(13.0, [12.0]), (100.0, [12.0]), (11.0, [])])
def test_a_sampled_placement_is_within_both_objectives(max_cost: float, costs: list[float]) -> None:
    scheduler = sampled_placements(cluster(), max_cost, sample=5, seed=1)
    # Of the four placements, `a` fast and `b` slow is as quick as both fast, and the cheapest.
    assert scheduler.admit(DagRequest(0, 0.0, 8.0)) is bool(costs)
    assert [each.cost for each in scheduler.finish()] == costs
