"""Timeouts of queued entries: when they can no longer be in time, may not wait longer, or go behind the others."""

import enum
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.queues.priority_queue import PriorityQueue
from sluice.batcher.reservations.reserved_work import ReservedWork
from sluice.batcher.state import Entry

COMPACT = 1024
"""Planned timeouts, at least, before those of entries that have left their queues are dropped."""


class TimeoutCause(enum.IntEnum):
    """Why an entry may not wait any longer as it does."""

    LATE = 0
    """It can no longer be in time, and its request is evicted rather than answered late."""
    EXPIRED = 1
    """It has waited as long as it may, and its request is evicted."""
    DELAYED = 2
    """It has waited as long as it may ahead of the others of its priority level."""


REASONS = {TimeoutCause.LATE: "the deadline is out of reach", TimeoutCause.EXPIRED: ""}
"""The reason given to the client, beside the outcome."""


class RequestTimeouts:
    """The times at which waiting entries time out; the heap `planned` has the first one first.

    An entry with a reserved slot that would be late is evicted only when the slot has passed.
    """

    __slots__ = ("_compact_above", "_fleet", "_reserved", "planned")

    def __init__(self, fleet: Fleet, reserved: ReservedWork) -> None:
        self._fleet = fleet
        self._reserved = reserved
        self._compact_above = COMPACT
        self.planned: list[tuple[int, int, Entry, TimeoutCause]] = []

    def plan(self, entry: Entry, now_ns: int) -> None:
        """Evict the entry's request when it can no longer be in time."""
        model = self._fleet.models[entry.queue_key[0]]
        quickest_ns = min((estimate.service_ns(entry.rows) for estimate in model.estimates.values()), default=0)
        late_ns = entry.stage_deadline_ns - self._fleet.hand_off_ns - quickest_ns + 1
        self._add(entry, max(late_ns, now_ns), TimeoutCause.LATE)

    def limit(self, entry: Entry, expires_ns: int | None, delay_ns: int | None, now_ns: int) -> None:
        """Bound how long an entry waits, and how long it does so ahead of the others of its priority level."""
        for at_ns, cause in ((expires_ns, TimeoutCause.EXPIRED), (delay_ns, TimeoutCause.DELAYED)):
            if at_ns is not None:
                self._add(entry, max(at_ns, now_ns + 1), cause)

    def _add(self, entry: Entry, at_ns: int, cause: TimeoutCause) -> None:
        planned = self.planned
        if len(planned) > self._compact_above:
            planned[:] = [item for item in planned if _waits(item[2])]
            heapify(planned)
            self._compact_above = max(COMPACT, 2 * len(planned))
        heappush(planned, (at_ns, entry.sequence, entry, cause))

    def next_ns(self) -> int | None:
        """When the first entry times out; entries that were dispatched before they had waited too long are dropped."""
        planned = self.planned
        while planned and planned[0][3] and not planned[0][2].queued:
            heappop(planned)
        return planned[0][0] if planned else None

    def due(self, now_ns: int) -> Iterator[tuple[Entry, TimeoutCause]]:
        """The entries that time out now."""
        planned = self.planned
        while planned and planned[0][0] <= now_ns:
            _, _, entry, cause = heappop(planned)
            if entry.request.settled or not (entry.queued if cause else _waits(entry)):
                continue
            passed_ns = None if cause else self._reserved.passed_ns(entry)
            if passed_ns is not None and passed_ns > now_ns:
                heappush(planned, (passed_ns, entry.sequence, entry, cause))
                continue
            if cause is TimeoutCause.DELAYED:
                queue = self._fleet.queues.get(entry.queue_key)
                assert isinstance(queue, PriorityQueue), "only priority levels have entries wait behind others"
                queue.delay(entry)
            yield entry, cause


def _waits(entry: Entry) -> bool:
    return entry.queued or entry.retry_group is not None
