"""The autoscaler of one class: how many partitions are wanted, from the demand over two windows and its forecast.

The rule is that of Knative's autoscaler: a stable window decides in quiet times, and a panic window while the load
grows faster than that shows. It differs where this scheduler knows more:

- The demand is the part of their time that partitions are busy with the rows that come, and not the number of requests
  in flight, which grows without bound once partitions are too few. In the panic window it includes the rows that wait:
  clients that wait for their answers send no more than is served.
- The demand is compared with the target as it is, and not as a whole number of pods: one partition that is slightly
  over its target is no panic.
- A forecast of the demand at the time when a partition that is ordered now will be up counts like the stable window.
- A partition is given up only after no look wanted it for as long as one takes to start. Knative halves the pods at
  most at a look.
- The last partition goes when the class has had no traffic for the idle time (Knative's grace period), and not only
  when the stable window is empty as well.
- The growth at a look is bounded only by the number of slots.
"""

import math
from collections import deque
from typing import NamedTuple

from sluice.batcher.interface.scaling_config import ScaledClass, ScalingConfig

_ROUNDING = 1e-9


class ClassDemand(NamedTuple):
    """The partitions of a class that would be busy all the time: over both windows, and as foreseen."""

    stable: float
    panic: float
    ahead: float = 0.0


class Autoscaler:
    """Decides for one class; `is_panicking` since `panicked_ns`, the last look that called for it (None: it is not)."""

    __slots__ = ("_class", "_config", "_last", "_peak", "_recent", "_traffic_ns", "panicked_ns")

    def __init__(self, config: ScalingConfig, scaled: ScaledClass) -> None:
        self._config = config
        self._class = scaled
        self._last = self._peak = 0
        self._recent: deque[tuple[int, int]] = deque()
        self._traffic_ns: int | None = None
        self.panicked_ns: int | None = None

    @property
    def is_panicking(self) -> bool:
        """True while the class only grows."""
        return self.panicked_ns is not None

    def note_traffic(self, now_ns: int) -> None:
        """Record that rows came that need the class."""
        self._traffic_ns = now_ns

    def is_settled(self, now_ns: int) -> bool:
        """True if the class has had no traffic for so long that it stays as it is until some comes."""
        if self.panicked_ns is not None:
            return False
        longest_ns = max(self._config.stable_ns, self._config.idle_ns)
        return self._traffic_ns is None or now_ns - self._traffic_ns >= longest_ns

    def wanted(self, now_ns: int, demand: ClassDemand, ready: int, start_ns: int) -> int:
        """The number of partitions wanted now.

        `ready` are up and get batches. One that is ordered now is up after `start_ns`.
        """
        scaled, config = self._class, self._config
        target = scaled.target
        over = demand.panic >= config.panic_threshold * target * max(ready, 1) - _ROUNDING
        if over:
            self.panicked_ns = now_ns
        elif self.panicked_ns is not None and now_ns - self.panicked_ns >= config.stable_ns:
            self.panicked_ns = None
            self._peak = 0
        if self.panicked_ns is not None:
            self._peak = max(self._peak, self._last, _whole(max(demand) / target))
            count = self._peak
        else:
            count = _whole(max(demand.stable, demand.ahead) / target)
        count = self._within_bounds(count, now_ns)
        recent = self._recent
        while recent and recent[0][0] <= now_ns - min(start_ns, config.stable_ns):
            recent.popleft()
        while recent and recent[-1][1] <= count:
            recent.pop()
        recent.append((now_ns, count))
        self._last = self._within_bounds(recent[0][1], now_ns)
        return self._last

    def _within_bounds(self, count: int, now_ns: int) -> int:
        scaled = self._class
        idle = self._traffic_ns is None or now_ns - self._traffic_ns >= self._config.idle_ns
        if scaled.to_zero and idle and self.panicked_ns is None:
            return 0
        return min(max(count, scaled.least, 1), scaled.most)


def _whole(partitions: float) -> int:
    """The least whole number of partitions that is enough."""
    return math.ceil(partitions - _ROUNDING)
