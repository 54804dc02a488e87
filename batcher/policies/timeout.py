"""The policy `timeout`: Triton's dynamic batcher, with preferred sizes, a maximum delay and priority levels."""

import math
from typing import Annotated

from msgspec import Meta

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.interface.config import Limits, PriorityLevels
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.policies.base import BatchContext, Choice, PolicySettings, QueueView
from sluice.batcher.policies.registry import batch_policy
from sluice.batcher.queues.priority_queue import PriorityQueue
from sluice.batcher.queues.queue import NO_WAITERS
from sluice.models.dynamic_batching import DynamicBatching
from sluice.models.sequence_batching import DirectStrategy, SequenceBatching
from sluice.models.units import INFINITE_NS, NS_PER_US, ms_to_ns


class TimeoutConfig(PolicySettings, frozen=True, tag="timeout"):
    """The settings of Triton's `dynamic_batching`.

    With `preserve_ordering`, a batch that overtakes another is answered after it.
    """

    preferred: tuple[int, ...] = ()
    max_delay_ns: int = 0
    levels: PriorityLevels = PriorityLevels()
    preserve_ordering: bool = False

    @classmethod
    def of(cls, batching: DynamicBatching) -> "TimeoutConfig":
        """The policy that a model's own configuration asks for."""
        return cls(
            batching.preferred,
            min(batching.max_queue_delay_us * NS_PER_US, INFINITE_NS),
            PriorityLevels(
                batching.priority_levels,
                batching.default_priority_level,
                batching.default_queue_policy,
                batching.priority_queue_policy,
            ),
            batching.preserve_ordering,
        )

    @classmethod
    def of_sequences(cls, batching: SequenceBatching, max_batch_size: int) -> "TimeoutConfig":
        """The policy of a model with sequences, whose batches wait for more of them in the same way.

        The direct strategy waits until enough slots have a request. As in Triton, it ignores the delay without a
        minimum utilization.
        """
        if (oldest := batching.oldest) is not None:
            return cls(oldest.preferred, min(oldest.max_queue_delay_us * NS_PER_US, INFINITE_NS))
        direct = batching.direct or DirectStrategy()
        slots = batching.slots(max_batch_size)
        wanted = math.ceil(direct.minimum_slot_utilization * slots)
        if not wanted:
            return cls()
        return cls(tuple(range(wanted, slots + 1)), min(direct.max_queue_delay_us * NS_PER_US, INFINITE_NS))

    def level_of(self, priority: int) -> int:
        """As in `PolicyConfig`."""
        return self.levels.level_of(priority)

    def longest_wait_ns(self, rate: float) -> int:
        """As in `PolicyConfig`."""
        return self.max_delay_ns


class TimeoutSettings(PolicySettings, frozen=True, tag="timeout"):
    """Triton's dynamic batcher: preferred sizes and a maximum delay."""

    preferred: Annotated[tuple[int, ...], Meta(description="Batch sizes that are worth waiting for.")] = ()
    max_delay_ms: Annotated[float, Meta(description="How long the first request of a batch may wait for others.")] = 0.0

    def __post_init__(self) -> None:
        if self.preferred and min(self.preferred) < 1:
            raise ValueError(f"preferred: expected sizes of at least 1, got {min(self.preferred)}")
        if not 0 <= self.max_delay_ms < math.inf:
            raise ValueError(f"max_delay_ms: expected a finite number of at least 0, got {self.max_delay_ms:g}")

    def config(self) -> TimeoutConfig:
        """As in `PolicySettings`: in nanoseconds."""
        return TimeoutConfig(self.preferred, ms_to_ns(self.max_delay_ms))


@batch_policy(TimeoutSettings, TimeoutConfig)
class TimeoutPolicy:
    """Triton's rule (documentation of `dynamic_batching` in the model configuration).

    Requests that may share a batch are scanned by level and in order of arrival, up to the maximum batch size. The
    largest preferred size that the scan meets exactly is sent at once; if none is met and a request would exceed all
    preferred sizes, the requests before it are sent. Everything scanned is sent when the oldest request has waited for
    the maximum delay, when nothing can be added, when the largest preferred size is reached, and when there is no
    delay.

    With priority levels or bounded queues, a batch closes only for a partition that is idle or runs another model:
    until then the requests can still be overtaken, and count as waiting.
    """

    by_deadline = False
    mixes_keys = True

    def __init__(self, config: TimeoutConfig, limits: Limits) -> None:
        self._preferred = frozenset(config.preferred)
        self._largest = max(config.preferred, default=0)
        self._max_delay_ns = config.max_delay_ns
        self._levels = config.levels
        self._preserve_ordering = config.preserve_ordering
        self._ahead = config.levels == PriorityLevels()

    def new_queue(self, model: str, batch_key: str) -> PriorityQueue:
        """An empty queue for all batch keys; `batch_key` only tells the queues of partitions with sequences apart."""
        return PriorityQueue(model, self._levels, preserve_ordering=self._preserve_ordering, batch_key=batch_key)

    def full_rows(self, estimate: LatencyEstimate) -> int:
        """The largest preferred size, or the maximum."""
        return min(self._largest, estimate.max_rows) or estimate.max_rows

    def choose(self, queue: QueueView, context: BatchContext) -> Choice:
        """Decide by the sizes of the requests in the queue and the age of the oldest."""
        now_ns = context.now_ns
        if not self._ahead and context.runs_own:
            # Other models may never leave the partition idle, so the end of this batch is enough.
            over_ns = context.start_ns
            until_ns = over_ns if over_ns > now_ns else now_ns + context.quickest_ns
            return Choice(0, ReleaseReason.IDLE, until_ns, NO_WAITERS, 0)
        maximum = context.estimate.max_rows
        largest = min(self._largest or maximum, maximum)
        oldest_ns = now_ns
        pending = best = count = 0
        for entry in queue.companions():
            grown = pending + entry.rows
            if pending and grown > largest and not best:
                best = pending
            if pending and grown > maximum:
                break
            pending = grown
            count += 1
            oldest_ns = min(oldest_ns, entry.enqueued_ns)
            if pending in self._preferred:
                best = pending
        due_ns = oldest_ns + self._max_delay_ns
        exceeded = self._max_delay_ns > 0 and now_ns >= due_ns
        if best and not exceeded:
            return Choice(best, ReleaseReason.FULL)
        if count < queue.live or pending >= largest:
            return Choice(pending, ReleaseReason.FULL)
        if exceeded or not self._max_delay_ns:
            return Choice(pending, ReleaseReason.DELAY if exceeded else ReleaseReason.IDLE)
        wanted = min((size for size in self._preferred if size > pending), default=maximum)
        return Choice(0, ReleaseReason.DELAY, due_ns, wanted)
