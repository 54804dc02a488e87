"""The server's own figures of a run: batch sizes and rows by pipeline stage, from its Prometheus metrics."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterable

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from sluice.loadgen.records.model_statistics import ModelActivity
from sluice.models.client_tls import NO_TLS, ClientTls, connection_hint
from sluice.models.errors import ConfigError

Counters = dict[tuple[str, str, str], float]
"""(metric, first label, second label) -> value."""

_LABELS = {
    "sluice_batch_rows_sum": ("model", "partition"),
    "sluice_batch_rows_count": ("model", "partition"),
    "sluice_stage_rows_total": ("pipeline", "stage"),
    "sluice_cost_total": ("pipeline", ""),
    "sluice_model_loads_total": ("cause", ""),
}
_TIMEOUT_S = 5.0


class BatchStatistics(msgspec.Struct, frozen=True):
    """The batches of one model on one partition."""

    model: str
    partition: str
    batches: int
    mean_rows: float


class StageShare(msgspec.Struct, frozen=True):
    """The rows of a stage; `share` is relative to the busiest stage of the pipeline, which sees all rows."""

    pipeline: str
    stage: str
    rows: int
    share: float


class ServerReport(msgspec.Struct, frozen=True):
    """Figures of a run from the server's side, warm-up included.

    `models` come from the statistics of its protocol. `cost` is the cost of computing in units of currency, None where
    the server does not tell it.
    """

    batches: tuple[BatchStatistics, ...] = ()
    stages: tuple[StageShare, ...] = ()
    models: tuple[ModelActivity, ...] = ()
    cost: float | None = None

    @property
    def mean_batch(self) -> float:
        """Mean rows a batch over all models and partitions; 0 without batches."""
        return sum(b.batches * b.mean_rows for b in self.batches) / max(1, sum(b.batches for b in self.batches))


def scrape(url: str, headers: Iterable[tuple[str, str]] = (), tls: ClientTls = NO_TLS) -> Counters:
    """Read the counters of a running server; raises `ConfigError` when they cannot be read."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if url.startswith("https://"):
        handlers.append(urllib.request.HTTPSHandler(context=tls.context()))
    opener = urllib.request.build_opener(*handlers)
    try:
        request = urllib.request.Request(url, headers=dict(headers))
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            return read_counters(response.read().decode())
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        hint = connection_hint(reason, url.startswith("https://"))
        raise ConfigError(f"--metrics-url {url}: {error}{hint}") from error


def read_counters(text: str) -> Counters:
    """The counters of interest in a Prometheus text; raises `ValueError` for anything else."""
    counters: Counters = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if labels := _LABELS.get(sample.name):
                first, second = (sample.labels.get(label, "") for label in labels)
                counters[sample.name, first, second] = sample.value
    return counters


def metrics_between(before: Counters, after: Counters) -> ServerReport:
    """The report of what happened between two scrapes; counters that did not change are left out."""
    grown = {key: value - before.get(key, 0.0) for key, value in after.items() if value > before.get(key, 0.0)}
    sizes = {
        (model, partition): (round(count), grown.get(("sluice_batch_rows_sum", model, partition), 0.0))
        for (metric, model, partition), count in grown.items()
        if metric == "sluice_batch_rows_count"
    }
    rows = {
        (pipeline, stage): round(value)
        for (metric, pipeline, stage), value in grown.items()
        if metric == "sluice_stage_rows_total"
    }
    costs = [value for (metric, _, _), value in grown.items() if metric == "sluice_cost_total"]
    return msgspec.structs.replace(server_report(sizes, rows), cost=sum(costs) if costs else None)


def server_report(sizes: dict[tuple[str, str], tuple[int, float]], rows: dict[tuple[str, str], int]) -> ServerReport:
    """Build a report from (batches, rows) by model and partition, and rows by pipeline and stage."""
    busiest: dict[str, int] = {}
    for (pipeline, _), count in rows.items():
        busiest[pipeline] = max(busiest.get(pipeline, 0), count)
    return ServerReport(
        tuple(BatchStatistics(*key, batches, total / batches) for key, (batches, total) in sorted(sizes.items())),
        tuple(StageShare(*key, count, count / busiest[key[0]]) for key, count in sorted(rows.items())),
    )
