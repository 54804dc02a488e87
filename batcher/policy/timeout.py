"""The policy `timeout`: Triton's dynamic batcher, with preferred sizes and a maximum queue delay."""

from batcher.config import PolicyConfig
from batcher.decisions import ReleaseReason
from batcher.estimate import LatencyEstimate
from batcher.placement import ModelState, PartitionState
from batcher.policy.base import Choice
from batcher.queue import Queue


class TimeoutPolicy:
    """Triton's rule (documentation of `dynamic_batching` in the model configuration).

    Requests are scanned in order of arrival up to the maximum batch size. The largest preferred size that the scan
    meets exactly is sent at once. Otherwise everything pending is sent when it cannot grow, has reached the largest
    preferred size, or when the oldest request has waited for the maximum delay (always, when that is 0).
    """

    by_deadline = False

    def __init__(self, config: PolicyConfig) -> None:
        self._preferred = frozenset(config.preferred)
        self._largest = max(config.preferred, default=0)
        self._max_delay_ns = config.max_delay_ns

    def full_rows(self, estimate: LatencyEstimate) -> int:
        """The largest preferred size, or the maximum."""
        return min(self._largest, estimate.max_rows) or estimate.max_rows

    def choose(
        self, queue: Queue, model: ModelState, partition: PartitionState, estimate: LatencyEstimate, now_ns: int
    ) -> Choice:
        """Decide by the sizes of the requests in the queue and the age of the first."""
        due_ns = queue.head().enqueued_ns + self._max_delay_ns
        exceeded = self._max_delay_ns > 0 and now_ns >= due_ns
        maximum = model.config.max_batch
        largest = min(self._largest, maximum)
        pending = best = 0
        full = False
        for entry in queue.entries():
            grown = pending + entry.rows
            limit = maximum if exceeded or not largest else max(largest, pending)
            if pending and grown > limit:
                full = True
                break
            pending = grown
            if pending in self._preferred:
                best = pending
        if best and not exceeded:
            return Choice(best, ReleaseReason.FULL)
        if full or pending >= (largest or maximum):
            return Choice(pending, ReleaseReason.FULL)
        if exceeded or not self._max_delay_ns:
            return Choice(pending, ReleaseReason.DELAY if exceeded else ReleaseReason.IDLE)
        wanted = min((size for size in self._preferred if size > pending), default=maximum)
        return Choice(0, ReleaseReason.DELAY, due_ns, wanted)
