"""Evictions: when each entry that is rather given up than answered late can no longer make it."""

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from batcher.booked import BookedWork
from batcher.lifecycle import Entry
from batcher.placement import ModelState

COMPACT = 1024
"""Planned evictions, at least, before those of entries that have left their queues are dropped."""


class Evictions:
    """The instants from which on entries that wait cannot make it by themselves; `agenda` has the first one first.

    An entry that has a place reserved is given up when the place has passed.
    """

    __slots__ = ("_booked", "_compact_above", "_hand_off_ns", "_models", "agenda")

    def __init__(self, models: Mapping[str, ModelState], hand_off_ns: int, booked: BookedWork | None) -> None:
        self._models = models
        self._hand_off_ns = hand_off_ns
        self._booked = booked
        self._compact_above = COMPACT
        self.agenda: list[tuple[int, int, Entry]] = []

    def plan(self, entry: Entry, now_ns: int) -> None:
        """Have an entry looked at when it cannot make it any more."""
        model = self._models[entry.queue.model]
        quickest_ns = min(estimate.service_ns(entry.rows) for estimate in model.estimates.values())
        at_ns = max(entry.stage_deadline_ns - self._hand_off_ns - quickest_ns + 1, now_ns)
        agenda = self.agenda
        if len(agenda) > self._compact_above:
            agenda[:] = [item for item in agenda if _waits(item[2])]
            heapify(agenda)
            self._compact_above = max(COMPACT, 2 * len(agenda))
        heappush(agenda, (at_ns, entry.sequence, entry))

    def due(self, now_ns: int) -> Iterator[Entry]:
        """The entries to be evicted now."""
        agenda = self.agenda
        while agenda and agenda[0][0] <= now_ns:
            entry = heappop(agenda)[2]
            if entry.request.settled or not _waits(entry):
                continue
            passed_ns = None if self._booked is None else self._booked.passed_ns(entry)
            if passed_ns is not None and passed_ns > now_ns:
                heappush(agenda, (passed_ns, entry.sequence, entry))
            else:
                yield entry


def _waits(entry: Entry) -> bool:
    return entry.queued or entry.group is not None
