"""The policy `none`: every request is its own batch, first come, first served."""

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.policies.base import BatchContext, Choice, PolicySettings, QueueView
from sluice.batcher.policies.registry import batch_policy
from sluice.batcher.queues.queue import Queue


class NoBatchingSettings(PolicySettings, frozen=True, tag="none"):
    """Every request is its own batch, first come, first served."""

    @property
    def combines(self) -> bool:
        """As in `PolicyConfig`."""
        return False


@batch_policy(NoBatchingSettings)
class NoBatching:
    """Sends each request alone as soon as the partition can take it."""

    by_deadline = False
    mixes_keys = False

    def __init__(self, settings: NoBatchingSettings, limits: Limits) -> None:
        pass

    def new_queue(self, model: str, batch_key: str) -> Queue:
        """An empty queue of a batch key."""
        return Queue(model, batch_key)

    def full_rows(self, estimate: LatencyEstimate) -> int:
        """One: most requests have one row."""
        return 1

    def choose(self, queue: QueueView, context: BatchContext) -> Choice:
        """Close a batch of the first request alone."""
        return Choice(queue.head().rows, ReleaseReason.IDLE)
