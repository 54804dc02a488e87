"""The search for slots: one for every stage of a request, or none at all."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sluice.batcher.reservations.assignments import Assignment, Assignments, cost_of
from sluice.batcher.reservations.timeline import Moved, Reservation, Timeline


class ReservationRefusal(NamedTuple):
    """The best offer for a refused request: the soonest end found, and the least cost of an end in time.

    Both are None if no running partition holds its models. A `hopeless` request costs too much even on an idle machine.
    """

    completion_ns: int | None
    cost: float | None
    hopeless: bool = False


class PlacedStage(NamedTuple):
    """A stage that got a slot, and the slots that were moved to make room for it."""

    stage: int
    moved: list[Moved]


class _SoonestPlacement(NamedTuple):
    """Slots for all pending stages, each as soon as possible; no completion and no cost if a stage has no host."""

    trail: list[PlacedStage]
    completion_ns: int | None
    cost: float | None


def reserve_slots(
    timelines: Collection[Timeline],
    reservation: Reservation,
    assignments: Assignments,
    now_ns: int,
    max_cost: float | None,
) -> ReservationRefusal | None:
    """Reserve slots for all pending stages and return None, or reserve nothing and return the refusal.

    Assignments are tried one after the other, each as late as possible. When the first does not fit, the search finds
    the soonest completion over all partitions. If that is late, the request is refused. Otherwise the remaining
    assignments are tried. The soonest slots are the last resort, because slots in the near future block urgent
    requests.
    """
    deadline_ns = reservation.deadline_ns
    stages = max(len(reservation.pending), 1)
    least_cost: float | None = None
    soonest: _SoonestPlacement | None = None
    full: list[tuple[Sequence[Timeline], ...]] = []
    for assignment in assignments.in_order() if max_cost is None else assignments.by_cost:
        spare_ns = deadline_ns - now_ns - assignment.latency_ns
        if spare_ns < 0 or any(assignment.hosts[-len(hosts) :] == hosts for hosts in full):
            continue
        trail, failed = _place_late(reservation, assignment, spare_ns // stages, now_ns)
        if failed is None:
            if max_cost is None or assignment.cost <= max_cost:
                assignments.record_use(assignment)
                return None
            _undo(reservation, trail)
            least_cost = assignment.cost
            break
        full.append(assignment.hosts[failed:])
        if soonest is None:
            soonest = _place_soon(timelines, reservation, spare_ns // stages, now_ns)
            _undo(reservation, soonest.trail)
            if soonest.completion_ns is None or soonest.completion_ns > deadline_ns:
                return ReservationRefusal(soonest.completion_ns, soonest.cost)
    spare_ns = max(deadline_ns - now_ns - assignments.least_ns, 0)
    soonest = _place_soon(timelines, reservation, spare_ns // stages, now_ns)
    if soonest.completion_ns is None or soonest.cost is None:
        return ReservationRefusal(None, None)
    if soonest.completion_ns <= deadline_ns and (max_cost is None or soonest.cost <= max_cost):
        return None
    _undo(reservation, soonest.trail)
    in_time = (each for each in assignments.by_cost if each.latency_ns <= deadline_ns - now_ns)
    hopeless = max_cost is not None and not any(each.cost <= max_cost for each in in_time)
    if least_cost is None:
        return ReservationRefusal(soonest.completion_ns, soonest.cost, hopeless)
    return ReservationRefusal(min(soonest.completion_ns, deadline_ns), min(soonest.cost, least_cost), hopeless)


def _place_late(
    reservation: Reservation, assignment: Assignment, spare_ns: int, now_ns: int
) -> tuple[list[PlacedStage], int | None]:
    """Place all pending stages backwards from the deadline, or none; also returns the stage that did not fit."""
    trail: list[PlacedStage] = []
    for stage in reversed(reservation.precedence.stages):
        if stage in reservation.pending:
            floor_ns = max(now_ns + assignment.heads_ns[stage], reservation.ready_ns(stage))
            limit_ns = reservation.limit_ns(stage)
            best: tuple[bool, int] | None = None
            for timeline in assignment.hosts[stage]:
                proposal = timeline.latest(reservation, stage, spare_ns, floor_ns, limit_ns, now_ns)
                if proposal is not None and (best is None or (proposal.slot is not None, proposal.start_ns) > best):
                    best = (proposal.slot is not None, proposal.start_ns)
                    host, chosen = timeline, proposal
            if best is None:
                _undo(reservation, trail)
                return [], stage
            trail.append(PlacedStage(stage, host.put(chosen, reservation, stage)))
    return trail, None


def _place_soon(
    timelines: Collection[Timeline], reservation: Reservation, spare_ns: int, now_ns: int
) -> _SoonestPlacement:
    """Place the pending stages forwards, each where it ends first; places none if one of them has no host."""
    trail: list[PlacedStage] = []
    cost = 0.0
    for stage in reservation.precedence.stages:
        if stage in reservation.pending:
            queue = reservation.queue(stage)
            floor_ns = max(now_ns, reservation.ready_ns(stage))
            best: tuple[int, bool] | None = None
            for timeline in timelines:
                if timeline.takes(queue[0], reservation.rows):
                    proposal = timeline.earliest(reservation, stage, spare_ns, floor_ns, now_ns)
                    if best is None or (proposal.end_ns, proposal.slot is None) < best:
                        best = (proposal.end_ns, proposal.slot is None)
                        host, chosen = timeline, proposal
            if best is None:
                _undo(reservation, trail)
                return _SoonestPlacement([], None, None)
            trail.append(PlacedStage(stage, host.put(chosen, reservation, stage)))
            cost += cost_of(host, host.lengths[queue[0]][reservation.rows - 1])
    completion_ns = max((slot.end_ns for slot in reservation.slots if slot is not None), default=now_ns)
    return _SoonestPlacement(trail, completion_ns, cost)


def _undo(reservation: Reservation, trail: Sequence[PlacedStage]) -> None:
    """Undo placements, the last one first."""
    for step in reversed(trail):
        reservation.vacate(step.stage)
        for slot, start_ns, end_ns in step.moved:
            slot.start_ns = start_ns
            slot.end_ns = end_ns
