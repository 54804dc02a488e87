"""Queues of work for one model and one batch key, in the order of the batch policy."""

from collections import deque
from collections.abc import Iterator, Sequence

from sluice.batcher.queues.ordered_entries import OrderedEntries
from sluice.batcher.queues.response_order import ResponseOrder
from sluice.batcher.state import Entry, PartitionState

NO_WAITERS = 1 << 62
"""A number of rows that no queue reaches: no group waits for the queue to grow."""
LATE_SHARE = 0.125
"""Least share of the taken rows for late entries: they yield to entries that can be in time, but not for ever."""


class Queue:
    """Entries waiting to be batched together, earliest first; bounded by admission.

    `late` counts the entries that cannot be in time. `retries` holds (parts of) failed batches: groups of entries that
    are dispatched unchanged, before all others. `wanted_rows` is the number of rows for which groups that deferred the
    queue wait; 0 when any change counts. `_credit` is the number of rows due to late entries. `only` is the (kind,
    price) of the partitions that its entries may run on; None for all. `host` is the only partition that they may run
    on, where sequences are; None without such.
    """

    __slots__ = (
        "_credit",
        "_entries",
        "batch_key",
        "host",
        "key",
        "late",
        "live",
        "model",
        "only",
        "retries",
        "rows",
        "wanted_rows",
    )
    response_order: ResponseOrder | None = None

    def __init__(self, model: str, batch_key: str) -> None:
        self.model = model
        self.batch_key = batch_key
        self.key = (model, batch_key)
        self.only: tuple[str, float] | None = None
        self.host: PartitionState | None = None
        self.rows = 0
        self.live = 0
        self.late = 0
        self.wanted_rows = NO_WAITERS
        self.retries: deque[list[Entry]] = deque()
        self._entries = OrderedEntries()
        self._credit = 0.0

    def __bool__(self) -> bool:
        return self.live > 0 or bool(self.retries)

    def want(self, rows: int) -> None:
        """Offer the queue again once it holds `rows` rows; 0 for any change."""
        if rows < self.wanted_rows:
            self.wanted_rows = rows

    def stop_waiting(self) -> None:
        """Offer the queue to all groups again: none waits for more rows."""
        self.wanted_rows = NO_WAITERS

    @property
    def waiting(self) -> int:
        """The number of waiting entries, retried ones included."""
        return self.live + sum(map(len, self.retries))

    def push(self, entry: Entry, order_ns: int) -> bool:
        """Add an entry; True if it is the first of the queue now."""
        rows = entry.rows
        self.rows += rows
        self.live += 1
        entries = self._entries
        if entries.live > entries.late_live and order_ns > entries.last_ns:  # the usual case: the latest entry
            entries.last_ns = order_ns
            entries.items.append((order_ns, -entry.stage, entry.sequence, entry))
            entries.rows += rows
            entries.live += 1
            return False
        return entries.push((order_ns, -entry.stage, entry.sequence, entry))

    def retry(self, group: list[Entry]) -> None:
        """Add a group of entries to be dispatched together, unchanged."""
        self.retries.append(group)
        for entry in group:
            entry.retry_group = group
            entry.queue_key = self.key

    def take_retry(self) -> list[Entry]:
        """Remove the first group of retried entries, and return it."""
        group = self.retries.popleft()
        for entry in group:
            entry.retry_group = None
        return group

    def discard(self, entry: Entry) -> None:
        """Remove one waiting entry."""
        group = entry.retry_group
        if group is not None:
            entry.retry_group = None
            group.remove(entry)
            if not group:
                self.retries.remove(group)
            return
        self._entries.discard(entry)
        self.late -= entry.late
        self.rows -= entry.rows
        self.live -= 1

    def expire(self, reachable_ns: int) -> list[Entry]:
        """Move entries with an order before `reachable_ns` behind the others, as late; returns them."""
        expired = self._entries.expire(reachable_ns)
        if not self.late:
            self._credit = 0.0  # earlier late entries leave no credit to later ones
        self.late += len(expired)
        return expired

    def head(self) -> Entry:
        """The first entry that can be in time, else the first late one; the queue must hold an entry."""
        items = self._entries.items
        item = items[0] if items and items[0][3].queued else self._entries.first()
        assert item is not None, "only a queue that holds an entry has a head"
        return item[3]

    def first_not_before(self, order_ns: int) -> Entry | None:
        """The first entry in time whose order is `order_ns` or later."""
        item = self._entries.first_not_before(order_ns)
        return None if item is None else item[3]

    def following(self, order_ns: int) -> Iterator[Entry]:
        """The entries in time whose order is `order_ns` or later."""
        return self._entries.following(order_ns)

    def entries(self) -> Iterator[Entry]:
        """The entries in order, late ones last; the queue must not change meanwhile."""
        for items in (self._entries.items, self._entries.late):
            yield from (item[3] for item in items if item[3].queued)

    def companions(self, like: Entry | None = None) -> Iterator[Entry]:
        """The entries, in order, that may share a batch with `like`, or with the first entry without `like`."""
        return self.entries()

    def remove(self, entries: Sequence[Entry]) -> None:
        """Remove entries that run now, none of which waits to be retried."""
        self._entries.remove(entries)
        self.late -= sum([entry.late for entry in entries])
        self.rows -= sum([entry.rows for entry in entries])
        self.live -= len(entries)

    def take(self, max_rows: int, from_ns: int = 0) -> list[Entry]:
        """Remove entries in time with an order of `from_ns` or later, then late ones, of at most `max_rows` rows.

        At least one entry is taken if there is any. Late entries get the rows that are left, at least `LATE_SHARE`.
        """
        late, rows = self._late_entries(max_rows) if self.late else ([], 0)
        entries, rows_in_time = self._entries.take(max_rows - rows, from_ns, whatever=not late)
        entries += late
        rows += rows_in_time
        while self.late and (item := self._entries.first_late()) is not None:
            entry = item[3]
            if entries and rows + entry.rows > max_rows:
                break
            entries.append(self._take_late())
            rows += entry.rows
        self.rows -= rows
        self.live -= len(entries)
        return entries

    def take_first(self) -> Entry:
        """Remove the head, and return it."""
        entry = self._entries.take_first()
        self.late -= entry.late
        self.rows -= entry.rows
        self.live -= 1
        return entry

    def _late_entries(self, max_rows: int) -> tuple[list[Entry], int]:
        """Take the late entries that are due by `LATE_SHARE`; returns them with their rows."""
        taken: list[Entry] = []
        rows = 0
        self._credit += max_rows * LATE_SHARE
        while (item := self._entries.first_late()) is not None:
            entry = item[3]
            # An entry that is larger than the batch runs by itself once it is due.
            if entry.rows > self._credit or (taken and rows + entry.rows > max_rows):
                break
            self._credit -= entry.rows
            rows += entry.rows
            taken.append(self._take_late())
        return taken, rows

    def _take_late(self) -> Entry:
        self.late -= 1
        return self._entries.take_late()
