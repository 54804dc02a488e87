"""Queues of work for one model and one batch key, in the order of the batch policy, shared fairly between pipelines."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace, merge

from sluice.batcher.queues.flow import Flow
from sluice.batcher.queues.response_order import ResponseOrder
from sluice.batcher.state import Entry

CONTENDED = 4
"""Number of full batches waiting from which pipelines are served by weight, not by deadline."""
NO_WAITERS = 1 << 62
"""A number of rows that no queue reaches: no group waits for the queue to grow."""
LATE_SHARE = 0.125
"""Least share of the taken rows for late entries: they yield to entries that can be in time, but not for ever."""


class Queue:
    """Entries waiting to be batched together, earliest first; bounded by admission.

    Every pipeline has a flow of its own. While few entries wait, the earliest deadline comes first. With more than
    `CONTENDED` batches waiting, every flow gets rows by its weight (start-time fair queueing, Goyal et al.,
    SIGCOMM'96): a pipeline that exceeds its share delays its own requests, not the requests of others.

    `last_ns` is not before the order of any entry. `late` counts the entries that cannot be in time. `retries` holds
    (parts of) failed batches: groups of entries that are dispatched unchanged, before all others. `wanted_rows` is the
    number of rows for which groups that deferred the queue wait; 0 when any change counts. `_virtual` is the virtual
    time of fair queueing: `served` of the latest flow just before it was served. `_credit` is the number of rows due to
    late entries.
    """

    __slots__ = (
        "_credit",
        "_flows",
        "_only",
        "_virtual",
        "batch_key",
        "key",
        "last_ns",
        "late",
        "live",
        "model",
        "retries",
        "rows",
        "wanted_rows",
    )
    response_order: ResponseOrder | None = None

    def __init__(self, model: str, batch_key: str) -> None:
        self.model = model
        self.batch_key = batch_key
        self.key = (model, batch_key)
        self.rows = 0
        self.live = 0
        self.last_ns = 0
        self.late = 0
        self.wanted_rows = NO_WAITERS
        self.retries: deque[list[Entry]] = deque()
        self._flows: dict[int, Flow] = {}
        self._only: Flow | None = None
        self._virtual = 0.0
        self._credit = 0.0

    def __bool__(self) -> bool:
        return self.live > 0 or bool(self.retries)

    @property
    def flows(self) -> Mapping[int, Flow]:
        """The flows by pipeline number."""
        return self._flows

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

    def push(self, entry: Entry, order_ns: int, weight: float = 1.0) -> bool:
        """Add an entry to the flow `entry.flow`; True if it is the first of the queue now."""
        rows = entry.rows
        self.rows += rows
        self.live += 1
        flow = self._only
        if flow is None or flow.number != entry.flow:
            flow = self._flow(entry.flow, weight)
        elif (
            flow.live > flow.late_live and order_ns > flow.last_ns
        ):  # the usual case: the latest entry of the only flow
            flow.last_ns = self.last_ns = order_ns
            flow.items.append((order_ns, -entry.stage, entry.sequence, entry))
            flow.rows += rows
            flow.live += 1
            return False
        if order_ns > self.last_ns:
            self.last_ns = order_ns
        first = flow.push((order_ns, -entry.stage, entry.sequence, entry))
        return first and (self._only is not None or self.head() is entry)

    def _flow(self, number: int, weight: float) -> Flow:
        flow = self._flows.get(number)
        if flow is None:
            flow = self._flows[number] = Flow(number, weight)
            self._only = flow if len(self._flows) == 1 else None
        if not flow.live:
            # An idle flow does not save up a right to more than its share.
            flow.served = max(flow.served, self._virtual)
        return flow

    def close_flow(self, number: int) -> None:
        """Forget the flow of a pipeline without entries here."""
        self._flows.pop(number, None)
        self._only = next(iter(self._flows.values())) if len(self._flows) == 1 else None

    def retry(self, group: list[Entry]) -> None:
        """Add a group of entries to be dispatched together, unchanged."""
        self.retries.append(group)
        for entry in group:
            entry.retry_group = group

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
        self._flows[entry.flow].discard(entry)
        self.late -= entry.late
        self.rows -= entry.rows
        self.live -= 1

    def expire(self, reachable_ns: int) -> bool:
        """Move entries with an order before `reachable_ns` behind the others, as late; True if there were any."""
        expired = sum([flow.expire(reachable_ns) for flow in self._flows.values()])
        if not self.late:
            self._credit = 0.0  # earlier late entries leave no credit to later ones
        self.late += expired
        return expired > 0

    def head(self) -> Entry:
        """The first entry that can be in time, else the first late one; the queue must hold an entry."""
        only = self._only
        if only is not None:
            items = only.items
            item = items[0] if items and items[0][3].queued else only.first()
            assert item is not None, "only a queue that holds an entry has a head"
            return item[3]
        firsts = [item for flow in self._flows.values() if flow.live and (item := flow.first()) is not None]
        in_time = [item for item in firsts if not item[3].late]
        return min(in_time or firsts)[3]

    def behind(self, order_ns: int) -> int:
        """An upper bound on the number of entries behind that order."""
        return min(sum(flow.behind(order_ns) for flow in self._flows.values()), self.live)

    def rows_behind(self, priority: int) -> int:
        """The rows that a request overtakes by its priority alone: none, since deadlines decide here."""
        return 0

    def first_not_before(self, order_ns: int) -> Entry | None:
        """The first entry in time whose order is `order_ns` or later."""
        if self._only is not None:
            item = self._only.first_not_before(order_ns)
        else:
            found = [flow.first_not_before(order_ns) for flow in self._flows.values()]
            item = min((each for each in found if each is not None), default=None)
        return None if item is None else item[3]

    def entries(self) -> Iterator[Entry]:
        """The entries in order, late ones last; the queue must not change meanwhile."""
        flows = self._flows.values()
        for items in ([flow.items for flow in flows], [flow.late for flow in flows]):
            yield from (item[3] for item in merge(*items) if item[3].queued)

    def companions(self, like: Entry | None = None) -> Iterator[Entry]:
        """The entries, in order, that may share a batch with `like`, or with the first entry without `like`."""
        return self.entries()

    def remove(self, entries: Sequence[Entry]) -> None:
        """Remove entries that run now."""
        for entry in entries:
            self.discard(entry)

    def take(self, max_rows: int, from_ns: int = 0) -> list[Entry]:
        """Remove entries in time with an order of `from_ns` or later, then late ones, of at most `max_rows` rows.

        At least one entry is taken if there is any. Late entries get the rows that are left, at least `LATE_SHARE`.
        """
        reserved, rows = self._late_entries(max_rows) if self.late else ([], 0)
        take = self._take_shared if self._only is None else self._only.take
        entries, rows_in_time = take(max_rows - rows, from_ns, whatever=not reserved)
        entries += reserved
        rows += rows_in_time
        while self.late and (found := self._first_late()) is not None:
            flow, entry = found
            if entries and rows + entry.rows > max_rows:
                break
            entries.append(self._take_late(flow))
            rows += entry.rows
        self.rows -= rows
        self.live -= len(entries)
        return entries

    def _first_late(self) -> tuple[Flow, Entry] | None:
        """The first late entry of all flows, and its flow."""
        found = [(item, flow.number) for flow in self._flows.values() if flow.late_live and (item := flow.first_late())]
        if not found:
            return None
        item, number = min(found)
        return self._flows[number], item[3]

    def _late_entries(self, max_rows: int) -> tuple[list[Entry], int]:
        """Take the late entries that are due by `LATE_SHARE`; returns them with their rows."""
        taken: list[Entry] = []
        rows = 0
        found = self._first_late()
        self._credit += max_rows * LATE_SHARE
        while found is not None:
            flow, entry = found
            # An entry that is larger than the batch runs by itself once it is due.
            if entry.rows > self._credit or (taken and rows + entry.rows > max_rows):
                break
            self._credit -= entry.rows
            rows += entry.rows
            taken.append(self._take_late(flow))
            found = self._first_late()
        return taken, rows

    def _take_late(self, flow: Flow) -> Entry:
        self.late -= 1
        return flow.take_late()

    def _take_shared(self, max_rows: int, from_ns: int, *, whatever: bool) -> tuple[list[Entry], int]:
        """As `Flow.take`, from several flows: by order while few entries wait, else from the least served flow."""
        fair = self.rows > CONTENDED * max_rows
        order = [
            ((flow.served if fair else 0.0, *item[:3]), number)
            for number, flow in self._flows.items()
            if (item := flow.first_not_before(from_ns)) is not None
        ]
        heapify(order)
        taken: list[Entry] = []
        rows = 0
        while order and rows < max_rows:
            number = order[0][1]
            flow = self._flows[number]
            item = flow.first_not_before(from_ns)
            assert item is not None, "a flow without an entry is not in the order"
            entry = item[3]
            if rows + entry.rows > max_rows and (taken or not whatever):
                break
            taken += flow.take(1, item[0], whatever=True)[0]
            rows += entry.rows
            if fair:
                self._virtual = flow.served
                flow.served += entry.rows / flow.weight
            following = flow.first_not_before(from_ns)
            if following is None:
                heappop(order)
            else:
                heapreplace(order, ((flow.served if fair else 0.0, *following[:3]), number))
        return taken, rows
