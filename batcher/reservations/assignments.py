"""Assignments of the stages of a request to groups of equal partitions, regardless of the load.

Phase 1 of the admission control of serverless accelerators (thesis, section 4.2): all assignments with their latency
and cost. The thesis drops assignments that are not Pareto optimal. Sluice drops them only when there are too many,
since under load the second best may be all that is left.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from sluice.batcher.reservations.timeline import Reservation, Timeline
from sluice.models.units import NS_PER_S

MAX_ASSIGNMENTS = 64
"""Assignments that are kept for a request, at most."""
CHEAPEST_EVERY = 8
"""One request in this many tries the cheapest assignment first, so that requests return to it after a rush."""


class Assignment(NamedTuple):
    """One assignment: `hosts` has, by stage, the partitions to choose from, which are equally fast and dear.

    `latency_ns` and `cost` are those of a request that runs by itself on an idle machine; `heads_ns` is when each
    stage begins then.
    """

    cost: float
    latency_ns: int
    heads_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]
    hosts: tuple[Sequence[Timeline], ...]


def cost_of(timeline: Timeline, length_ns: int) -> float:
    """The cost of `length_ns` of a partition's time."""
    return timeline.price * length_ns / NS_PER_S


class Assignments:
    """The assignments of requests that are alike, and the order in which to try them.

    `by_cost` has the cheapest first. Under load many cheap assignments fail one after the other, so the assignment of
    the last request is usually tried first. `least_ns` is the least latency of all assignments.
    """

    __slots__ = ("_asked", "_first", "by_cost", "least_ns")

    def __init__(self, timelines: Collection[Timeline], reservation: Reservation) -> None:
        self.by_cost = _assignments_of(timelines, reservation)
        self.least_ns = min((assignment.latency_ns for assignment in self.by_cost), default=0)
        self._first = 0
        self._asked = 0

    def in_order(self) -> list[Assignment]:
        """All assignments, in the order in which to try them when cost is no limit."""
        self._asked += 1
        if self._asked % CHEAPEST_EVERY == 0:
            self._first = 0
        return self.by_cost[self._first :] + self.by_cost[: self._first] if self._first else self.by_cost

    def record_use(self, assignment: Assignment) -> None:
        """Record that a request got this assignment."""
        if assignment is not self.by_cost[self._first]:
            self._first = self.by_cost.index(assignment)


def _assignments_of(timelines: Collection[Timeline], reservation: Reservation) -> list[Assignment]:
    """Assignments of the pending stages by cost, then by latency; none if a stage has no host.

    Returns all assignments if there are at most `MAX_ASSIGNMENTS`. Otherwise it returns that many Pareto optimal ones,
    including the cheapest and the quickest. O(stages * MAX_ASSIGNMENTS * groups).
    """
    found = [Assignment(0.0, 0, (), (), ())]
    for stage, model in enumerate(reservation.models):
        if model is None or stage not in reservation.pending:
            found = [_with_stage(kept, 0, 0.0, 0, ()) for kept in found]
            continue
        grown = []
        for hosts in _groups(timelines, model, reservation.rows):
            length_ns = hosts[0].lengths[model][reservation.rows - 1]
            cost = cost_of(hosts[0], length_ns)
            for kept in found:
                head_ns = max((kept.ends_ns[source] for source in reservation.precedence.before[stage]), default=0)
                grown.append(_with_stage(kept, head_ns, cost, length_ns, hosts))
        grown.sort(key=lambda assignment: assignment[:2])
        found = grown if len(grown) <= MAX_ASSIGNMENTS else _thinned(grown)
    return found


def _groups(timelines: Iterable[Timeline], model: str, rows: int) -> Iterable[Sequence[Timeline]]:
    groups: dict[tuple[str, float], list[Timeline]] = {}
    for timeline in timelines:
        if timeline.takes(model, rows):
            groups.setdefault((timeline.kind, timeline.price), []).append(timeline)
    return groups.values()


def _with_stage(kept: Assignment, head_ns: int, cost: float, length_ns: int, hosts: Sequence[Timeline]) -> Assignment:
    end_ns = head_ns + length_ns
    return Assignment(
        kept.cost + cost,
        max(kept.latency_ns, end_ns),
        (*kept.heads_ns, head_ns),
        (*kept.ends_ns, end_ns),
        (*kept.hosts, hosts),
    )


def _thinned(ordered: Sequence[Assignment]) -> list[Assignment]:
    """The Pareto optimal assignments in order of cost, thinned out evenly to `MAX_ASSIGNMENTS`."""
    front: list[Assignment] = []
    for assignment in ordered:
        if not front or assignment.latency_ns < front[-1].latency_ns:
            front.append(assignment)
    if len(front) <= MAX_ASSIGNMENTS:
        return front
    return [front[index * (len(front) - 1) // (MAX_ASSIGNMENTS - 1)] for index in range(MAX_ASSIGNMENTS)]
