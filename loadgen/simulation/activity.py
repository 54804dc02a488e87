"""The activity of the models of a simulated gateway, with the figures of a live server's statistics."""

from collections.abc import Mapping

from sluice.batcher.interface.decisions import DispatchBatch
from sluice.batcher.interface.events import BatchCompleted
from sluice.loadgen.records.model_statistics import ModelActivity
from sluice.models.units import NS_PER_MS, NS_PER_S


class _SimulatedCounts:
    __slots__ = ("compute_ns", "input_ns", "output_ns", "queue_ns", "requests", "sizes")

    def __init__(self) -> None:
        self.requests = self.queue_ns = self.input_ns = self.compute_ns = self.output_ns = 0
        self.sizes: dict[int, int] = {}


class SimulatedActivity:
    """Counts batches and the times of their requests by model; `prices` are those of partitions for a second.

    `cost` is the cost of computing so far.
    """

    def __init__(self, prices: Mapping[str, float]) -> None:
        self._prices = prices
        self._ready_ns: dict[int, int] = {}
        self._dispatched_ns: dict[int, int] = {}
        self._ended_ns: dict[str, int] = {}
        self._models: dict[str, _SimulatedCounts] = {}
        self.cost = 0.0

    def arrived(self, query: int, now_ns: int) -> None:
        """Take note that a query arrived."""
        self._ready_ns[query] = now_ns

    def dispatched(self, batch: int, now_ns: int) -> None:
        """Take note that a batch was sent to its worker."""
        self._dispatched_ns[batch] = now_ns

    def revoked(self, batch: int) -> None:
        """Forget a batch that did not run."""
        del self._dispatched_ns[batch]

    def completed(self, batch: DispatchBatch, event: BatchCompleted, now_ns: int) -> None:
        """Count a batch whose result the scheduler has."""
        counts = self._models.get(batch.model)
        if counts is None:
            counts = self._models[batch.model] = _SimulatedCounts()
        free_ns = max(self._dispatched_ns.pop(batch.batch), self._ended_ns.get(batch.partition, 0))
        startable_ns = min(free_ns, event.started_ns)
        self._ended_ns[batch.partition] = event.ended_ns
        requests = len(batch.members)
        ready_ns = self._ready_ns
        counts.sizes[batch.rows] = counts.sizes.get(batch.rows, 0) + 1
        counts.requests += requests
        counts.input_ns += requests * (event.started_ns - startable_ns)
        counts.compute_ns += requests * (event.ended_ns - event.started_ns)
        counts.output_ns += requests * (now_ns - event.ended_ns)
        for member in batch.members:
            query = member.request
            # A stage is ready when the earlier ones have ended; one that has been given up no longer waits.
            counts.queue_ns += max(0, startable_ns - ready_ns.get(query, startable_ns))
            if query in ready_ns:
                ready_ns[query] = now_ns
        self.cost += (event.ended_ns - event.started_ns) / NS_PER_S * self._prices[batch.partition]

    def ended(self, query: int) -> None:
        """Forget a query."""
        self._ready_ns.pop(query, None)

    def report(self) -> tuple[ModelActivity, ...]:
        """The activity of each model."""
        return tuple(_activity(model, counts) for model, counts in sorted(self._models.items()))


def _activity(model: str, counts: _SimulatedCounts) -> ModelActivity:
    scale = counts.requests * NS_PER_MS
    return ModelActivity(
        model=model,
        requests=counts.requests,
        failures=0,
        rows=sum(size * batches for size, batches in counts.sizes.items()),
        batches=sum(counts.sizes.values()),
        queue_ms=counts.queue_ns / scale,
        input_ms=counts.input_ns / scale,
        compute_ms=counts.compute_ns / scale,
        output_ms=counts.output_ns / scale,
        batch_sizes=tuple(sorted(counts.sizes.items())),
    )
