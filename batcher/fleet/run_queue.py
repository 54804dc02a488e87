"""Run queues: the queues that wait for the partitions of a group, and the times to reconsider each group."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush, heapreplace

from sluice.batcher.fleet.partition_group import first_idle, first_opening, partition_changed
from sluice.batcher.queues.progress import planned_order
from sluice.batcher.queues.queue import Queue
from sluice.batcher.state import ModelState, PartitionGroup, PartitionState

RunItem = tuple[int, int, int, int, int, Queue]
"""The head's planned order (time and serial number), minus the depth of its stage, its sequence number; a serial
number of the item, and the queue."""
RETRY: tuple[int, int, int, int] = (-1, 0, 0, 0)
"""The item of a queue with retried entries: they come first."""


class RunQueue:
    """The queues that have work for one group of partitions, the most urgent first.

    A queue is in one of two states. A ready queue has an item in the heap `waiting`, and `ready` has the serial number
    of its valid item. A deferred queue waits because of its batch policy until the time in `deferred` (and in the heap
    `timers`). If it is in `waiting_for_idle`, it also becomes ready when a partition has been idle for the nanoseconds
    given there: at `idle_wakeup_ns` if the partition gets no other work.

    A run queue enters itself into `deferring` when it has a deferred queue.

    Items are checked when they reach the front. In a queue ordered by deadline, the next head is never more urgent, so
    its item never comes up too late. A change of such a queue costs nothing in groups that have not reached its item.
    Other queues must be notified for each head.
    """

    __slots__ = (
        "_deferring",
        "_serial",
        "deferred",
        "group",
        "idle_wakeup_ns",
        "ready",
        "timers",
        "waiting",
        "waiting_for_idle",
        "wake_ns",
    )

    def __init__(self, group: PartitionGroup, deferring: dict[RunQueue, None] | None = None) -> None:
        self.group = group
        self._deferring = {} if deferring is None else deferring
        self.waiting: list[RunItem] = []
        self.ready: dict[Queue, int] = {}
        self.deferred: dict[Queue, int] = {}
        self.waiting_for_idle: dict[Queue, int] = {}
        self.timers: list[tuple[int, int, Queue]] = []
        self.idle_wakeup_ns: int | None = None
        self.wake_ns: int | None = None
        self._serial = 0

    def partition_changed(self, partition: PartitionState) -> None:
        """Update the group and its waiting queues: a partition became ready, or got or lost a batch."""
        partition_changed(self.group, partition)
        if self.waiting_for_idle and partition.ready and not partition.batches:
            self.idle_wakeup_ns = partition.idle_since_ns + min(self.waiting_for_idle.values())

    def notify(self, queue: Queue) -> None:
        """Make a queue ready with its present head or its retried entries, unless they may not run here."""
        if queue.only is not None and queue.only != (self.group.kind, self.group.price):
            return
        if queue.host is not None and queue.host.group is not self.group:
            return
        self.waiting_for_idle.pop(queue, None)
        item = _item(queue, self._serial + 1)
        if item is not None:
            self._serial = self.ready[queue] = item[4]
            heappush(self.waiting, item)

    def most_urgent(self) -> Queue | None:
        """Remove and return the ready queue with the most urgent head."""
        waiting, ready = self.waiting, self.ready
        while waiting:
            _, _, _, sequence, serial, queue = waiting[0]
            if ready.get(queue) != serial:
                heappop(waiting)
                continue
            item = _item(queue, serial)
            if item is None:
                del ready[queue]
            elif item[3] == sequence:
                del ready[queue]
                heappop(waiting)
                return queue
            else:  # Another head: the queue belongs further back.
                heapreplace(waiting, item)
        return None

    def defer(self, queue: Queue, until_ns: int, wanted_rows: int = 0) -> None:
        """Reconsider a queue at `until_ns`, for a new head, or once it holds `wanted_rows` rows."""
        self._serial += 1
        queue.want(wanted_rows)
        self.deferred[queue] = until_ns
        self._deferring[self] = None
        heappush(self.timers, (until_ns, self._serial, queue))

    def wait_for_idle(self, queue: Queue, idle_ns: int) -> None:
        """Also reconsider a deferred queue once a partition has been idle for `idle_ns`."""
        self.waiting_for_idle[queue] = idle_ns

    def forget(self, models: frozenset[str]) -> None:
        """Drop the queues of models that the group no longer holds."""
        for queue in [each for each in {**self.ready, **self.deferred} if each.model in models]:
            self.ready.pop(queue, None)
            self.deferred.pop(queue, None)
            self.waiting_for_idle.pop(queue, None)

    def end_deferrals(self) -> None:
        """Make all deferred queues ready."""
        self._make_ready(list(self.deferred))

    def fire_timers(self, now_ns: int) -> None:
        """Make the deferred queues ready whose time has come."""
        if self.idle_wakeup_ns is not None and self.idle_wakeup_ns <= now_ns:
            self.idle_wakeup_ns = None
            if first_idle(self.group) is not None:
                self._make_ready(list(self.waiting_for_idle))
        timers = self.timers
        while timers and timers[0][0] <= now_ns:
            until_ns, _, queue = heappop(timers)
            if self.deferred.get(queue) == until_ns:
                self._make_ready([queue])

    def _make_ready(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            if queue in self.deferred:
                del self.deferred[queue]
                self.notify(queue)

    def next_ns(self) -> int | None:
        """When a partition or a timer requires reconsideration without an event; None for never."""
        timers = self.timers
        while timers and self.deferred.get(timers[0][2]) != timers[0][0]:
            heappop(timers)  # the queue became ready for another reason
        next_ns = self.idle_wakeup_ns
        if timers and (next_ns is None or timers[0][0] < next_ns):
            next_ns = timers[0][0]
        if self.waiting and (partition := first_opening(self.group)) is not None:
            opening_ns = partition.opening_ns
            next_ns = opening_ns if next_ns is None or opening_ns < next_ns else next_ns
        return next_ns


class WakeupQueue:
    """The groups by the times at which to reconsider them, in the heap `items`.

    `deferring` has all run queues with deferred queues, and maybe others. `run_queues` has one for each group.
    `check_ns` is when to check queues that changed or that no group can run; None for never.
    """

    __slots__ = ("check_ns", "deferring", "items", "run_queues")

    def __init__(self) -> None:
        self.items: list[tuple[int, int, RunQueue]] = []
        self.deferring: dict[RunQueue, None] = {}
        self.run_queues: dict[PartitionGroup, RunQueue] = {}
        self.check_ns: int | None = None

    @property
    def next_ns(self) -> int | None:
        """The next time to reconsider something; None until the next event."""
        items = self.items
        while items and items[0][2].wake_ns != items[0][0]:
            heappop(items)
        if items and (self.check_ns is None or items[0][0] < self.check_ns):
            return items[0][0]
        return self.check_ns

    def add(self, group: PartitionGroup) -> None:
        """Add a group without waiting queues."""
        self.run_queues[group] = RunQueue(group, self.deferring)

    def remove(self, group: PartitionGroup) -> None:
        """Drop a group without partitions."""
        self.deferring.pop(self.run_queues.pop(group), None)

    def end_deferrals(self, changed: PartitionGroup | None, now_ns: int) -> None:
        """Make all deferred queues ready, and reconsider their groups and the one that has `changed`."""
        run_queues = [each for each in self.deferring if each.deferred or each.group is changed]
        self.deferring.clear()
        if changed is not None and (own := self.run_queues[changed]) not in run_queues:
            run_queues.append(own)
        for run_queue in run_queues:
            run_queue.end_deferrals()
            self.wake_run_queue(run_queue, now_ns)

    def wake(self, group: PartitionGroup, at_ns: int) -> None:
        """Reconsider a group at `at_ns` or before."""
        self.wake_run_queue(self.run_queues[group], at_ns)

    def wake_run_queue(self, run_queue: RunQueue, at_ns: int) -> None:
        """As `wake`, for the group of a run queue, which may be gone."""
        if run_queue.wake_ns is None or at_ns < run_queue.wake_ns:
            run_queue.wake_ns = at_ns
            heappush(self.items, (at_ns, run_queue.group.number, run_queue))

    def wake_when_open(self, group: PartitionGroup, now_ns: int) -> None:
        """Reconsider a group as soon as one of its partitions may get a batch."""
        if first_idle(group) is not None:
            self.wake(group, now_ns)
        elif (partition := first_opening(group)) is not None:
            self.wake(group, max(partition.opening_ns, now_ns))

    def notify(self, queue: Queue, group: PartitionGroup, now_ns: int) -> None:
        """Offer a changed queue to a group as soon as one of its partitions may get a batch."""
        run_queue = self.run_queues[group]
        run_queue.deferred.pop(queue, None)
        run_queue.notify(queue)
        self.wake_when_open(group, now_ns)

    def notify_all(self, queue: Queue, model: ModelState, now_ns: int) -> None:
        """Offer a changed queue to all groups that hold its model."""
        for group in model.groups:
            self.notify(queue, group, now_ns)

    def due(self, now_ns: int) -> list[RunQueue]:
        """Remove and return the run queues of the groups to reconsider now."""
        items = self.items
        due: list[RunQueue] = []
        while items and items[0][0] <= now_ns:
            at_ns, _, run_queue = heappop(items)
            if run_queue.wake_ns == at_ns:
                run_queue.wake_ns = None
                run_queue.fire_timers(now_ns)
                due.append(run_queue)
        return due


def _item(queue: Queue, serial: int) -> RunItem | None:
    """The item of a queue, which is smaller for a more urgent queue; None for a queue without work."""
    if queue.retries:
        return (*RETRY, serial, queue)
    if not queue.live:
        return None
    head = queue.head()
    return *planned_order(head), -head.stage, head.sequence, serial, queue
