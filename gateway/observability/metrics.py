"""Prometheus metrics: what the meters count is written as text when it is scraped."""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.interface.events import FailureCause
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.exposition import (
    NO_EXEMPLARS,
    ExposedMetric,
    Group,
    HistogramText,
    exposition,
    exposition_in_slices,
    of_metrics,
    pairs,
)
from sluice.gateway.observability.meters import (
    DURATION_BOUNDS_NS,
    ROW_BOUNDS,
    BatchMeter,
    Histogram,
    Meters,
    PipelineMeter,
)
from sluice.gateway.observability.openmetrics import OPENMETRICS, TEXT, wants_openmetrics
from sluice.gateway.observability.statistics import Statistics
from sluice.gateway.observability.triton_metrics import triton_groups
from sluice.gateway.version import is_compiled, server_version
from sluice.models.spec import public_key
from sluice.models.units import NS_PER_S

QUEUE_REQUESTS = ExposedMetric(
    "sluice_queue_requests",
    "gauge",
    "Requests that wait in the queues of the model, retried ones included.",
    ("model",),
)
QUEUE_ROWS = ExposedMetric("sluice_queue_rows", "gauge", "Rows that wait in the queues of the model.", ("model",))
LATENCY_CORRECTION = ExposedMetric(
    "sluice_latency_correction",
    "gauge",
    "Measured latency of the model divided by the latency in its profile; 1 if the profile is right.",
    ("kind", "model"),
)
LEARNED_ROWS = ExposedMetric(
    "sluice_batch_learned_rows",
    "gauge",
    "Rows that a batch may have at most on the partition, as the batch policies aimd and quantile have learned.",
    ("model", "partition"),
)
REQUESTS = ExposedMetric(
    "sluice_requests_total",
    "counter",
    "Requests that have ended, by outcome; every request has exactly one outcome.",
    ("outcome", "pipeline"),
)
DURATION = ExposedMetric(
    "sluice_request_duration_seconds",
    "histogram",
    "Time from the arrival of a request to its answer; only answered requests are counted.",
    ("pipeline",),
)
ATTAINMENT = ExposedMetric(
    "sluice_slo_attainment",
    "gauge",
    "Share of all requests since the start that were completed within their latency objective; cancelled requests "
    "are left out.",
    ("pipeline",),
)
STAGE_ROWS = ExposedMetric(
    "sluice_stage_rows_total",
    "counter",
    "Rows that the stage of the pipeline has run; a row that ran again is counted once.",
    ("pipeline", "stage"),
)
COST = ExposedMetric(
    "sluice_cost_total",
    "counter",
    "Cost of the computing time that requests have taken, in units of the currency of the prices.",
    ("pipeline",),
)
PARTIAL = ExposedMetric(
    "sluice_partial_joins_total",
    "counter",
    "Joins of ensembles without the members that had no answer on time.",
    ("pipeline",),
)
COST_OF_GOOD = ExposedMetric(
    "sluice_cost_per_1000_good_requests",
    "gauge",
    "Cost since the start per 1000 requests that were completed within their latency objective.",
    ("pipeline",),
)
BATCHES = ExposedMetric(
    "sluice_batches_total",
    "counter",
    "Batches that ran, by the reason they were closed: full, idle, delay, deadline, retry or compete.",
    ("model", "partition", "reason"),
)
BATCH_FAILURES = ExposedMetric(
    "sluice_batch_failures_total",
    "counter",
    "Batches that did not complete, by cause; their requests are retried where that can help.",
    ("cause", "model", "partition"),
)
BUSY = ExposedMetric(
    "sluice_partition_busy_seconds_total",
    "counter",
    "Time that the partition's backend has computed; its rate is the share of time that the partition is busy.",
    ("partition",),
)
BATCH_ROWS = ExposedMetric("sluice_batch_rows", "histogram", "Rows of a batch.", ("model", "partition"))
PADDED_ROWS = ExposedMetric(
    "sluice_batch_padded_rows_total",
    "counter",
    "Rows that were added to batches, since the policy static allows certain sizes only.",
    ("model", "partition"),
)
BATCH_COMPUTE = ExposedMetric(
    "sluice_batch_compute_seconds", "histogram", "Time of a batch in the model's backend.", ("model", "partition")
)

_DURATION = HistogramText(DURATION, DURATION_BOUNDS_NS, NS_PER_S)
_BATCH_ROWS = HistogramText(BATCH_ROWS, ROW_BOUNDS)
_BATCH_COMPUTE = HistogramText(BATCH_COMPUTE, DURATION_BOUNDS_NS, NS_PER_S)
# Members of an enumeration are slow to look up, and these lines are written for each pipeline and partition.
_REQUESTS = "".join(f'{REQUESTS.name}{{outcome="{outcome}",\0}} %d.0\n' for outcome in Outcome)
_REASONS = tuple(ReleaseReason)
_BATCHES = "".join(f'{BATCHES.name}{{\0,reason="{reason}"}} %d.0\n' for reason in _REASONS)
_CAUSES = tuple(FailureCause)
_FAILURES = "".join(f'{BATCH_FAILURES.name}{{cause="{cause}",\0}} %d.0\n' for cause in _CAUSES)
_NO_FAILURES = _FAILURES % ((0,) * len(_CAUSES))


class MetricsSource(ABC):
    """Metrics that another part of the server counts."""

    async def refresh(self) -> None:
        """Update the counts; returns soon, even without an answer."""
        return

    @abstractmethod
    def collect(self) -> Iterator[Metric]:
        """The families with few samples, for prometheus_client."""

    def groups(self) -> Iterator[Group]:
        """All families; those with a sample for each model are to be written in steps."""
        return of_metrics(self.collect())


class ServerMetrics:
    """All metrics of one server; `stages` are the names of the stages of each pipeline, by `name:version`.

    The callables are evaluated at each scrape. `queues` has the waiting requests and rows of models, by key; it is read
    step by step. `corrections` has, by model and kind of partition, the measured latency divided by the profile's.
    `learned` has, by model and partition, the batch sizes of policies that learn them. `breakers` is the state of each
    Triton server's circuit breaker. Triton's counters of latencies can be left out.
    """

    def __init__(
        self,
        stages: Mapping[str, Sequence[str]],
        partitions: Sequence[str],
        queues: Callable[[], Iterable[tuple[str, int, int]]],
        arena_bytes: Callable[[], int],
        corrections: Callable[[], Iterable[tuple[str, str, float]]] = tuple,
        breakers: Callable[[], Mapping[str, str]] = dict,
        learned: Callable[[], Iterable[tuple[str, str, int]]] = tuple,
        statistics: Statistics | None = None,
        *,
        counter_latencies: bool = True,
    ) -> None:
        self.meters = Meters(stages, partitions, statistics)
        self._queues = queues
        self._input_bytes = [arena_bytes]
        self._corrections = corrections
        self._breakers = breakers
        self._learned = learned
        self._counter_latencies = counter_latencies
        self._build = (server_version(), "true" if is_compiled() else "false")
        self._of_models: Callable[[], Iterable[Group]] = tuple
        self._remotes: list[MetricsSource] = []
        self._scraping: dict[bool, asyncio.Task[list[bytes]]] = {}

    def exposition(self, *, openmetrics: bool = False) -> bytes:
        """All metrics in the text format of Prometheus, or in OpenMetrics, of one instant."""
        return exposition(self._groups(openmetrics), openmetrics=openmetrics)

    def include(self, remote: MetricsSource) -> None:
        """Add metrics that another part of the server counts."""
        self._remotes.append(remote)

    def include_models(self, groups: Callable[[], Iterable[Group]]) -> None:
        """Add metrics that models define; evaluated at each scrape."""
        self._of_models = groups

    def add_input_memory(self, used_bytes: Callable[[], int]) -> None:
        """Count the memory for inputs that another part of the server has, too; evaluated at each scrape."""
        self._input_bytes.append(used_bytes)

    async def scrape(self, *, openmetrics: bool = False) -> Sequence[bytes]:
        """The metrics in pieces, after a refresh of the included sources.

        The event loop gets its turn again and again, so that requests are served meanwhile. The lines about one
        pipeline, or about one model on one partition, are of the same instant. A call during a scrape in the same
        format gets the result of that one.
        """
        scraping = self._scraping.get(openmetrics)
        if scraping is None:
            scraping = asyncio.get_running_loop().create_task(self._scrape(openmetrics))
            self._scraping[openmetrics] = scraping
            scraping.add_done_callback(lambda _: self._scraping.pop(openmetrics))
        return await asyncio.shield(scraping)

    async def scrape_as(self, accept: str) -> tuple[Sequence[bytes], str]:
        """As `scrape`, in the format that the header `Accept` asks for, and its content type."""
        openmetrics = wants_openmetrics(accept)
        return await self.scrape(openmetrics=openmetrics), OPENMETRICS if openmetrics else TEXT

    async def _scrape(self, openmetrics: bool) -> list[bytes]:
        await asyncio.gather(*(remote.refresh() for remote in self._remotes))
        return await exposition_in_slices(self._groups(openmetrics), openmetrics=openmetrics)

    def _groups(self, openmetrics: bool) -> Iterator[Group]:
        waiting: Counter[str] = Counter()
        yield Group(
            (REQUESTS, DURATION, ATTAINMENT, STAGE_ROWS, COST, COST_OF_GOOD, PARTIAL),
            (_pipeline_text(*each, with_exemplars=openmetrics) for each in list(self.meters.pipelines.items())),
        )
        yield Group((BATCHES, BATCH_FAILURES, BATCH_ROWS, PADDED_ROWS, BATCH_COMPUTE), self._batch_texts())
        yield Group((QUEUE_REQUESTS, QUEUE_ROWS), self._queue_texts(waiting))
        yield Group((LATENCY_CORRECTION,), self._correction_texts())
        yield Group((LEARNED_ROWS,), self._learned_texts())
        yield Group((BUSY,), self._busy_texts())
        yield from of_metrics(self._few())
        for remote in self._remotes:
            yield from remote.groups()
        yield from triton_groups(
            self.meters.statistics,
            list(self.meters.pipelines),
            waiting,
            counter_latencies=self._counter_latencies,
        )
        yield from self._of_models()

    def _busy_texts(self) -> Iterator[tuple[str, ...]]:
        for partition, busy_ns in list(self.meters.busy_ns.items()):
            yield (BUSY.sample((partition,), busy_ns / NS_PER_S),)

    def _few(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "sluice_build_info",
            "Always 1; the labels have the server's version, and whether core and hot path are compiled.",
            labels=["version", "compiled"],
        )
        build.add_metric(self._build, 1)
        arena = GaugeMetricFamily(
            "sluice_arena_used_bytes", "Bytes in use of the shared memory for the inputs of requests."
        )
        arena.add_metric([], sum(each() for each in self._input_bytes))
        breakers = GaugeMetricFamily(
            "sluice_triton_breaker",
            "1 for the present state of the Triton server's circuit breaker, 0 for its other states.",
            labels=["partition", "state"],
        )
        for partition, state in self._breakers().items():
            for each in ("closed", "open", "half_open"):
                breakers.add_metric([partition, each], int(state == each))
        yield from (build, arena, breakers)

    def _queue_texts(self, waiting: Counter[str]) -> Iterator[tuple[str, ...]]:
        """The lines of queues; adds the waiting requests to `waiting`, by public key."""
        waiting_rows: Counter[str] = Counter()
        for model, requests, rows in self._queues():
            key = public_key(model)
            waiting[key] += requests
            waiting_rows[key] += rows
            yield ()
        for key, requests in waiting.items():
            yield QUEUE_REQUESTS.sample((key,), requests), QUEUE_ROWS.sample((key,), waiting_rows[key])

    def _correction_texts(self) -> Iterator[tuple[str, ...]]:
        latest: dict[tuple[str, str], float] = {}
        for model, kind, correction in self._corrections():
            latest[kind, public_key(model)] = correction
            yield ()
        for key, correction in latest.items():
            yield (LATENCY_CORRECTION.sample(key, correction),)

    def _learned_texts(self) -> Iterator[tuple[str, ...]]:
        latest = {(public_key(model), partition): rows for model, partition, rows in self._learned()}
        for key, rows in latest.items():
            yield (LEARNED_ROWS.sample(key, rows),)

    def _batch_texts(self) -> Iterator[tuple[str, ...]]:
        """The lines of each model on each partition where it has run or failed."""
        batches, failures = self.meters.batches, self.meters.failures
        failed = {(model, partition) for model, partition, _ in list(failures)}
        for key in [*batches, *sorted(failed.difference(batches))]:
            if public_key(key[0]) != key[0]:
                continue  # counted with its version
            labels = pairs(("model", "partition"), key)
            failed_batches = _NO_FAILURES
            if key in failed:
                failed_batches = _FAILURES % tuple([failures[(*key, cause)] for cause in _CAUSES])
            meter = batches.get(key)
            if meter is None:
                yield "", failed_batches.replace("\0", labels), "", "", ""
            else:
                yield _batch_text(labels, meter, failed_batches)


def _batch_text(labels: str, meter: BatchMeter, failed_batches: str) -> tuple[str, ...]:
    counted = meter.reasons
    return (
        (_BATCHES % tuple([counted[reason] for reason in _REASONS])).replace("\0", labels),
        failed_batches.replace("\0", labels),
        _histogram(_BATCH_ROWS, labels, meter.rows),
        f"{PADDED_ROWS.name}{{{labels}}} {meter.padded_rows}.0\n" if meter.padded_rows else "",
        _histogram(_BATCH_COMPUTE, labels, meter.compute),
    )


def _pipeline_text(key: str, meter: PipelineMeter, *, with_exemplars: bool) -> tuple[str, ...]:
    labels = pairs(("pipeline",), (key,))
    counted = meter.outcomes
    good = counted[Outcome.COMPLETED]
    share = meter.attainment
    return (
        (_REQUESTS % tuple(counted.values())).replace("\0", labels),
        _DURATION.text(
            labels, meter.duration.counts, meter.duration.total, meter.exemplars if with_exemplars else NO_EXEMPLARS
        ),
        "" if share is None else f"{ATTAINMENT.name}{{{labels}}} {share!r}\n",
        "".join(
            [STAGE_ROWS.sample((key, stage), rows) for stage, rows in zip(meter.stages, meter.stage_rows, strict=True)]
        ),
        f"{COST.name}{{{labels}}} {meter.cost!r}\n",
        f"{COST_OF_GOOD.name}{{{labels}}} {1000 * meter.cost / good!r}\n" if good else "",
        PARTIAL.sample((key,), meter.partial_joins) if meter.partial_joins else "",
    )


def _histogram(text: HistogramText, labels: str, histogram: Histogram) -> str:
    return text.text(labels, histogram.counts, histogram.total)
