"""The agenda: when each group is to be looked at."""

from heapq import heappop, heappush

from sluice.batcher.queues.fair_queue import Queue
from sluice.batcher.state.pool import PartitionGroup


class WakeupQueue:
    """Groups by the times at which they are to be looked at, the first one first in `items`.

    `check_ns` is when to look at what no group can run, or what was disturbed; None for never.
    """

    __slots__ = ("check_ns", "items")

    def __init__(self) -> None:
        self.items: list[tuple[int, int, PartitionGroup]] = []
        self.check_ns: int | None = None

    @property
    def next_ns(self) -> int | None:
        """When there is something to look at next; None when something has to happen first."""
        items = self.items
        while items and items[0][2].wake_ns != items[0][0]:
            heappop(items)
        if items and (self.check_ns is None or items[0][0] < self.check_ns):
            return items[0][0]
        return self.check_ns

    def wake(self, group: PartitionGroup, at_ns: int) -> None:
        """Make sure that a group is looked at at `at_ns` or before."""
        if group.wake_ns is None or at_ns < group.wake_ns:
            group.wake_ns = at_ns
            heappush(self.items, (at_ns, group.number, group))

    def notify(self, queue: Queue, group: PartitionGroup, now_ns: int) -> None:
        """A queue has something new for a group: have it looked at as soon as a partition can take something."""
        group.aside.pop(queue, None)
        group.notify(queue)
        if group.idle() is not None:
            self.wake(group, now_ns)
        elif (partition := group.opening()) is not None:
            self.wake(group, max(partition.opening_ns, now_ns))

    def due(self, now_ns: int) -> list[PartitionGroup]:
        """Take off the groups that are to be looked at now."""
        items = self.items
        due: list[PartitionGroup] = []
        while items and items[0][0] <= now_ns:
            at_ns, _, group = heappop(items)
            if group.wake_ns == at_ns:
                group.wake_ns = None
                group.ring(now_ns)
                due.append(group)
        return due
