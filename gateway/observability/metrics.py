"""Prometheus metrics: what the meters count is converted to families when they are scraped."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.meters import Meters
from sluice.gateway.observability.openmetrics import END, OPENMETRICS, TEXT, as_openmetrics, wants_openmetrics
from sluice.gateway.observability.statistics import Statistics, nv_metrics
from sluice.gateway.version import is_compiled, server_version
from sluice.models.spec import public_key
from sluice.models.units import NS_PER_S


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
        self.meters = Meters(stages, partitions, statistics)
        self._queue_depths = queue_depths
        self._input_bytes = [arena_bytes]
        self._corrections = corrections
        self._breakers = breakers
        self._build = (server_version(), "true" if is_compiled() else "false")
        self._of_models: Callable[[], str] = str
        self._remotes: list[MetricsSource] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def exposition(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        nv = nv_metrics(self.meters.statistics, self.meters.pipelines, self._waiting())
        return generate_latest(self._registry) + nv.encode() + self._of_models().encode()

    def include(self, remote: MetricsSource) -> None:
        """Add metrics that another part of the server counts."""
        self._remotes.append(remote)
        self._registry.register(remote)

    def include_text(self, exposition: Callable[[], str]) -> None:
        """Add metrics in the text format that models define; evaluated at each scrape."""
        self._of_models = exposition

    def add_input_memory(self, used_bytes: Callable[[], int]) -> None:
        """Count the memory for inputs that another part of the server has, too; evaluated at each scrape."""
        self._input_bytes.append(used_bytes)

    async def scrape(self) -> bytes:
        """As `exposition`, after a refresh of the included sources."""
        for remote in self._remotes:
            await remote.refresh()
        return self.exposition()

    async def scrape_as(self, accept: str) -> tuple[bytes, str]:
        """As `scrape`, in the format that the header `Accept` asks for, and its content type."""
        text = await self.scrape()
        if not wants_openmetrics(accept):
            return text, TEXT
        return as_openmetrics(text, self.meters.pipelines) + END, OPENMETRICS

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
        for partition, busy_ns in self.meters.busy_ns.items():
            busy.add_metric([partition], busy_ns / NS_PER_S)
        build = GaugeMetricFamily(
            "sluice_build_info",
            "1, with the version and whether core and hot path are compiled.",
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
        for pipeline, meter in self.meters.pipelines.items():
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
        for key, meter in self.meters.batches.items():
            if public_key(key[0]) != key[0]:
                continue  # counted with its version
            for reason, count in meter.reasons.items():
                batches.add_metric([*key, reason], count)
            meter.rows.add_to(rows, key)
            meter.compute.add_to(compute, key, NS_PER_S)
        yield from (batches, rows, compute)
