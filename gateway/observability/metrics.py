"""Prometheus metrics: counted in plain integers on the hot path, converted to families when they are scraped."""

from abc import abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.batcher.interface.decisions import DispatchBatch, ReleaseReason
from sluice.batcher.interface.events import FailureCause
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.statistics import Statistics, nv_metrics
from sluice.gateway.version import is_core_compiled, server_version
from sluice.models.spec import public_key
from sluice.models.units import NS_PER_MS, NS_PER_S

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

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str], unit: int = 1) -> None:
        """Add the counts to a family, with values divided by `unit`."""
        limits = [*(f"{bound / unit:g}" for bound in self.bounds), "+Inf"]
        buckets = list(zip(limits, accumulate(self.counts), strict=True))
        family.add_metric(labels, buckets, self.total / unit)


class PipelineMeter:
    """The counts of one pipeline; `stages` are the names of its stages."""

    __slots__ = ("cost", "duration", "outcomes", "stage_rows", "stages")

    def __init__(self, stages: Sequence[str]) -> None:
        self.stages = stages
        self.stage_rows = [0] * len(stages)
        self.cost = 0.0
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.duration = Histogram(DURATION_BOUNDS_NS)

    def request_ended(self, outcome: Outcome, duration_ns: int) -> None:
        """Count an outcome, and the duration of a request that was answered."""
        self.outcomes[outcome] += 1
        if outcome.answered:
            self.duration.observe(duration_ns)

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

    __slots__ = ("compute", "reasons", "rows")

    def __init__(self) -> None:
        self.reasons: Counter[ReleaseReason] = Counter()
        self.rows = Histogram(ROW_BOUNDS)
        self.compute = Histogram(DURATION_BOUNDS_NS)


class MetricsSource(Collector):
    """Metrics that another part of the server counts."""

    @abstractmethod
    async def refresh(self) -> None:
        """Update the counts; returns soon, even without an answer."""


class ServerMetrics(Collector):
    """All metrics of one server; `stages` are the names of the stages of each pipeline, by `name:version`.

    The callables are evaluated at each scrape. `queue_depths` counts the waiting requests by model. `corrections` has,
    by model and kind of partition, the measured latency divided by the profile's. `breakers` is the state of each
    Triton server's circuit breaker.
    """

    def __init__(
        self,
        stages: Mapping[str, Sequence[str]],
        partitions: Sequence[str],
        queue_depths: Callable[[], Mapping[str, int]],
        arena_bytes: Callable[[], int],
        corrections: Callable[[], Mapping[tuple[str, str], float]] = dict,
        breakers: Callable[[], Mapping[str, str]] = dict,
        statistics: Statistics | None = None,
    ) -> None:
        self._pipelines: dict[str, PipelineMeter] = {}
        self._by_key: dict[str, PipelineMeter] = {}
        for pipeline, names in stages.items():
            self.serve(pipeline, names)
        self._batches: dict[tuple[str, str], BatchMeter] = {}
        self._busy_ns = dict.fromkeys(partitions, 0)
        self._queue_depths = queue_depths
        self._input_bytes = [arena_bytes]
        self._corrections = corrections
        self._breakers = breakers
        self._build = (server_version(), "true" if is_core_compiled() else "false")
        self.statistics = statistics or Statistics()
        self.failures: Counter[tuple[str, str, FailureCause]] = Counter()
        self._remotes: list[MetricsSource] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def pipeline(self, pipeline: str) -> PipelineMeter:
        """The counts of a pipeline, by key."""
        return self._by_key[pipeline]

    def serve(self, pipeline: str, stages: Sequence[str]) -> None:
        """Count a revision of a pipeline, together with earlier revisions that have the same stages."""
        public = public_key(pipeline)
        meter = self._pipelines.get(public)
        if meter is None or list(meter.stages) != list(stages):
            meter = self._pipelines[public] = PipelineMeter(stages)
        self._by_key[pipeline] = meter

    def forget(self, key: str) -> None:
        """Remove a revision without requests and batches; its counts stay."""
        self._by_key.pop(key, None)
        self.statistics.forget(key)
        if public_key(key) != key:
            for known in [each for each in self._batches if each[0] == key]:
                del self._batches[known]

    def batch_completed(self, batch: DispatchBatch, compute_ns: int) -> None:
        """Count a batch, and its time in the backend."""
        key = batch.model, batch.partition
        meter = self._batches.get(key)
        if meter is None:
            public = public_key(batch.model), batch.partition
            meter = self._batches[key] = self._batches.setdefault(public, BatchMeter())
        meter.reasons[batch.reason] += 1
        meter.rows.observe(batch.rows)
        meter.compute.observe(compute_ns)
        self._busy_ns[batch.partition] += compute_ns

    def batch_failed(self, batch: DispatchBatch, cause: FailureCause) -> None:
        """Count a batch that did not complete."""
        self.failures[public_key(batch.model), batch.partition, cause] += 1

    def busy_ns(self) -> Mapping[str, int]:
        """Time in the backend, by partition."""
        return self._busy_ns

    def exposition(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        nv = nv_metrics(self.statistics, self._pipelines, self._waiting())
        return generate_latest(self._registry) + nv.encode()

    def include(self, remote: MetricsSource) -> None:
        """Add metrics that another part of the server counts."""
        self._remotes.append(remote)
        self._registry.register(remote)

    def add_input_memory(self, used_bytes: Callable[[], int]) -> None:
        """Count the memory for inputs that another part of the server has, too; evaluated at each scrape."""
        self._input_bytes.append(used_bytes)

    async def scrape(self) -> bytes:
        """As `exposition`, after a refresh of the included sources."""
        for remote in self._remotes:
            await remote.refresh()
        return self.exposition()

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        yield from self._request_families()
        yield from self._batch_families()
        queue = GaugeMetricFamily("sluice_queue_requests", "Requests waiting in queues.", labels=["model"])
        for model, depth in self._waiting().items():
            queue.add_metric([model], depth)
        busy = CounterMetricFamily(
            "sluice_partition_busy_seconds", "Time that the partition's backend has computed.", labels=["partition"]
        )
        for partition, busy_ns in self._busy_ns.items():
            busy.add_metric([partition], busy_ns / NS_PER_S)
        build = GaugeMetricFamily(
            "sluice_build_info",
            "1, with the version and whether the core is compiled.",
            labels=["version", "compiled"],
        )
        build.add_metric(self._build, 1)
        arena = GaugeMetricFamily("sluice_arena_used_bytes", "Bytes in use of the memory for inputs.")
        arena.add_metric([], sum(each() for each in self._input_bytes))
        breakers = GaugeMetricFamily(
            "sluice_triton_breaker",
            "1 for the current state of the Triton server's circuit breaker.",
            labels=["partition", "state"],
        )
        for partition, state in self._breakers().items():
            for each in ("closed", "open", "half_open"):
                breakers.add_metric([partition, each], int(state == each))
        yield self._correction_family()
        yield from (queue, busy, build, arena, breakers)

    def _waiting(self) -> dict[str, int]:
        waiting: Counter[str] = Counter()
        for model, depth in self._queue_depths().items():
            waiting[public_key(model)] += depth
        return waiting

    def _correction_family(self) -> Metric:
        family = GaugeMetricFamily(
            "sluice_latency_correction", "Measured median latency divided by the profile's.", labels=["model", "kind"]
        )
        latest = {(public_key(model), kind): each for (model, kind), each in self._corrections().items()}
        for key, correction in latest.items():
            family.add_metric(key, correction)
        return family

    def _request_families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("sluice_requests", "Requests by outcome.", labels=["pipeline", "outcome"])
        duration = HistogramMetricFamily(
            "sluice_request_duration_seconds", "Time from arrival to answer of answered requests.", labels=["pipeline"]
        )
        attainment = GaugeMetricFamily(
            "sluice_slo_attainment", "Share of requests completed within their latency objective.", labels=["pipeline"]
        )
        stage_rows = CounterMetricFamily(
            "sluice_stage_rows", "Rows that the stage has run, each once.", labels=["pipeline", "stage"]
        )
        cost = CounterMetricFamily(
            "sluice_cost", "Cost of the computing time, in units of currency.", labels=["pipeline"]
        )
        cost_of_good = GaugeMetricFamily(
            "sluice_cost_per_1000_good_requests",
            "Cost per 1000 requests completed within their latency objective.",
            labels=["pipeline"],
        )
        for pipeline, meter in self._pipelines.items():
            cost.add_metric([pipeline], meter.cost)
            if good := meter.outcomes[Outcome.COMPLETED]:
                cost_of_good.add_metric([pipeline], 1000 * meter.cost / good)
            for outcome, count in meter.outcomes.items():
                requests.add_metric([pipeline, outcome], count)
            meter.duration.add_to(duration, [pipeline], NS_PER_S)
            if (share := meter.attainment) is not None:
                attainment.add_metric([pipeline], share)
            for stage, rows in zip(meter.stages, meter.stage_rows, strict=True):
                stage_rows.add_metric([pipeline, stage], rows)
        yield from (requests, duration, attainment, stage_rows, cost, cost_of_good)

    def _batch_families(self) -> Iterator[Metric]:
        batches = CounterMetricFamily(
            "sluice_batches", "Batches by the reason they were closed.", labels=["model", "partition", "reason"]
        )
        rows = HistogramMetricFamily("sluice_batch_rows", "Rows per batch.", labels=["model", "partition"])
        compute = HistogramMetricFamily(
            "sluice_batch_compute_seconds", "Time of a batch in the backend.", labels=["model", "partition"]
        )
        for key, meter in self._batches.items():
            if public_key(key[0]) != key[0]:
                continue  # counted with its version
            for reason, count in meter.reasons.items():
                batches.add_metric([*key, reason], count)
            meter.rows.add_to(rows, key)
            meter.compute.add_to(compute, key, NS_PER_S)
        yield from (batches, rows, compute)
