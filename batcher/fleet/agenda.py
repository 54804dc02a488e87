"""The agenda: when each pool is to be looked at."""

from heapq import heappop, heappush

from sluice.batcher.queues.fair_queue import Queue
from sluice.batcher.state.pool import PartitionGroup


class WakeupQueue:
    """Pools by the times at which they are to be looked at, the first one first in `items`.

    `check_ns` is when to look at what no pool can run, or what was disturbed; None for never.
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

    def wake(self, pool: PartitionGroup, at_ns: int) -> None:
        """Make sure that a pool is looked at at `at_ns` or before."""
        if pool.wake_ns is None or at_ns < pool.wake_ns:
            pool.wake_ns = at_ns
            heappush(self.items, (at_ns, pool.number, pool))

    def announce(self, queue: Queue, pool: PartitionGroup, now_ns: int) -> None:
        """A queue has something new for a pool: have it looked at as soon as a partition can take something."""
        pool.aside.pop(queue, None)
        pool.announce(queue)
        if pool.idle() is not None:
            self.wake(pool, now_ns)
        elif (partition := pool.opening()) is not None:
            self.wake(pool, max(partition.opening_ns, now_ns))

    def due(self, now_ns: int) -> list[PartitionGroup]:
        """Take off the pools that are to be looked at now."""
        items = self.items
        due: list[PartitionGroup] = []
        while items and items[0][0] <= now_ns:
            at_ns, _, pool = heappop(items)
            if pool.wake_ns == at_ns:
                pool.wake_ns = None
                pool.ring(now_ns)
                due.append(pool)
        return due
