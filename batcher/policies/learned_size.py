"""A batch size that each partition of a model learns: what the policies `aimd` and `quantile` have in common."""

import math
from collections.abc import Callable, Mapping
from typing import Protocol

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.policies.base import BatchContext, Choice, QueueView
from sluice.batcher.queues.queue import Queue
from sluice.models.units import ms_to_ns


class LearnedSize(Protocol):
    """The most rows of a batch on one partition, as the batches that ran there teach it."""

    @property
    def rows(self) -> int:
        """That number, at least 1."""
        ...

    def observe(self, rows: int, took_ns: int) -> None:
        """Learn from a batch of `rows` rows that took `took_ns`."""
        ...


class LearnedSizePolicy:
    """Takes what waits, first come, first served, up to a size that each partition learns by itself.

    A batch that is smaller waits until its first request has waited for `max_delay_ms`. `new_size` makes what a
    partition begins with.
    """

    by_deadline = False
    mixes_keys = False

    def __init__(self, new_size: Callable[[], LearnedSize], max_delay_ms: float) -> None:
        self._new_size = new_size
        self._max_delay_ns = ms_to_ns(max_delay_ms)
        self._sizes: dict[str, LearnedSize] = {}
        self._most = 1

    def new_queue(self, model: str, batch_key: str) -> Queue:
        """An empty queue of a batch key."""
        return Queue(model, batch_key)

    def full_rows(self, estimate: LatencyEstimate) -> int:
        """The largest size that a partition has learned so far."""
        return min(self._most, estimate.max_rows)

    def choose(self, queue: QueueView, context: BatchContext) -> Choice:
        """Close a batch of the partition's size, or of what waits when the delay is over."""
        pending, most = queue.rows, min(self._size_on(context.partition).rows, context.estimate.max_rows)
        if pending >= most:
            return Choice(most, ReleaseReason.FULL)
        if not self._max_delay_ns:
            return Choice(pending, ReleaseReason.IDLE)
        due_ns = queue.head().enqueued_ns + self._max_delay_ns
        if context.now_ns >= due_ns:
            return Choice(pending, ReleaseReason.DELAY)
        return Choice(0, ReleaseReason.DELAY, due_ns, most)

    def observe(self, partition: str, rows: int, took_ns: int) -> None:
        """As in `LearningPolicy`."""
        size = self._size_on(partition)
        before = size.rows
        size.observe(rows, took_ns)
        if size.rows > self._most:
            self._most = size.rows
        elif size.rows < before == self._most:
            self._most = max(each.rows for each in self._sizes.values())

    def sizes(self) -> Mapping[str, int]:
        """As in `LearningPolicy`."""
        return {partition: size.rows for partition, size in self._sizes.items()}

    def _size_on(self, partition: str) -> LearnedSize:
        size = self._sizes.get(partition)
        if size is None:
            size = self._sizes[partition] = self._new_size()
        return size


def check_target(target_ms: float, budget: float, max_delay_ms: float) -> None:
    """Raise ValueError, with the name of the key, unless these settings are within their bounds."""
    if not 0 < target_ms < math.inf:
        raise ValueError(f"target_ms: expected a finite number above 0, got {target_ms:g}")
    if not 0 < budget <= 1:
        raise ValueError(f"budget: expected a share above 0 and at most 1, got {budget:g}")
    if not 0 <= max_delay_ms < math.inf:
        raise ValueError(f"max_delay_ms: expected a finite number of at least 0, got {max_delay_ms:g}")
