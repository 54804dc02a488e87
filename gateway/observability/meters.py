"""Counts of a server on the hot path, in plain integers: requests of pipelines, and batches of models."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from sluice.batcher.interface.decisions import DispatchBatch, ReleaseReason
from sluice.batcher.interface.events import FailureCause
from sluice.batcher.interface.outcome import ANSWERED, Outcome
from sluice.gateway.observability.statistics import Statistics
from sluice.models.spec import public_key
from sluice.models.units import NS_PER_MS

DURATION_BOUNDS_NS = tuple(
    round(milliseconds * NS_PER_MS)
    for milliseconds in (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000)
)
ROW_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """Counts by ascending upper bounds (inclusive), and above the last of them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0

    def observe(self, value: int) -> None:
        """Count one value. O(log bounds)."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class PipelineMeter:
    """The counts of one pipeline; `stages` are the names of its stages.

    `exemplars` are the durations and trace ids of the latest traced requests, by the index of the bucket of `duration`.
    """

    __slots__ = ("cost", "duration", "exemplars", "outcomes", "partial_joins", "stage_rows", "stages")

    def __init__(self, stages: Sequence[str]) -> None:
        self.stages = stages
        self.stage_rows = [0] * len(stages)
        self.cost = 0.0
        self.partial_joins = 0
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.duration = Histogram(DURATION_BOUNDS_NS)
        self.exemplars: dict[int, tuple[int, str]] = {}

    def request_ended(self, outcome: Outcome, duration_ns: int) -> None:
        """Count an outcome, and the duration of a request that was answered."""
        self.outcomes[outcome] += 1
        if outcome in ANSWERED:
            self.duration.observe(duration_ns)

    def note_exemplar(self, outcome: Outcome, duration_ns: int, trace_id: str) -> None:
        """Keep a traced request that was answered as the example of its duration."""
        if outcome in ANSWERED:
            self.exemplars[bisect_left(DURATION_BOUNDS_NS, duration_ns)] = duration_ns, trace_id

    def stage_ran(self, stage: int, rows: int, cost: float = 0.0) -> None:
        """Count the rows of stage number `stage`, and their cost."""
        self.stage_rows[stage] += rows
        self.cost += cost

    @property
    def attainment(self) -> float | None:
        """The share of requests completed within their objective, cancelled ones left out; None before the first."""
        counted = sum(self.outcomes.values()) - self.outcomes[Outcome.CANCELLED_CLIENT]
        return self.outcomes[Outcome.COMPLETED] / counted if counted else None


class BatchMeter:
    """The counts of the batches of one model on one partition."""

    __slots__ = ("compute", "padded_rows", "reasons", "rows")

    def __init__(self) -> None:
        self.padded_rows = 0
        self.reasons: Counter[ReleaseReason] = Counter()
        self.rows = Histogram(ROW_BOUNDS)
        self.compute = Histogram(DURATION_BOUNDS_NS)


class Meters:
    """The counts of one server; `stages` are the names of the stages of each pipeline, by `name:version`.

    `pipelines` and `batches` have a meter for each version, `batches` also for each of its revisions. `busy_ns` is the
    time in the backend, by partition.
    """

    def __init__(
        self, stages: Mapping[str, Sequence[str]], partitions: Sequence[str], statistics: Statistics | None = None
    ) -> None:
        self.pipelines: dict[str, PipelineMeter] = {}
        self._by_key: dict[str, PipelineMeter] = {}
        for pipeline, names in stages.items():
            self.serve(pipeline, names)
        self.batches: dict[tuple[str, str], BatchMeter] = {}
        self.busy_ns = dict.fromkeys(partitions, 0)
        self.statistics = statistics or Statistics()
        self.failures: Counter[tuple[str, str, FailureCause]] = Counter()

    def pipeline(self, pipeline: str) -> PipelineMeter:
        """The counts of a pipeline, by key."""
        return self._by_key[pipeline]

    def serve(self, pipeline: str, stages: Sequence[str]) -> None:
        """Count a revision of a pipeline, together with earlier revisions that have the same stages."""
        public = public_key(pipeline)
        meter = self.pipelines.get(public)
        if meter is None or list(meter.stages) != list(stages):
            meter = self.pipelines[public] = PipelineMeter(stages)
        self._by_key[pipeline] = meter

    def forget(self, key: str) -> None:
        """Remove a revision without requests and batches; its counts stay."""
        self._by_key.pop(key, None)
        self.statistics.forget(key)
        if public_key(key) != key:
            for known in [each for each in self.batches if each[0] == key]:
                del self.batches[known]

    def batch_completed(self, batch: DispatchBatch, compute_ns: int) -> None:
        """Count a batch, and its time in the backend."""
        key = batch.model, batch.partition
        meter = self.batches.get(key)
        if meter is None:
            public = public_key(batch.model), batch.partition
            meter = self.batches[key] = self.batches.setdefault(public, BatchMeter())
        meter.reasons[batch.reason] += 1
        meter.rows.observe(batch.rows)
        meter.padded_rows += batch.run_rows - batch.rows
        meter.compute.observe(compute_ns)
        self.busy_ns[batch.partition] += compute_ns

    def batch_failed(self, batch: DispatchBatch, cause: FailureCause) -> None:
        """Count a batch that did not complete."""
        self.failures[public_key(batch.model), batch.partition, cause] += 1
