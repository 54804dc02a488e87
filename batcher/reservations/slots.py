"""What is reserved: slots of time on partitions, and the reservation of one request that holds a part of some."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.batcher.reservations.timeline import Timeline

QueueKey = tuple[str, str]
"""(model key, batch key): what two requests must have in common to share a batch."""


MOVES = 256
"""Slots that are moved to make room for one, at most."""


class Precedence:
    """Which model stages of a pipeline come directly before and after each other.

    Made from what each stage waits for (stages in topological order) and whether it runs a model. Combiners take no
    time: they are left out, and what comes before them comes before what comes after them.
    """

    __slots__ = ("after", "before", "stages")

    def __init__(self, waits_for: Sequence[Collection[int]], runs: Sequence[bool]) -> None:
        before: list[set[int]] = []
        for sources in waits_for:
            before.append(set[int]().union(*({source} if runs[source] else before[source] for source in sources)))
        self.stages = tuple(stage for stage, is_model in enumerate(runs) if is_model)
        self.before = tuple(tuple(sorted(sources)) for sources in before)
        self.after = tuple(
            tuple(later for later in self.stages if stage in before[later]) for stage in range(len(before))
        )


class Slot:
    """A planned batch of one queue on one partition, from `start_ns` to `end_ns`.

    `rows` is the most that its members can bring; it is long enough for as many.
    """

    __slots__ = ("end_ns", "members", "queue", "rows", "start_ns", "timeline")

    def __init__(self, timeline: Timeline, queue: QueueKey, start_ns: int, end_ns: int) -> None:
        self.timeline = timeline
        self.queue = queue
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.rows = 0
        self.members: list[tuple[Reservation, int]] = []

    def limit_ns(self) -> int:
        """By when it has to be over, for what waits for its members."""
        return min(reservation.limit_ns(stage) for reservation, stage in self.members)

    def ready_ns(self) -> int:
        """By when all that its members wait for is over."""
        ready_ns = 0
        for reservation, stage in self.members:
            if reservation.precedence.before[stage]:
                ready_ns = max(ready_ns, reservation.ready_ns(stage))
        return ready_ns

    def sources(self) -> Iterator[Slot]:
        """The slots of what its members wait for."""
        for reservation, stage in self.members:
            for source in reservation.precedence.before[stage]:
                slot = reservation.slots[source]
                if slot is not None:
                    yield slot

    def floor_ns(self) -> int:
        """Before this it cannot begin, wherever other slots are moved: something that it needs is running."""
        floor_ns = self.timeline.free_ns
        for reservation, stage in self.members:
            for source in reservation.precedence.before[stage]:
                if reservation.ends[source] > floor_ns:
                    floor_ns = reservation.ends[source]
        return floor_ns


def make_room(slots: Iterable[Slot | None], bound_ns: int, now_ns: int) -> dict[Slot, int] | None:
    """New starts of slots that have to be moved earlier, so that `slots` are over by `bound_ns`; None if they cannot.

    Slots are moved by as little as will do, and others before them: those before them on their partitions, and those
    of what their members wait for. O(slots moved), which are at most `MOVES`.
    """
    starts: dict[Slot, int] = {}
    bounds = [(slot, bound_ns) for slot in slots if slot is not None]
    while bounds:
        slot, bound_ns = bounds.pop()
        length_ns = slot.end_ns - slot.start_ns
        if starts.get(slot, slot.start_ns) + length_ns <= bound_ns:
            continue
        start_ns = bound_ns - length_ns
        if start_ns < now_ns or start_ns < slot.floor_ns() or len(starts) == MOVES:
            return None
        starts[slot] = start_ns
        before, _ = slot.timeline.neighbours(slot)
        if before is not None:
            bounds.append((before, start_ns))
        bounds.extend((source, start_ns) for source in slot.sources())
    return starts


class Reservation:
    """All that one request has reserved: a slot for each of its `pending` stages.

    A stage that has started has no slot any more, and `ends` says when it will be over; 0 once it is settled. `queues`
    has the queue of every stage, None for a combiner. `rows` is the most that a stage can run for.
    `row_gaps_ns` is how long it takes on average until the next row comes for the queue and one partition.
    """

    __slots__ = (
        "deadline_ns",
        "ends",
        "models",
        "pending",
        "precedence",
        "queues",
        "request",
        "row_gaps_ns",
        "rows",
        "slots",
    )

    def __init__(
        self,
        request: int,
        precedence: Precedence,
        queues: Sequence[QueueKey | None],
        row_gaps_ns: Sequence[int | None],
        rows: int,
        deadline_ns: int,
    ) -> None:
        self.request = request
        self.precedence = precedence
        self.queues = queues
        self.models = tuple(None if queue is None else queue[0] for queue in queues)
        self.row_gaps_ns = row_gaps_ns
        self.rows = rows
        self.deadline_ns = deadline_ns
        self.pending = set(precedence.stages)
        self.slots: list[Slot | None] = [None] * len(queues)
        self.ends = [0] * len(queues)

    def queue(self, stage: int) -> QueueKey:
        """The queue of a model stage."""
        queue = self.queues[stage]
        assert queue is not None, "a combiner is not queued"
        return queue

    def ready_ns(self, stage: int) -> int:
        """By when all that a stage waits for is over; 0 when it is already."""
        ready_ns = 0
        for source in self.precedence.before[stage]:
            slot = self.slots[source]
            end_ns = self.ends[source] if slot is None else slot.end_ns
            if end_ns > ready_ns:
                ready_ns = end_ns
        return ready_ns

    def limit_ns(self, stage: int) -> int:
        """By when a stage has to be over: the first start of what waits for it, or the deadline."""
        limit_ns = self.deadline_ns
        for later in self.precedence.after[stage]:
            slot = self.slots[later]
            if slot is not None and slot.start_ns < limit_ns:
                limit_ns = slot.start_ns
        return limit_ns

    def vacate(self, stage: int) -> None:
        """Give back the slot of a stage, if it has one."""
        slot = self.slots[stage]
        if slot is not None:
            slot.timeline.remove(slot, self, stage)

    def withdraw(self) -> None:
        """Give back all slots."""
        for stage in self.pending:
            self.vacate(stage)
