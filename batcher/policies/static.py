"""The policy `static`: the batches of TensorFlow Serving, by the names of its parameters."""

from bisect import bisect_right
from typing import Annotated

from msgspec import Meta

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.policies.base import BatchContext, Choice, PolicySettings, QueueView
from sluice.batcher.policies.registry import batch_policy
from sluice.batcher.queues.bounded_queue import BoundedQueue
from sluice.batcher.queues.queue import NO_WAITERS
from sluice.models.units import NS_PER_S, NS_PER_US


class StaticSettings(PolicySettings, frozen=True, tag="static"):
    """The batching parameters of TensorFlow Serving: fixed sizes, a timeout and a bounded queue."""

    max_batch_size: Annotated[int, Meta(description="The most rows of a batch.")] = 32
    batch_timeout_micros: Annotated[
        int, Meta(description="How long the first request of a batch may wait for others, in microseconds.")
    ] = 0
    max_enqueued_batches: Annotated[
        int, Meta(description="Requests are refused while the rows of as many full batches wait.")
    ] = 10
    num_batch_threads: Annotated[
        int, Meta(description="The most batches of the model that are under way at a time; 0: as partitions take them.")
    ] = 0
    allowed_batch_sizes: Annotated[
        tuple[int, ...],
        Meta(description="The sizes that batches are padded to, ascending; the last is `max_batch_size`."),
    ] = ()

    def __post_init__(self) -> None:
        for name, least in (
            ("max_batch_size", 1),
            ("batch_timeout_micros", 0),
            ("max_enqueued_batches", 1),
            ("num_batch_threads", 0),
        ):
            if (given := getattr(self, name)) < least:
                raise ValueError(f"{name}: expected at least {least}, got {given}")
        sizes = self.allowed_batch_sizes
        if sizes and (list(sizes) != sorted({*sizes}) or sizes[0] < 1 or sizes[-1] != self.max_batch_size):
            raise ValueError(
                f"allowed_batch_sizes: expected ascending sizes of at least 1 that end with max_batch_size "
                f"({self.max_batch_size}), got {list(sizes)}"
            )

    @property
    def run_sizes(self) -> tuple[int, ...]:
        """As in `PolicyConfig`."""
        return self.allowed_batch_sizes

    @property
    def most_under_way(self) -> int:
        """As in `PolicyConfig`."""
        return self.num_batch_threads

    def longest_wait_ns(self, rate: float) -> int:
        """As in `PolicyConfig`."""
        return self.batch_timeout_micros * NS_PER_US


@batch_policy(StaticSettings)
class StaticPolicy:
    """TensorFlow Serving's rule (`SharedBatchScheduler`).

    A batch starts when it is full, or when its first request has waited for the timeout, as soon as a partition and a
    thread are free. Models take turns by the ages of their first requests.
    """

    by_deadline = False
    mixes_keys = False

    def __init__(self, settings: StaticSettings, limits: Limits) -> None:
        self._settings = settings
        self._sizes = settings.run_sizes or (settings.max_batch_size,)
        self._timeout_ns = settings.batch_timeout_micros * NS_PER_US

    def new_queue(self, model: str, batch_key: str) -> BoundedQueue:
        """An empty queue of a batch key; each has room of its own."""
        return BoundedQueue(model, batch_key, self._settings.max_enqueued_batches, self._settings.max_batch_size)

    def full_rows(self, estimate: LatencyEstimate) -> int:
        """The largest size that the model can have."""
        most = estimate.max_rows
        return self._sizes[bisect_right(self._sizes, most) - 1] if most >= self._sizes[0] else most

    def choose(self, queue: QueueView, context: BatchContext) -> Choice:
        """Decide by the rows that wait, the age of the first request, and the batches that are under way."""
        now_ns, most_under_way = context.now_ns, self._settings.num_batch_threads
        if most_under_way and context.under_way >= most_under_way:
            # The end of one of them offers the queue again.
            return Choice(0, ReleaseReason.IDLE, now_ns + NS_PER_S, NO_WAITERS)
        pending, most = queue.rows, self.full_rows(context.estimate)
        if pending >= most:
            return Choice(most, ReleaseReason.FULL)
        if not self._timeout_ns:
            return Choice(pending, ReleaseReason.IDLE)
        due_ns = queue.head().enqueued_ns + self._timeout_ns
        if now_ns >= due_ns:
            return Choice(pending, ReleaseReason.DELAY)
        return Choice(0, ReleaseReason.DELAY, due_ns, most)
