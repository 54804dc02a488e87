"""Groups: equal partitions share one agenda of what waits for them, so that a decision need not look at all of them."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.batcher.queues.fair_queue import Queue
    from sluice.batcher.state.model import PartitionState

Item = tuple[int, int, int, int, "Queue"]
"""(deadline of its head's stage, minus the depth of that stage, sequence number of the head, serial number, queue)."""
RETRY: tuple[int, int, int] = (-1, 0, 0)
"""What stands in the place of a head for work that is to be repeated: it comes first."""

NEVER_NS = 1 << 62
"""When a partition opens that is idle, or full."""

COMPACT_ABOVE = 64
COMPACT_FACTOR = 8
"""Items about partitions, at least and for each of them, before those out of date are dropped."""


class PartitionGroup:
    """The partitions of one kind and price that hold the same models: what one of them can run, any of them can.

    `waiting` has an item for the head of every queue that has work for this group, the most urgent first, but for those
    that are `aside`, because a policy waits: until a time (`timers`) or, those that are `parked` as well, until a
    partition has been idle for the time given there, which is at `gathered_ns` if it gets nothing else to do. Items are
    checked when they come up: in a queue by deadline a head is followed by a less urgent one, so that an item never
    comes up too late, and such a queue costs nothing in groups that have not come to it when it changes; others have to
    be notified for each head. `listed` has the serial numbers of those that count. Idle partitions, and those that
    open because their one batch is about to end, are listed in the same lazy way, until one joins, leaves, comes up or
    is lost.

    `price` is what a second of one costs. `backlog_ns` is the work that is promised but not dispatched. `wake_ns` is
    when the group is to be looked at next.
    """

    __slots__ = (
        "_free",
        "_idle",
        "_opening",
        "_serial",
        "aside",
        "backlog_ns",
        "gathered_ns",
        "kind",
        "listed",
        "models",
        "number",
        "only",
        "parked",
        "partitions",
        "price",
        "ready_count",
        "timers",
        "waiting",
        "wake_ns",
    )

    def __init__(self, number: int, kind: str, models: frozenset[str], price: float) -> None:
        self.number = number
        self.kind = kind
        self.price = price
        self.models = models
        self.partitions: dict[int, PartitionState] = {}
        self.only: PartitionState | None = None
        self.ready_count = 0
        self.backlog_ns = 0
        self.wake_ns: int | None = None
        self.aside: dict[Queue, int] = {}
        self.parked: dict[Queue, int] = {}
        self.gathered_ns: int | None = None
        self.waiting: list[Item] = []
        self.listed: dict[Queue, int] = {}
        self.timers: list[tuple[int, int, Queue]] = []
        # Partitions behind the time that they are ordered by, and their numbers: they themselves do not compare.
        self._idle: list[int] = []
        self._opening: list[tuple[int, int, PartitionState]] = []
        self._free: list[tuple[int, int, PartitionState]] = []
        self._serial = 0

    def holds(self, kind: str, price: float, models: frozenset[str]) -> bool:
        """Whether partitions like that belong here."""
        return self.kind == kind and self.price == price and self.models == models

    def become(self, partition: PartitionState, models: frozenset[str]) -> bool:
        """Hold other models, if the group is of that partition alone; what is promised stays promised."""
        if (self.only, self.kind, self.price) != (partition, partition.kind, partition.price):
            return False
        if self.ready_count != partition.ready:
            return False
        gone = self.models - models
        self.models = models
        for queue in [each for each in {**self.listed, **self.aside} if each.model in gone]:
            self.listed.pop(queue, None)
            self.aside.pop(queue, None)
            self.parked.pop(queue, None)
        return True

    def recount(self) -> None:
        """Note that a partition joined, left, came up or was lost."""
        members = list(self.partitions.values())
        self.ready_count = sum(partition.ready for partition in members)
        self.only = members[0] if len(members) == 1 else None
        self._compact()  # one by itself was not listed by when it is free

    def changed(self, partition: PartitionState) -> None:
        """Note that a partition of this group became ready, or got or lost a batch."""
        if not partition.ready:
            return
        batches = len(partition.batches)
        opens = batches == 1 and not partition.held
        partition.opening_ns = partition.free_at_ns - partition.hand_off_ns if opens else NEVER_NS
        if not batches:
            if not partition.listed_idle and not partition.held:
                partition.listed_idle = True
                heappush(self._idle, partition.number)
            if self.parked:
                self.gathered_ns = partition.idle_since_ns + min(self.parked.values())
            return
        if self.only is None:
            heappush(self._free, (partition.free_at_ns, partition.number, partition))
        if opens:
            heappush(self._opening, (partition.opening_ns, partition.number, partition))
        if len(self._free) + len(self._opening) > COMPACT_ABOVE + COMPACT_FACTOR * len(self.partitions):
            self._compact()

    def hold(self, partition: PartitionState) -> None:
        """Keep a partition from being given batches until it is `changed` and not held any more."""
        partition.opening_ns = NEVER_NS
        if partition.listed_idle:
            partition.listed_idle = False
            self._idle = sorted(each for each in self._idle if each != partition.number)

    def _compact(self) -> None:
        """Drop what is out of date in the lists of partitions."""
        busy = [partition for partition in self.partitions.values() if partition.ready and partition.batches]
        self._free = sorted((each.free_at_ns, each.number, each) for each in busy)
        opens = [each for each in busy if len(each.batches) == 1 and not each.held]
        self._opening = sorted((each.opening_ns, each.number, each) for each in opens)

    def idle(self) -> PartitionState | None:
        """The first partition that is ready and has nothing to do."""
        idle = self._idle
        while idle:
            partition = self.partitions.get(idle[0])
            if partition is not None:
                if partition.ready and not partition.batches:
                    return partition
                partition.listed_idle = False
            heappop(idle)
        return None

    def opening(self) -> PartitionState | None:
        """Of the partitions with one batch, that which may be given the next one first (at its `opening_ns`)."""
        opening = self._opening
        while opening:
            at_ns, _, partition = opening[0]
            if partition.opening_ns == at_ns:
                return partition
            heappop(opening)
        return None

    def open(self, now_ns: int) -> PartitionState | None:
        """A partition that may be given a batch now, the one that is to be free first; None if there is none."""
        if self._idle and (partition := self.idle()) is not None:
            return partition
        return self.opened(now_ns)

    def opened(self, now_ns: int) -> PartitionState | None:
        """Of the partitions that open, the one that may be given a batch now; None if there is none."""
        opening = self._opening
        while opening and opening[0][0] <= now_ns:
            at_ns, _, partition = opening[0]
            if partition.opening_ns == at_ns:
                return partition
            heappop(opening)
        return None

    def start_ns(self, now_ns: int) -> int:
        """When the next batch could start, by what is dispatched already."""
        if self.only is not None:
            return self.only.start_ns(now_ns)
        if self.partitions:
            if self.idle() is not None:
                return now_ns
            free = self._free
            while free:
                at_ns, _, partition = free[0]
                if partition.free_at_ns == at_ns and partition.batches:
                    return max(at_ns, now_ns)
                heappop(free)
        return min(partition.start_ns(now_ns) for partition in self.partitions.values())

    def start_after_backlog_ns(self, now_ns: int) -> int:
        """When work that arrives now could start, after all that is promised."""
        only = self.only
        if only is not None and only.ready:
            free_ns = only.free_at_ns
            if free_ns < now_ns:
                free_ns = now_ns
            return free_ns + (self.backlog_ns if only.account is None else only.account.paced_ns(self.backlog_ns))
        return self.start_ns(now_ns) + self.backlog_ns // (self.ready_count or len(self.partitions))

    def notify(self, queue: Queue) -> None:
        """Have a queue looked at for its present head (or what is to be repeated)."""
        self.parked.pop(queue, None)
        item = _item(queue, self._serial + 1)
        if item is not None:
            self._serial = self.listed[queue] = item[3]
            heappush(self.waiting, item)

    def most_urgent(self) -> Queue | None:
        """Take the queue whose head is the most urgent off the agenda."""
        waiting, listed = self.waiting, self.listed
        while waiting:
            _, _, sequence, serial, queue = waiting[0]
            if listed.get(queue) != serial:
                heappop(waiting)
                continue
            item = _item(queue, serial)
            if item is None:
                del listed[queue]
            elif item[2] == sequence:
                del listed[queue]
                heappop(waiting)
                return queue
            else:  # Another head: the queue's place is further back.
                heapreplace(waiting, item)
        return None

    def put_off(self, queue: Queue, until_ns: int, wanted_rows: int = 0) -> None:
        """Have a queue looked at again at a time, when it has another head, or when it holds that many rows."""
        self._serial += 1
        if wanted_rows < queue.wanted_rows:
            queue.wanted_rows = wanted_rows
        self.aside[queue] = until_ns
        heappush(self.timers, (until_ns, self._serial, queue))

    def park(self, queue: Queue, after_idle_ns: int) -> None:
        """Have a queue that is put off looked at again also when a partition has been idle for so long."""
        self.parked[queue] = after_idle_ns

    def recall(self) -> None:
        """Have everything looked at again that was put off or parked."""
        self._recall(list(self.aside))

    def ring(self, now_ns: int) -> None:
        """Bring back the queues whose time has come."""
        if self.gathered_ns is not None and self.gathered_ns <= now_ns:
            self.gathered_ns = None
            if self.idle() is not None:
                self._recall(list(self.parked))
        timers = self.timers
        while timers and timers[0][0] <= now_ns:
            until_ns, _, queue = heappop(timers)
            if self.aside.get(queue) == until_ns:
                self._recall([queue])

    def _recall(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            if queue in self.aside:
                del self.aside[queue]
                self.notify(queue)

    def next_ns(self) -> int | None:
        """When there is something to do next without an event, as far as partitions and timers go."""
        timers = self.timers
        while timers and self.aside.get(timers[0][2]) != timers[0][0]:
            heappop(timers)  # looked at meanwhile, for another reason
        next_ns = self.gathered_ns
        if timers and (next_ns is None or timers[0][0] < next_ns):
            next_ns = timers[0][0]
        if self.waiting and (partition := self.opening()) is not None:
            opening_ns = partition.opening_ns
            next_ns = opening_ns if next_ns is None or opening_ns < next_ns else next_ns
        return next_ns


def _item(queue: Queue, serial: int) -> Item | None:
    """The item of a queue, of which the most urgent one has the least; None for one that has nothing to do."""
    if queue.retries:
        return (*RETRY, serial, queue)
    if not queue.live:
        return None
    head = queue.head()
    return head.stage_deadline_ns, -head.stage, head.sequence, serial, queue
