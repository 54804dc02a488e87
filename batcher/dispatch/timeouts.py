"""Timeouts of queued entries: when an entry cannot be in time, has waited too long, or moves behind the others."""

import enum
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.queues.priority_queue import PriorityQueue
from sluice.batcher.state import Entry

COMPACT = 1024
"""Least number of planned timeouts at which timeouts of entries that have left their queues are dropped."""


class TimeoutCause(enum.IntEnum):
    """The reason for a timeout."""

    LATE = 0
    """The entry cannot be in time, and its request is evicted instead of answered late."""
    EXPIRED = 1
    """The entry's timeout has expired, and its request is evicted."""
    DELAYED = 2
    """The entry's timeout has expired, and it moves behind the others of its priority level."""


REASONS = {TimeoutCause.LATE: "the deadline is out of reach", TimeoutCause.EXPIRED: ""}
"""The reason that the client gets with the outcome."""


class RequestTimeouts:
    """The times at which waiting entries time out, in the heap `planned`."""

    __slots__ = ("_compact_above", "_fleet", "_serial", "planned")

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._compact_above = COMPACT
        self._serial = 0
        self.planned: list[tuple[int, int, int, int, Entry, TimeoutCause]] = []

    def plan(self, entry: Entry, now_ns: int) -> None:
        """Evict the entry's request when it can no longer be in time."""
        model = self._fleet.models[entry.queue_key[0]]
        quickest_ns = min((estimate.expected_ns(entry.rows) for estimate in model.estimates.values()), default=0)
        late_ns = entry.stage_deadline_ns - self._fleet.hand_off_ns - quickest_ns - model.nearest_ns + 1
        self._add(entry, max(late_ns, now_ns), TimeoutCause.LATE)
        entry.late_timeout = self._serial

    def limit(self, entry: Entry, expires_ns: int | None, delay_ns: int | None, now_ns: int) -> None:
        """Set when an entry expires, and when it moves behind the others of its priority level."""
        for at_ns, cause in ((expires_ns, TimeoutCause.EXPIRED), (delay_ns, TimeoutCause.DELAYED)):
            if at_ns is not None:
                self._add(entry, max(at_ns, now_ns + 1), cause)

    def _add(self, entry: Entry, at_ns: int, cause: TimeoutCause) -> None:
        planned = self.planned
        if len(planned) > self._compact_above:
            planned[:] = [item for item in planned if _waits(item[4])]
            heapify(planned)
            self._compact_above = max(COMPACT, 2 * len(planned))
        # Copies of an entry have its sequence number, and may have been queued together with it.
        self._serial += 1
        heappush(planned, (at_ns, entry.sequence, entry.enqueued_ns, self._serial, entry, cause))

    def next_ns(self) -> int | None:
        """When the first entry times out; drops timeouts of entries that have left their queues in time."""
        planned = self.planned
        while planned and not _has_effect(planned[0][3], planned[0][4], planned[0][5]):
            heappop(planned)
        return planned[0][0] if planned else None

    def due(self, now_ns: int) -> Iterator[tuple[Entry, TimeoutCause]]:
        """The entries that time out now."""
        planned = self.planned
        while planned and planned[0][0] <= now_ns:
            *_, serial, entry, cause = heappop(planned)
            if entry.request.settled or not _has_effect(serial, entry, cause):
                continue
            if cause is TimeoutCause.DELAYED:
                queue = self._fleet.queues.get(entry.queue_key)
                assert isinstance(queue, PriorityQueue), "only priority levels have entries wait behind others"
                queue.delay(entry)
            yield entry, cause


def _has_effect(serial: int, entry: Entry, cause: TimeoutCause) -> bool:
    """True unless an entry has left its queue, or waits again, with a new timeout that evicts it.

    Only a live scheduler is asked for the next timeout, and drops such ones then: its replay must decide the same.
    """
    return entry.queued if cause else entry.late_timeout == serial and _waits(entry)


def _waits(entry: Entry) -> bool:
    return entry.queued or entry.retry_group is not None
