"""Ordering: what a model has run goes on in the order in which it was first dispatched."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from sluice.batcher.interface.events import BatchCompleted
from sluice.batcher.state import Batch, Entry, PartitionState

FinishedEntries = tuple[Sequence[Entry], BatchCompleted, PartitionState]
"""(entries that have run, what was reported of exactly their rows, where they ran)."""


class ResponseOrder:
    """Entries in the order of their dispatch, those that are tried again included, until they may go on.

    An entry whose request is settled holds no other back.
    """

    __slots__ = ("_done", "_order")

    def __init__(self) -> None:
        self._order: OrderedDict[int, Entry] = OrderedDict()
        self._done: dict[int, FinishedEntries] = {}

    @property
    def held(self) -> list[Entry]:
        """The entries that have run and may not go on yet."""
        return [self._order[sequence] for sequence in self._done]

    def holds(self, entry: Entry) -> bool:
        """True if an entry has run and may not go on yet."""
        return entry.sequence in self._done

    def add(self, entries: Iterable[Entry]) -> None:
        """Entries are dispatched, for the first time."""
        for entry in entries:
            self._order[entry.sequence] = entry

    def completed(self, batch: Batch, event: BatchCompleted) -> list[FinishedEntries]:
        """A batch has run: what may go on now, of this and of earlier ones."""
        free: list[FinishedEntries] = []
        first = 0
        for entry in batch.entries:
            last = first + entry.rows
            confidences = tuple(values[first:last] for values in event.confidences)
            done = ((entry,), msgspec.structs.replace(event, confidences=confidences), batch.partition)
            if entry.sequence in self._order:
                self._done[entry.sequence] = done
            else:  # it is settled, or ran in a slot that was reserved for it
                free.append(done)
            first = last
        return free + self.release()

    def release(self) -> list[FinishedEntries]:
        """The entries that may go on now that some request is settled."""
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
