"""What the server says of a run: batch sizes and the way through pipelines, from its Prometheus metrics."""

import http.client
import urllib.request

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from sluice.models.errors import ConfigError

Counters = dict[tuple[str, str, str], float]
"""(metric, first label, second label) -> value."""

_LABELS = {
    "sluice_batch_rows_sum": ("model", "partition"),
    "sluice_batch_rows_count": ("model", "partition"),
    "sluice_stage_rows_total": ("pipeline", "stage"),
}
_TIMEOUT_S = 5.0


class BatchSizes(msgspec.Struct, frozen=True):
    """The batches of one model on one partition."""

    model: str
    partition: str
    batches: int
    mean_rows: float


class StageShare(msgspec.Struct, frozen=True):
    """The rows that a stage ran for; `share` is relative to the busiest stage of the pipeline, which sees them all."""

    pipeline: str
    stage: str
    rows: int
    share: float


class ServerSide(msgspec.Struct, frozen=True):
    """A run as the server saw it, warm-up included."""

    batches: tuple[BatchSizes, ...] = ()
    stages: tuple[StageShare, ...] = ()

    @property
    def mean_batch(self) -> float:
        """Rows a batch, over all models and partitions; 0 without batches."""
        return sum(b.batches * b.mean_rows for b in self.batches) / max(1, sum(b.batches for b in self.batches))


def scrape(url: str) -> Counters:
    """The counters a server shows now; raises `ConfigError` when they cannot be had."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as response:
            return read_counters(response.read().decode())
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ConfigError(f"--metrics-url {url}: {error}") from error


def read_counters(text: str) -> Counters:
    """The counters of interest in a Prometheus text; raises `ValueError` for what is none."""
    counters: Counters = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if labels := _LABELS.get(sample.name):
                first, second = (sample.labels.get(label, "") for label in labels)
                counters[sample.name, first, second] = sample.value
    return counters


def difference(before: Counters, after: Counters) -> ServerSide:
    """What happened between two scrapes; whatever did not move is left out."""
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
    return server_side(sizes, rows)


def server_side(sizes: dict[tuple[str, str], tuple[int, float]], rows: dict[tuple[str, str], int]) -> ServerSide:
    """From (batches, rows) by model and partition, and rows by pipeline and stage."""
    busiest: dict[str, int] = {}
    for (pipeline, _), count in rows.items():
        busiest[pipeline] = max(busiest.get(pipeline, 0), count)
    return ServerSide(
        tuple(BatchSizes(*key, batches, total / batches) for key, (batches, total) in sorted(sizes.items())),
        tuple(StageShare(*key, count, count / busiest[key[0]]) for key, count in sorted(rows.items())),
    )
