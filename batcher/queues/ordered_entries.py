"""The entries of a queue in the order of the batch policy."""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice

from sluice.batcher.state import Entry, QueueKey

Item = tuple[int, int, int, Entry]
"""(order in ns, minus the depth of the stage, sequence number, entry): sorts without ever comparing entries."""

COMPACT_ABOVE = 64
"""Dead items that are tolerated before they are removed (when they are also half of all)."""


def requeue(entry: Entry, key: QueueKey) -> None:
    """Record that an entry, which has left its queue, is to wait in another one."""
    entry.queue_key = key
    entry.queued = True
    entry.late = False


class OrderedEntries:
    """Entries in order, and behind them the late entries, which cannot be in time.

    A settled entry stays as a dead item until it reaches the front or too many items are dead. `last_ns` is not before
    the order of the last item.
    """

    __slots__ = ("_dead", "items", "last_ns", "late", "late_live", "live", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.live = 0
        self.last_ns = 0
        self.items: list[Item] = []
        self.late: deque[Item] = deque()
        self.late_live = 0
        self._dead = 0

    def push(self, item: Item) -> bool:
        """Add an item; True if it is the first now. O(1) if it is the latest, else O(log n) comparisons."""
        entry = item[3]
        items = self.items
        order_ns = item[0]
        if order_ns > self.last_ns:
            self.last_ns = order_ns
            items.append(item)
        elif not items or item > items[-1]:
            items.append(item)
        else:
            insort(items, item)
        self.rows += entry.rows
        self.live += 1
        first = items[0] if items[0][3].queued else self.first()
        return first is not None and first[3] is entry

    def discard(self, entry: Entry) -> None:
        """Remove one waiting entry."""
        entry.queued = False
        self.rows -= entry.rows
        self.live -= 1
        if entry.late:
            self.late_live -= 1
        else:
            self._dead += 1
        if self._dead > COMPACT_ABOVE and self._dead * 2 > len(self.items):
            self.items = [item for item in self.items if item[3].queued]
            self._dead = 0
        if len(self.late) > COMPACT_ABOVE and self.late_live * 2 < len(self.late):
            self.late = deque(item for item in self.late if item[3].queued)

    def remove(self, entries: Collection[Entry]) -> None:
        """Remove entries that run now. They may wait here again, so none of their items stays as a dead one."""
        for entry in entries:
            self.discard(entry)
        gone = set(entries)
        left = [item for item in self.items if item[3] not in gone]
        self._dead -= len(self.items) - len(left)
        self.items = left
        if any(entry.late for entry in entries):
            self.late = deque(item for item in self.late if item[3] not in gone)

    def first(self) -> Item | None:
        """The first item that can still be in time, else the first late one."""
        items = self.items
        if items and not items[0][3].queued:
            self._drop_dead()
            items = self.items
        if items:
            return items[0]
        return self.first_late()

    def first_late(self) -> Item | None:
        """The first of the late items."""
        late = self.late
        while late and not late[0][3].queued:
            late.popleft()
        return late[0] if late else None

    def expire(self, reachable_ns: int) -> list[Entry]:
        """Move entries ordered before `reachable_ns` behind the others, as late; returns them. O(1) each."""
        items = self.items
        if not items or items[0][0] >= reachable_ns:
            return []
        expired = []
        passed = bisect_left(items, (reachable_ns, -(1 << 30)))
        for item in items[:passed]:
            if item[3].queued:
                item[3].late = True
                self.late.append(item)
                self.late_live += 1
                expired.append(item[3])
            else:
                self._dead -= 1
        del items[:passed]
        return expired

    def first_not_before(self, order_ns: int) -> Item | None:
        """The first live item in time whose order is `order_ns` or later."""
        items = self.items
        if items and items[0][0] >= order_ns and items[0][3].queued:
            return items[0]
        for index in range(bisect_right(items, (order_ns, -(1 << 30))), len(items)):
            if items[index][3].queued:
                return items[index]
        return None

    def following(self, order_ns: int) -> Iterator[Entry]:
        """The entries in time whose order is `order_ns` or later."""
        items = self.items
        begin = bisect_left(items, (order_ns, -(1 << 30))) if order_ns else 0
        return (item[3] for item in islice(items, begin, None) if item[3].queued)

    def take(self, max_rows: int, from_ns: int, *, whatever: bool) -> tuple[list[Entry], int]:
        """Remove entries in time with an order of `from_ns` or later, of at most `max_rows` rows.

        With `whatever` the first entry is taken even if it is larger. Returns the entries and their rows.
        """
        items = self.items
        begin = bisect_left(items, (from_ns, -(1 << 30))) if from_ns and items and items[0][0] < from_ns else 0
        if self._dead or self.rows > self.live:
            end, rows = self._fitting(begin, max_rows, whatever=whatever)
            taken = [item[3] for item in items[begin:end] if item[3].queued]
            self._dead -= end - begin - len(taken)
        else:  # every entry has one row, the usual case
            end = begin + max(max_rows, int(whatever))
            taken = [item[3] for item in items[begin:end]]
            rows = len(taken)
        del items[begin:end]
        for entry in taken:
            entry.queued = False
        self.rows -= rows
        self.live -= len(taken)
        return taken, rows

    def take_first(self) -> Entry:
        """Remove the first entry that can still be in time, else the first late one; there must be one."""
        item = self.first()
        assert item is not None, "an entry is taken while there is one"
        return self.take_late() if item[3].late else self.take(1, 0, whatever=True)[0][0]

    def _fitting(self, begin: int, max_rows: int, *, whatever: bool) -> tuple[int, int]:
        """The end of the items that `take` removes, and the rows of those that wait."""
        rows = 0
        end = begin
        for item in islice(self.items, begin, None):
            entry = item[3]
            if entry.queued:
                if rows + entry.rows > max_rows and (rows or not whatever):
                    break
                rows += entry.rows
            end += 1
            if rows and rows >= max_rows:
                break
        return end, rows

    def take_late(self) -> Entry:
        """Remove the first late entry; there must be one."""
        item = self.first_late()
        assert item is not None, "a late entry is taken while there is one"
        self.late.popleft()
        entry = item[3]
        entry.queued = False
        self.late_live -= 1
        self.live -= 1
        self.rows -= entry.rows
        return entry

    def _drop_dead(self) -> None:
        items = self.items
        front = next((index for index, item in enumerate(items) if item[3].queued), len(items))
        del items[:front]
        self._dead -= front
