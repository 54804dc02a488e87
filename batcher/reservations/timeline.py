"""The timeline of one partition: reserved slots, which never overlap, and the reservations that hold them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from sluice.batcher.state import Precedence, QueueKey

START = attrgetter("start_ns")
JOINS = 4
"""Most slots of its queue that a stage tries to join."""
WORTHWHILE = 1.6
"""A new slot has room for twice the rows if they take at most this many times as long."""
Part = tuple[int, int]
"""(request, stage): a member of a slot."""
MOVES = 256
"""Most slots that are moved to make room for one slot."""


class Slot:
    """A planned batch of one queue on one partition, from `start_ns` to `end_ns`.

    `rows` is the largest number of rows of its members; the slot is long enough for them.
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
        """Its latest end, so that the successors of its members can start in time."""
        return min(reservation.limit_ns(stage) for reservation, stage in self.members)

    def ready_ns(self) -> int:
        """The end of everything that its members wait for."""
        ready_ns = 0
        for reservation, stage in self.members:
            if reservation.precedence.before[stage]:
                ready_ns = max(ready_ns, reservation.ready_ns(stage))
        return ready_ns

    def sources(self) -> Iterator[Slot]:
        """The slots of the stages that its members wait for."""
        for reservation, stage in self.members:
            for source in reservation.precedence.before[stage]:
                slot = reservation.slots[source]
                if slot is not None:
                    yield slot

    def floor_ns(self) -> int:
        """Its earliest start, however other slots are moved: the end of the running stages that it needs."""
        floor_ns = self.timeline.free_ns
        for reservation, stage in self.members:
            for source in reservation.precedence.before[stage]:
                if reservation.ends[source] > floor_ns:
                    floor_ns = reservation.ends[source]
        return floor_ns


class Reservation:
    """The reserved slots of one request: one for each of its `pending` stages.

    A stage that has started has no slot; `ends` has its expected end, which is 0 once it is settled. `queues`
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
        """When the sources of a stage end; 0 if they have ended."""
        ready_ns = 0
        for source in self.precedence.before[stage]:
            slot = self.slots[source]
            end_ns = self.ends[source] if slot is None else slot.end_ns
            if end_ns > ready_ns:
                ready_ns = end_ns
        return ready_ns

    def limit_ns(self, stage: int) -> int:
        """The latest end of a stage: the first start of a stage that waits for it, or the deadline."""
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
        for stage in sorted(self.pending):
            self.vacate(stage)


class SlotProposal(NamedTuple):
    """A place for a stage: `slot` at these times (None: a new slot), once the slots in `moves` have new starts."""

    start_ns: int
    end_ns: int
    slot: Slot | None
    moves: dict[Slot, int]


class Moved(NamedTuple):
    """Where a slot was before it was moved."""

    slot: Slot
    start_ns: int
    end_ns: int


class Timeline:
    """The reserved slots of one partition.

    `lengths` has, by model, the longest times of batches of 1, 2, … rows, up to the largest batch. They do not fall
    with the number of rows, since rows may drop out. `free_ns` is the end of the running work. A search for a slot is
    O(slots between the earliest and the latest time + slots that are moved).
    """

    __slots__ = ("_open", "free_ns", "kind", "lengths", "models", "name", "price", "slots")

    def __init__(self, name: str, kind: str, price: float, lengths: Mapping[str, tuple[int, ...]]) -> None:
        self.name = name
        self.kind = kind
        self.price = price
        self.lengths = lengths
        self.models: frozenset[str] = frozenset()
        self.free_ns = 0
        self.slots: list[Slot] = []
        self._open: dict[QueueKey, list[Slot]] = {}  # slots that are not full, in order

    def takes(self, model: str, rows: int) -> bool:
        """True if a batch of the model with `rows` rows can run here."""
        return model in self.models and rows <= len(self.lengths[model])

    # -- search

    def latest(
        self, reservation: Reservation, stage: int, spare_ns: int, floor_ns: int, limit_ns: int, now_ns: int
    ) -> SlotProposal | None:
        """The latest slot of its queue that a stage can join, or a new slot if that takes less time.

        It begins at `floor_ns` or later and ends by `limit_ns`. Other slots are moved earlier if necessary. A new slot
        may be `spare_ns` longer than the request needs.
        """
        queue = reservation.queue(stage)
        new_ns = self._new_ns(reservation, stage, spare_ns)
        idle_ns = self._idle_ns(max(now_ns, self.free_ns), limit_ns)
        floor_ns = max(floor_ns, self.free_ns)
        slots = self._open.get(queue, ())
        last = bisect_left(slots, limit_ns, key=START) if slots else 0
        for slot in islice(reversed(slots[:last]), JOINS):
            length_ns = self._joint_ns(slot, reservation)
            added_ns = length_ns - (slot.end_ns - slot.start_ns)
            if not length_ns or added_ns >= new_ns or added_ns > idle_ns:
                continue
            before, after = self.neighbours(slot)
            end_ns = min(slot.limit_ns(), limit_ns)
            if after is not None and after.start_ns < end_ns:
                end_ns = after.start_ns
            start_ns = end_ns - length_ns
            if start_ns < floor_ns:
                break
            if start_ns >= slot.floor_ns():
                moves = make_room((before, *slot.sources()), start_ns, now_ns)
                if moves is not None:
                    return SlotProposal(start_ns, end_ns, slot, moves)
        return self._latest_gap(new_ns, floor_ns, limit_ns, now_ns) if new_ns <= idle_ns else None

    def _idle_ns(self, start_ns: int, end_ns: int) -> int:
        """The unreserved part of a time that begins before the first slot."""
        slots = self.slots
        index = bisect_left(slots, end_ns, key=START)
        idle_ns = end_ns - start_ns - sum([slot.end_ns - slot.start_ns for slot in slots[:index]])
        return idle_ns + max(slots[index - 1].end_ns - end_ns, 0) if index else idle_ns

    def _latest_gap(self, length_ns: int, floor_ns: int, limit_ns: int, now_ns: int) -> SlotProposal | None:
        slots = self.slots
        end_ns = limit_ns
        index = bisect_left(slots, limit_ns, key=START)
        if index and end_ns - length_ns >= floor_ns:
            moves = make_room((slots[index - 1],), end_ns - length_ns, now_ns)
            if moves is not None:
                return SlotProposal(end_ns - length_ns, end_ns, None, moves)
        while end_ns - length_ns >= floor_ns:
            if not index or slots[index - 1].end_ns <= end_ns - length_ns:
                return SlotProposal(end_ns - length_ns, end_ns, None, {})
            index -= 1
            if slots[index].start_ns < end_ns:
                end_ns = slots[index].start_ns
        return None

    def earliest(self, reservation: Reservation, stage: int, spare_ns: int, floor_ns: int, now_ns: int) -> SlotProposal:
        """The slot with the earliest end from `floor_ns` on; other slots are moved earlier if necessary."""
        queue = reservation.queue(stage)
        new_ns = self._new_ns(reservation, stage, spare_ns)
        packed_ns = max(self.free_ns, now_ns)  # the end of the slots passed over, packed as early as possible
        before: Slot | None = None
        for index, slot in enumerate(self.slots):
            start_ns = packed_ns if packed_ns > floor_ns else floor_ns
            if start_ns + new_ns <= slot.start_ns:
                moves = make_room((before,), start_ns, now_ns)
                if moves is not None:
                    return SlotProposal(start_ns, start_ns + new_ns, None, moves)
            ready_ns = slot.ready_ns()
            if ready_ns > packed_ns:
                packed_ns = ready_ns
            length_ns = self._joint_ns(slot, reservation) if slot.queue == queue else 0
            if length_ns:
                start_ns = max(packed_ns, floor_ns)
                limit_ns = slot.limit_ns()
                if index + 1 < len(self.slots):
                    limit_ns = min(limit_ns, self.slots[index + 1].start_ns)
                if start_ns + length_ns <= limit_ns:
                    moves = make_room((before,), start_ns, now_ns)
                    if moves is not None:
                        return SlotProposal(start_ns, start_ns + length_ns, slot, moves)
            packed_ns += slot.end_ns - slot.start_ns
            before = slot
        start_ns = max(self.free_ns if before is None else before.end_ns, floor_ns)
        return SlotProposal(start_ns, start_ns + new_ns, None, {})

    def _new_ns(self, reservation: Reservation, stage: int, spare_ns: int) -> int:
        """The length of a new slot, with room for rows that will arrive while it runs, as far as that is worthwhile.

        Otherwise an overload would fill the timeline with slots of one request each that cannot grow, which would halve
        the throughput of the partition. The cost: a request may be refused although a slot of its own would have fit.
        """
        lengths = self.lengths[reservation.queue(stage)[0]]
        rows = reservation.rows
        length_ns = lengths[rows - 1]
        most_ns = length_ns + spare_ns
        row_gap_ns = reservation.row_gaps_ns[stage]
        while rows < len(lengths) and row_gap_ns is not None and rows * row_gap_ns < length_ns:
            rows = min(2 * rows, len(lengths))
            if lengths[rows - 1] > min(most_ns, length_ns * WORTHWHILE):
                break
            length_ns = lengths[rows - 1]
        return length_ns

    def _joint_ns(self, slot: Slot, reservation: Reservation) -> int:
        """The length of a slot with the request in it; 0 if it cannot join, or both would be quicker apart."""
        lengths = self.lengths[slot.queue[0]]
        rows = reservation.rows
        joint = slot.rows + rows
        if joint > len(lengths) or lengths[joint - 1] > lengths[slot.rows - 1] + lengths[rows - 1]:
            return 0
        # Two stages of one request may depend on each other.
        if any(held is reservation for held, _ in slot.members):
            return 0
        return max(lengths[joint - 1], slot.end_ns - slot.start_ns)

    def neighbours(self, slot: Slot) -> tuple[Slot | None, Slot | None]:
        """The slots before and after."""
        slots = self.slots
        index = bisect_left(slots, slot.start_ns, key=START)
        return (slots[index - 1] if index else None, slots[index + 1] if index + 1 < len(slots) else None)

    # -- change

    def put(self, proposal: SlotProposal, reservation: Reservation, stage: int) -> list[Moved]:
        """Carry out a proposal that was just found; returns the previous places of the slots that it moved."""
        slot = proposal.slot
        moved = [Moved(other, other.start_ns, other.end_ns) for other in proposal.moves]
        for other, start_ns in proposal.moves.items():
            other.end_ns += start_ns - other.start_ns
            other.start_ns = start_ns
        if slot is None:
            queue = reservation.queue(stage)
            slot = Slot(self, queue, proposal.start_ns, proposal.end_ns)
            insort(self.slots, slot, key=START)
            insort(self._open.setdefault(queue, []), slot, key=START)
        else:
            moved.append(Moved(slot, slot.start_ns, slot.end_ns))
            slot.start_ns = proposal.start_ns
            slot.end_ns = proposal.end_ns
        slot.members.append((reservation, stage))
        slot.rows += reservation.rows
        reservation.slots[stage] = slot
        if slot.rows == len(self.lengths[slot.queue[0]]):
            self._close(slot)
        return moved

    def remove(self, slot: Slot, reservation: Reservation, stage: int) -> None:
        """Remove a stage from its slot, which shrinks towards its end, or is dropped with its last member."""
        reservation.slots[stage] = None
        slot.members.remove((reservation, stage))
        lengths = self.lengths[slot.queue[0]]
        full = slot.rows == len(lengths)
        slot.rows -= reservation.rows
        if not slot.members:
            if not full:
                self._close(slot)
            del self.slots[bisect_left(self.slots, slot.start_ns, key=START)]
            return
        slot.start_ns = max(slot.start_ns, slot.end_ns - lengths[slot.rows - 1])
        if full:
            insort(self._open.setdefault(slot.queue, []), slot, key=START)

    def _close(self, slot: Slot) -> None:
        """Let no more stages join a slot."""
        slots = self._open[slot.queue]
        del slots[bisect_left(slots, slot.start_ns, key=START)]
        if not slots:
            del self._open[slot.queue]

    def after_ns(self, at_ns: int) -> int:
        """The total length of the slots that begin at `at_ns` or later."""
        first = bisect_left(self.slots, at_ns, key=START)
        return sum([slot.end_ns - slot.start_ns for slot in islice(self.slots, first, None)])

    def due_ns(self, leaving: Collection[Part] = ()) -> int | None:
        """When the partition must be free: the start of the first slot that remains without the parts `leaving`."""
        for slot in self.slots:
            rows = slot.rows
            for reservation, stage in slot.members if leaving else ():
                if (reservation.request, stage) in leaving:
                    rows -= reservation.rows
            if rows == slot.rows:
                return slot.start_ns
            if rows:
                return max(slot.start_ns, slot.end_ns - self.lengths[slot.queue[0]][rows - 1])
        return None


def make_room(slots: Iterable[Slot | None], bound_ns: int, now_ns: int) -> dict[Slot, int] | None:
    """New, earlier starts of slots, so that `slots` end by `bound_ns`; None if that is impossible.

    Slots are moved as little as possible. They also move the slots before them on their partitions, and the slots of
    the stages that their members wait for. O(slots moved), which are at most `MOVES`.
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
