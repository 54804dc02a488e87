"""Evictions: what becomes of entries that still wait at a time."""

import enum
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from sluice.batcher.queues.priority_queue import PriorityQueue
from sluice.batcher.reservations.reserved_work import ReservedWork
from sluice.batcher.state.model import ModelState
from sluice.batcher.state.request import Entry

COMPACT = 1024
"""Planned evictions, at least, before those of entries that have left their queues are dropped."""


class TimeoutCause(enum.IntEnum):
    """What becomes of an entry."""

    LATE = 0
    """It can no longer be in time, and is rather given up than answered late."""
    EXPIRED = 1
    """It may not wait any longer, and is given up."""
    DELAYED = 2
    """It waits behind the others of its level."""


REASONS = {TimeoutCause.LATE: "the deadline is out of reach", TimeoutCause.EXPIRED: ""}
"""What there is to say of each beside that the time is over."""


class RequestTimeouts:
    """The instants at which something becomes of entries that wait; `agenda` has the first one first.

    An entry that would be late and has a place reserved is given up when the place has passed.
    """

    __slots__ = ("_compact_above", "_hand_off_ns", "_models", "agenda", "reserved")

    def __init__(self, models: Mapping[str, ModelState], hand_off_ns: int) -> None:
        self._models = models
        self._hand_off_ns = hand_off_ns
        self.reserved: ReservedWork | None = None
        self._compact_above = COMPACT
        self.agenda: list[tuple[int, int, Entry, TimeoutCause]] = []

    def plan(self, entry: Entry, now_ns: int) -> None:
        """Have an entry looked at when it cannot make it any more."""
        model = self._models[entry.queue.model]
        quickest_ns = min((estimate.service_ns(entry.rows) for estimate in model.estimates.values()), default=0)
        self._add(entry, max(entry.stage_deadline_ns - self._hand_off_ns - quickest_ns + 1, now_ns), TimeoutCause.LATE)

    def limit(self, entry: Entry, expires_ns: int | None, delay_ns: int | None, now_ns: int) -> None:
        """Bound how long an entry waits, and how long before the others of its level."""
        for at_ns, cause in ((expires_ns, TimeoutCause.EXPIRED), (delay_ns, TimeoutCause.DELAYED)):
            if at_ns is not None:
                self._add(entry, max(at_ns, now_ns + 1), cause)

    def _add(self, entry: Entry, at_ns: int, cause: TimeoutCause) -> None:
        """Have that become of an entry if it waits at a time."""
        agenda = self.agenda
        if len(agenda) > self._compact_above:
            agenda[:] = [item for item in agenda if _waits(item[2])]
            heapify(agenda)
            self._compact_above = max(COMPACT, 2 * len(agenda))
        heappush(agenda, (at_ns, entry.sequence, entry, cause))

    def next_ns(self) -> int | None:
        """When the first one is due; what was dispatched before it had waited too long is forgotten."""
        agenda = self.agenda
        while agenda and agenda[0][3] and not agenda[0][2].queued:
            heappop(agenda)
        return agenda[0][0] if agenda else None

    def due(self, now_ns: int) -> Iterator[tuple[Entry, TimeoutCause]]:
        """The entries that something becomes of now."""
        agenda = self.agenda
        while agenda and agenda[0][0] <= now_ns:
            _, _, entry, cause = heappop(agenda)
            if entry.request.settled or not (entry.queued if cause else _waits(entry)):
                continue
            passed_ns = None if cause or self.reserved is None else self.reserved.passed_ns(entry)
            if passed_ns is not None and passed_ns > now_ns:
                heappush(agenda, (passed_ns, entry.sequence, entry, cause))
                continue
            if cause is TimeoutCause.DELAYED:
                assert isinstance(entry.queue, PriorityQueue), "only levels have entries wait behind others"
                entry.queue.delay(entry)
            yield entry, cause


def _waits(entry: Entry) -> bool:
    return entry.queued or entry.retry_group is not None
