"""The policy `none`: every request is a batch of its own, first come, first served."""

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.policies.base import Choice
from sluice.batcher.queues.fair_queue import Queue
from sluice.batcher.state import ModelState, PartitionState


class NoBatching:
    """Send each request on its own as soon as the partition can take it."""

    by_deadline = False
    mixes_keys = False

    def new_queue(self, model: str, batch_key: str) -> Queue:
        """A queue shared fairly between pipelines."""
        return Queue(model, batch_key)

    def full_rows(self, estimate: LatencyEstimate) -> int:
        """One: most requests have one row."""
        return 1

    def choose(
        self, queue: Queue, model: ModelState, partition: PartitionState, estimate: LatencyEstimate, now_ns: int
    ) -> Choice:
        """Close a batch of exactly the first request."""
        return Choice(queue.head().rows, ReleaseReason.IDLE)
