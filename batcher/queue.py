"""Queues of work for one model and one batch key, in the order of the batch policy."""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator

from batcher.lifecycle import Entry

Item = tuple[int, int, int, Entry]
"""(order in ns, minus the depth of the stage, sequence number, entry): sorts without ever comparing entries."""

COMPACT_ABOVE = 64
"""Dead items tolerated before a queue is compacted (when they are also half of it)."""


class Queue:
    """Entries waiting to be batched together, earliest first; bounded by admission.

    An entry that was settled meanwhile stays as a dead item until it comes to the front or too many are dead.
    `last_ns` is not before the order of the last item. `retries` holds (parts of) batches that failed: groups of
    entries dispatched as they are, before all others. `put_off` says that a policy looks at it again at a time.
    """

    __slots__ = ("_dead", "_items", "batch_key", "last_ns", "live", "model", "put_off", "retries", "rows")

    def __init__(self, model: str, batch_key: str) -> None:
        self.model = model
        self.batch_key = batch_key
        self.rows = 0
        self.live = 0
        self.last_ns = 0
        self.put_off = False
        self.retries: deque[list[Entry]] = deque()
        self._items: list[Item] = []
        self._dead = 0

    def __bool__(self) -> bool:
        return self.live > 0 or bool(self.retries)

    @property
    def waiting(self) -> int:
        """Entries that wait, those that are retried included."""
        return self.live + sum(map(len, self.retries))

    def push(self, entry: Entry, order_ns: int) -> bool:
        """Add an entry; whether it is the first now. O(1) when it is the latest, else O(log n) comparisons."""
        item = (order_ns, -entry.stage, entry.sequence, entry)
        items = self._items
        if order_ns > self.last_ns:
            self.last_ns = order_ns
            items.append(item)
        elif not items or item > items[-1]:
            items.append(item)
        else:
            insort(items, item)
        self.rows += entry.rows
        self.live += 1
        return self.live == 1 or items[0] is item

    def is_current(self, sequence: int) -> bool:
        """Whether `sequence` (0: work to be repeated) is still what comes first."""
        if self.retries:
            return sequence == 0
        return self.live > 0 and self.head().sequence == sequence

    def retry(self, group: list[Entry]) -> None:
        """Add entries that are to be dispatched together, as they are."""
        self.retries.append(group)
        for entry in group:
            entry.queue = self
            entry.group = group

    def take_retry(self) -> list[Entry]:
        """Remove the first group of those to be retried."""
        group = self.retries.popleft()
        for entry in group:
            entry.group = None
        return group

    def discard(self, entry: Entry) -> None:
        """Take out an entry that waits here."""
        group = entry.group
        if group is not None:
            entry.group = None
            group.remove(entry)
            if not group:
                self.retries.remove(group)
            return
        entry.queued = False
        self.rows -= entry.rows
        self.live -= 1
        self._dead += 1
        if self._dead > COMPACT_ABOVE and self._dead * 2 > len(self._items):
            self._items = [item for item in self._items if item[3].queued]
            self._dead = 0

    def head(self) -> Entry:
        """The first entry; the queue must hold one."""
        items = self._items
        if self._dead and not items[0][3].queued:
            front = next(index for index, item in enumerate(items) if item[3].queued)
            del items[:front]
            self._dead -= front
        return items[0][3]

    def behind(self, order_ns: int) -> int:
        """How many items would come after an entry of that order."""
        items = self._items
        return len(items) - bisect_right(items, (order_ns, 1))

    def first_not_before(self, order_ns: int) -> Entry | None:
        """The first live entry whose order is `order_ns` or later."""
        items = self._items
        if items and items[0][0] >= order_ns and items[0][3].queued:
            return items[0][3]
        for index in range(bisect_right(items, (order_ns, -(1 << 30))), len(items)):
            if items[index][3].queued:
                return items[index][3]
        return None

    def entries(self) -> Iterator[Entry]:
        """The live entries in order; the queue must not change meanwhile."""
        return (item[3] for item in self._items if item[3].queued)

    def take(self, max_rows: int) -> list[Entry]:
        """Remove entries from the front until the next would exceed `max_rows` (always at least one)."""
        items = self._items
        taken: list[Entry] = []
        rows = used = 0
        for item in items:
            entry = item[3]
            if entry.queued:
                if taken and rows + entry.rows > max_rows:
                    break
                entry.queued = False
                taken.append(entry)
                rows += entry.rows
                if rows >= max_rows:
                    used += 1
                    break
            else:
                self._dead -= 1
            used += 1
        del items[:used]
        self.rows -= rows
        self.live -= len(taken)
        return taken
