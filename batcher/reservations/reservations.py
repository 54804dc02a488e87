"""Reservations: a request is admitted only with a slot for each of its stages that keeps its deadline and its cost.

After the admission control of serverless accelerators (thesis, chapter 4). Deviations: partitions hold their models, so
that nothing is loaded here, and a slot is time on a partition; assignments are not sampled but tried in order of cost;
a slot is as late as possible, which leaves the near future to urgent requests, and is moved earlier to make room for
others.

Why no request that was admitted is late, as long as batches take no longer than their lengths: slots of a partition do
not overlap; whatever is started ends by the start of the first slot that stays (`due_ns`), so each slot can start when
its time has come; what its members wait for has the end of its own slot before that.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from typing import NamedTuple

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.reservations.assignments import Assignments
from sluice.batcher.reservations.search import ReservationRefusal, reserve_slots
from sluice.batcher.reservations.timeline import Part, Reservation, Slot, Timeline
from sluice.batcher.state import Precedence, QueueKey

Rows = Callable[[int, int], int]
"""The rows of (request, stage) that wait for their slot; 0 if the stage does not wait."""


GAP_WEIGHT = 0.1
"""Weight of one request in the smoothed time between two rows of a queue."""
DEMANDS = 1024
"""Queues whose demand is remembered: the most recently used ones."""


class ReservedBatch(NamedTuple):
    """A batch to start now: its members as (request, stage), their rows, and its latest end."""

    members: tuple[Part, ...]
    rows: int
    until_ns: int


class Reservations:
    """The timelines of all partitions and the reservations in them.

    Calls about requests without a reservation do nothing, so callers need not check for one.
    """

    def __init__(self, partitions: Iterable[PartitionConfig]) -> None:
        self._lengths: dict[str, dict[str, tuple[int, ...]]] = {}
        self.timelines = {
            config.name: Timeline(config.name, config.kind, config.price, self._lengths.setdefault(config.kind, {}))
            for config in partitions
        }
        self._reservations: dict[int, Reservation] = {}
        self._demand: dict[QueueKey, tuple[int, float | None]] = {}
        self._known: dict[tuple[Precedence, tuple[str | None, ...], int], Assignments] = {}

    def __contains__(self, request: int) -> bool:
        return request in self._reservations

    def slot(self, request: int, stage: int) -> Slot | None:
        """The slot of a stage, while it has one."""
        reservation = self._reservations.get(request)
        return None if reservation is None else reservation.slots[stage]

    # -- partitions

    def learn(self, kind: str, model: str, lengths_ns: Iterable[int]) -> None:
        """Set the lengths of batches of 1, 2, … rows of a model on partitions of a kind, hand-offs included.

        A batch counts as at least as long as every smaller one. An existing slot keeps its length until a stage joins.
        """
        self._lengths.setdefault(kind, {})[model] = tuple(accumulate(lengths_ns, max))
        self._known.clear()

    def length_ns(self, kind: str, model: str, rows: int) -> int:
        """The learned length of a batch of `rows` rows."""
        return self._lengths[kind][model][rows - 1]

    def unlearn(self, kind: str, model: str) -> None:
        """Forget a model without partitions and reservations."""
        del self._lengths[kind][model]

    def ready(self, partition: str, models: Iterable[str], now_ns: int) -> None:
        """Record that a partition is up with these models, whose lengths have been learned."""
        timeline = self.timelines[partition]
        timeline.models = frozenset(models)
        timeline.free_ns = now_ns
        self._known.clear()

    def lost(self, partition: str, now_ns: int) -> list[int]:
        """Record that a partition is gone; returns the requests that lose all slots, as some find no others in time.

        `reopen` must be called for the stages that ran there.
        """
        timeline = self.timelines[partition]
        held = self._withdraw(timeline)
        timeline.models = frozenset()
        return [reservation.request for reservation in held if not self._replace(reservation, now_ns)]

    def resized(self, partition: str, kind: str, price: float, now_ns: int) -> list[int]:
        """Record the new kind of a partition, with known lengths; like `lost`, but running batches continue."""
        timeline = self.timelines[partition]
        held = self._withdraw(timeline)
        timeline.kind, timeline.price, timeline.lengths = kind, price, self._lengths.setdefault(kind, {})
        return [reservation.request for reservation in held if not self._replace(reservation, now_ns)]

    def free(self, partition: str, at_ns: int) -> None:
        """Record when a partition is free again, which may be later or sooner than was expected."""
        self.timelines[partition].free_ns = at_ns

    # -- requests

    def reserve(
        self,
        request: int,
        precedence: Precedence,
        queues: tuple[QueueKey | None, ...],
        rows: int,
        deadline_ns: int,
        now_ns: int,
        max_cost: float | None = None,
    ) -> ReservationRefusal | None:
        """Reserve a slot for every model stage; with a refusal nothing is reserved.

        `queues` has the queue of each stage, None for a combiner; a batch key that is not known yet has to be one
        that no other request has. A request's cost is the price of batches of its own: shared ones, which are formed
        only when they take no longer than apart, cost less. O(stages * partitions * slots) for each placement tried:
        usually one, two when it cannot make it, at most `MAX_ASSIGNMENTS` and two.
        """
        gaps = [self._row_gap_ns(queue, rows, now_ns) if queue is not None else None for queue in queues]
        reservation = Reservation(request, precedence, queues, gaps, rows, deadline_ns)
        key = (precedence, reservation.models, rows)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Assignments(self.timelines.values(), reservation)
        refusal = reserve_slots(self.timelines.values(), reservation, known, now_ns, max_cost)
        if refusal is None:
            self._reservations[request] = reservation
        return refusal

    def started(self, partition: str, members: Iterable[Part], end_ns: int) -> None:
        """Record that a batch was dispatched to a partition, which is free again at `end_ns`."""
        self.timelines[partition].free_ns = end_ns
        for request, stage in members:
            self._leave(request, stage, end_ns)

    def settled(self, request: int, stage: int) -> None:
        """Give up the slot of a stage that is over, or was skipped."""
        self._leave(request, stage, 0)

    def forget(self, request: int) -> None:
        """Give up all slots of a request that has its outcome."""
        reservation = self._reservations.pop(request, None)
        if reservation is not None:
            reservation.withdraw()

    def reopen(self, request: int, stage: int, now_ns: int) -> bool:
        """Find a slot for a stage that must run again; False if there is none in time and all slots are given up."""
        reservation = self._reservations.get(request)
        if reservation is None:
            return False
        reservation.withdraw()
        reservation.pending.add(stage)
        reservation.ends[stage] = 0
        return self._replace(reservation, now_ns)

    def expire(self, partition: str, now_ns: int) -> list[Part]:
        """Drop the slots that should have started before `now_ns`; returns their members.

        This cannot happen while batches keep to their lengths. Later stages keep their slots.
        """
        timeline = self.timelines[partition]
        expired: list[Part] = []
        while timeline.slots and timeline.slots[0].start_ns < now_ns:
            for reservation, stage in list(timeline.slots[0].members):
                self._leave(reservation.request, stage, reservation.limit_ns(stage))
                expired.append((reservation.request, stage))
        return expired

    # -- dispatch

    def runnable(self, partition: str, start_ns: int, waiting: Rows) -> ReservedBatch | None:
        """The batch that a partition can start at `start_ns` without delaying the slots that remain.

        The members of a slot that wait already, in order of slots, and those of later slots of the queue that fit in
        as well; then the same from the timelines of partitions that are equally fast and dear. At the start of the
        first slot there is one. O(slots) when nothing can run.
        """
        timeline = self.timelines[partition]
        due_ns = timeline.due_ns()
        for owner in self._peers(timeline):
            for index, slot in enumerate(owner.slots):
                model = slot.queue[0]
                if model not in timeline.models:
                    continue
                first = owner is timeline and not index
                if first or due_ns is None or start_ns + timeline.lengths[model][0] <= due_ns:
                    run = self._gather(timeline, islice(owner.slots, index, None), slot.queue, start_ns, waiting)
                    if run is not None:
                        return run
        return None

    def _peers(self, timeline: Timeline) -> Iterator[Timeline]:
        yield timeline
        for other in self.timelines.values():
            if other is not timeline and other.kind == timeline.kind and other.price == timeline.price:
                yield other

    def _gather(
        self, timeline: Timeline, slots: Iterable[Slot], queue: QueueKey, start_ns: int, waiting: Rows
    ) -> ReservedBatch | None:
        """The waiting members of the first slot, and those of later slots of its queue that can be added."""
        lengths = timeline.lengths[queue[0]]
        run: ReservedBatch | None = None
        rows = limit_ns = 0
        for slot in slots:
            if slot.queue != queue:
                continue
            parts, more, within_ns = self._waiting(slot, len(lengths) - rows, waiting)
            if more and (run is None or lengths[rows + more - 1] <= lengths[rows - 1] + lengths[more - 1]):
                members = parts if run is None else (*run.members, *parts)
                within_ns = within_ns if run is None else min(within_ns, limit_ns)
                due_ns = timeline.due_ns(frozenset(members))
                until_ns = within_ns if due_ns is None else min(within_ns, due_ns)
                if start_ns + lengths[rows + more - 1] > until_ns:
                    break
                rows += more
                limit_ns = within_ns
                run = ReservedBatch(members, rows, until_ns)
            if run is None or rows == len(lengths):
                break
        return run

    @staticmethod
    def _waiting(slot: Slot, room: int, waiting: Rows) -> tuple[tuple[Part, ...], int, int]:
        """The waiting members of a slot that fit into `room` rows, their rows, and their latest end."""
        parts: list[Part] = []
        rows = 0
        limit_ns = slot.members[0][0].deadline_ns
        for reservation, stage in slot.members:
            more = waiting(reservation.request, stage)
            if more and rows + more <= room:
                parts.append((reservation.request, stage))
                rows += more
                limit_ns = min(limit_ns, reservation.limit_ns(stage))
        return tuple(parts), rows, limit_ns

    def _row_gap_ns(self, queue: QueueKey, rows: int, now_ns: int) -> int | None:
        """Record rows for a queue; returns the average time between two rows for one partition, None if not known."""
        demand = self._demand.pop(queue, None)
        gap_ns = None
        if demand is not None:
            last_ns, gap_ns = demand
            latest_ns = (now_ns - last_ns) / rows
            gap_ns = latest_ns if gap_ns is None else gap_ns + GAP_WEIGHT * (latest_ns - gap_ns)
        elif len(self._demand) == DEMANDS:
            del self._demand[next(iter(self._demand))]
        self._demand[queue] = (now_ns, gap_ns)
        if gap_ns is None:
            return None
        return int(gap_ns * sum(queue[0] in timeline.models for timeline in self.timelines.values()))

    # -- slots

    def _withdraw(self, timeline: Timeline) -> list[Reservation]:
        """Withdraw all slots of the reservations with a slot in a timeline; returns them, the most urgent first."""
        self._known.clear()
        hit = {reservation.request: reservation for slot in timeline.slots for reservation, _ in slot.members}
        for reservation in hit.values():
            reservation.withdraw()
        return sorted(hit.values(), key=lambda reservation: (reservation.deadline_ns, reservation.request))

    def _leave(self, request: int, stage: int, end_ns: int) -> None:
        reservation = self._reservations.get(request)
        if reservation is not None:
            reservation.vacate(stage)
            reservation.pending.discard(stage)
            reservation.ends[stage] = end_ns

    def _replace(self, reservation: Reservation, now_ns: int) -> bool:
        """Find new slots for all pending stages, at any cost; False if there are none and the reservation ends."""
        known = Assignments(self.timelines.values(), reservation)
        if reserve_slots(self.timelines.values(), reservation, known, now_ns, None) is None:
            return True
        del self._reservations[reservation.request]
        return False
