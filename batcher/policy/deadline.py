"""The policy `deadline`, the default: batches as big as is worthwhile and as deadlines allow, without a fixed delay."""

from batcher.config import Limits
from batcher.decisions import ReleaseReason
from batcher.estimate import LatencyEstimate
from batcher.placement import ModelState, PartitionState
from batcher.policy.base import WAIT, Choice
from batcher.queue import Queue

DEEP = 2
"""Efficient batches in a queue from which on the rate counts for more than the head."""


class DeadlinePolicy:
    """Adaptive batching that never taxes a lone request.

    A batch starts at once when the queue holds as many rows as may be expected together (the decayed peak of
    outstanding rows, at most the efficient batch size). Otherwise an idle partition gathers for at most
    `gather_fraction` of the predicted service time, or not at all when that is below `gather_floor_ns`, and never
    beyond the head's slack. The size is the largest that still meets the first deadline that can be met: adaptive
    batch sizes under a latency objective as in Clipper (NSDI'17, §4.3), chosen from a measured table instead of by
    additive increase. With two efficient batches queued or more, batches stay efficient, and heads that these make
    late are late: small ones for their sake would lower the rate, and the next heads would be as tight. (To drop
    early and keep batches large is the rule of Nexus, SOSP'19.)
    """

    by_deadline = True

    def __init__(self, limits: Limits) -> None:
        self._hand_off_ns = limits.hand_off_ns
        self._gather_fraction = limits.gather_fraction
        self._gather_floor_ns = limits.gather_floor_ns

    def full_rows(self, estimate: LatencyEstimate) -> int:
        """The efficient batch size."""
        return estimate.efficient_rows

    def choose(
        self, queue: Queue, model: ModelState, partition: PartitionState, estimate: LatencyEstimate, now_ns: int
    ) -> Choice:
        """Decide by the rows queued, those expected, and the slack of the first deadline that can be met."""
        pending = queue.rows
        worthwhile = estimate.efficient_rows
        expected = min(worthwhile, max(int(model.peak), 1))
        gather_ns = int(self._gather_fraction * estimate.service_ns(expected))
        if pending >= DEEP * worthwhile:
            return Choice(worthwhile, ReleaseReason.FULL)
        start_ns = partition.start_ns(now_ns)
        if pending >= expected or gather_ns < self._gather_floor_ns:
            reason = ReleaseReason.FULL if pending >= worthwhile else ReleaseReason.IDLE
            return Choice(self._size(queue, estimate, min(pending, worthwhile), start_ns), reason)
        if partition.batches:
            return WAIT
        head = queue.head()
        gathered_ns = max(partition.idle_since_ns, head.enqueued_ns) + gather_ns
        latest_ns = head.stage_deadline_ns - self._hand_off_ns - estimate.service_ns(expected)
        if now_ns >= min(gathered_ns, latest_ns):
            reason = ReleaseReason.DELAY if now_ns >= gathered_ns else ReleaseReason.DEADLINE
            return Choice(self._size(queue, estimate, pending, start_ns), reason)
        return Choice(0, ReleaseReason.DELAY, min(gathered_ns, latest_ns))

    def _size(self, queue: Queue, estimate: LatencyEstimate, limit: int, start_ns: int) -> int:
        """Rows to take: `limit`, or fewer where that makes the first reachable deadline; late ones set no limit."""
        ready_ns = start_ns + self._hand_off_ns
        first = queue.first_not_before(ready_ns + estimate.service_ns(1))
        if first is None:
            return limit
        return estimate.rows_within(first.stage_deadline_ns - ready_ns, limit) or 1
