"""Response order: entries that have run continue in the order of their first dispatch."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from sluice.batcher.interface.events import BatchCompleted
from sluice.batcher.state import Batch, Entry, PartitionState

FinishedEntries = tuple[Sequence[Entry], BatchCompleted, PartitionState]
"""(entries that have run, the report on exactly their rows, their partition)."""


def one_by_one(batch: Batch, event: BatchCompleted) -> list[FinishedEntries]:
    """The entries of a batch that has run, each by itself."""
    finished: list[FinishedEntries] = []
    first = 0
    for entry in batch.entries:
        last = first + entry.rows
        confidences = tuple(values[first:last] for values in event.confidences)
        finished.append(((entry,), msgspec.structs.replace(event, confidences=confidences), batch.partition))
        first = last
    return finished


class ResponseOrder:
    """Dispatched and retried entries in the order of their first dispatch, until they may continue.

    An entry whose request is settled does not hold back others.
    """

    __slots__ = ("_done", "_order")

    def __init__(self) -> None:
        self._order: OrderedDict[int, Entry] = OrderedDict()
        self._done: dict[int, FinishedEntries] = {}

    @property
    def held(self) -> list[Entry]:
        """The entries that have run and may not continue yet."""
        return [self._order[sequence] for sequence in self._done]

    def holds(self, entry: Entry) -> bool:
        """True if an entry has run and may not continue yet."""
        done = self._done.get(entry.sequence)
        return done is not None and done[0][0] is entry  # and not a copy of it

    def add(self, entries: Iterable[Entry]) -> None:
        """Add entries that are dispatched for the first time."""
        for entry in entries:
            self._order[entry.sequence] = entry

    def completed(self, finished: Iterable[FinishedEntries]) -> list[FinishedEntries]:
        """Record single entries that have run; returns those, and earlier ones, that may continue now."""
        free: list[FinishedEntries] = []
        for done in finished:
            sequence = done[0][0].sequence
            if sequence in self._order:
                self._done[sequence] = done
            else:  # it is settled
                free.append(done)
        return free + self.release()

    def release(self) -> list[FinishedEntries]:
        """Remove and return the entries that may continue after a request was settled."""
        free: list[FinishedEntries] = []
        while self._order:
            sequence, entry = next(iter(self._order.items()))
            done = self._done.pop(sequence, None)
            if done is not None:
                free.append(done)
            elif not entry.request.settled:
                break
            del self._order[sequence]
        return free
