"""The times of the last batches, each as a multiple of what the measured table says for its size."""

from bisect import bisect_left, insort
from collections import deque

WINDOW = 512
"""The number of the last times that are kept: of these, 26 are above the 95th percentile, give or take 5."""
ENOUGH = 20
"""A percentile is known after that number of times."""


class RecentTimes:
    """A window of the last `WINDOW` times, in the order in which they came and in that of their size."""

    __slots__ = ("_last", "_sorted")

    def __init__(self) -> None:
        self._last: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, time: float) -> None:
        """Add a time; the oldest one goes. O(window)."""
        if len(self._last) == WINDOW:
            del self._sorted[bisect_left(self._sorted, self._last.popleft())]
        self._last.append(time)
        insort(self._sorted, time)

    def quantile(self, share: float) -> float | None:
        """The time that a share of the times, in (0, 1), does not exceed; None while they are too few."""
        times = self._sorted
        if len(times) < ENOUGH:
            return None
        return times[min(int(share * len(times)), len(times) - 1)]
