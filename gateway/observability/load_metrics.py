"""Metrics of what pipelines are to do and of their load, as the scheduler sees them now."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric

from sluice.batcher.prediction.waits import predicted_wait_ns
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.state import PipelineState
from sluice.gateway.observability.exposition import ExposedMetric, Group, pairs
from sluice.gateway.observability.meters import Meters
from sluice.gateway.observability.metrics import MetricsSource
from sluice.models.spec import public_key
from sluice.models.units import NS_PER_S

OBJECTIVE = ExposedMetric(
    "sluice_pipeline_objective_seconds",
    "gauge",
    "Latency objective of the pipeline, or default_slo_ms if it has none of its own.",
    ("pipeline",),
)
PERCENTILE = ExposedMetric(
    "sluice_pipeline_objective_percentile",
    "gauge",
    "Percentage of the admitted requests of the pipeline that are to be complete within the objective.",
    ("pipeline",),
)
IN_FLIGHT = ExposedMetric(
    "sluice_pipeline_in_flight_requests",
    "gauge",
    "Requests of the pipeline that are admitted and have no outcome yet.",
    ("pipeline",),
)
WAIT = ExposedMetric(
    "sluice_pipeline_predicted_wait_seconds",
    "gauge",
    "Time that a request which arrives now would wait for partitions, behind all that is planned on them; missing "
    "while no partition holds its models.",
    ("pipeline",),
)
HEADROOM = ExposedMetric(
    "sluice_pipeline_headroom",
    "gauge",
    "Highest rate at which the pipeline meets its objective over its rate, both by the latest plan and while the other "
    "pipelines keep theirs; below 1 it is overloaded. Only for pipelines with an objective and traffic.",
    ("pipeline",),
)
RUNNING = ExposedMetric(
    "sluice_running_rows",
    "gauge",
    "Rows of the model in batches that are dispatched to the partition and not over.",
    ("model", "partition"),
)


class LoadMetrics(MetricsSource):
    """The objective, the requests in flight, the predicted wait and the headroom of pipelines; rows that run.

    `headrooms` are by pipeline, as of the latest plan. `default_slo_ns` is the objective of pipelines without one.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        meters: Meters,
        clock: Callable[[], int],
        default_slo_ns: int,
        headrooms: Callable[[], Mapping[str, float]],
    ) -> None:
        self._scheduler = scheduler
        self._meters = meters
        self._clock = clock
        self._default_slo_ns = default_slo_ns
        self._headrooms = headrooms

    def collect(self) -> Iterator[Metric]:
        """No family has few samples."""
        yield from ()

    def groups(self) -> Iterator[Group]:
        """All families."""
        yield Group((OBJECTIVE, PERCENTILE, IN_FLIGHT, WAIT, HEADROOM), self._pipeline_texts())
        yield Group((RUNNING,), self._running_texts())

    def _pipeline_texts(self) -> Iterator[tuple[str, ...]]:
        revisions: dict[str, list[PipelineState]] = {}
        for key, pipeline in list(self._scheduler.pipelines.items()):
            revisions.setdefault(public_key(key), []).append(pipeline)
            yield ()
        headrooms = self._headrooms()
        for key, states in revisions.items():
            yield self._pipeline_text(key, states, headrooms)

    def _pipeline_text(self, key: str, states: list[PipelineState], headrooms: Mapping[str, float]) -> tuple[str, ...]:
        latest = states[-1]
        config = latest.config
        labels = f"{{{pairs(('pipeline',), (key,))}}}"
        wait_ns = predicted_wait_ns(latest, self._clock())
        headroom = headrooms.get(config.name)
        return (
            f"{OBJECTIVE.name}{labels} {(config.slo_ns or self._default_slo_ns) / NS_PER_S!r}\n",
            f"{PERCENTILE.name}{labels} {config.percentile!r}\n",
            f"{IN_FLIGHT.name}{labels} {sum(state.outstanding for state in states)}.0\n",
            "" if wait_ns is None else f"{WAIT.name}{labels} {wait_ns / NS_PER_S!r}\n",
            "" if headroom is None else f"{HEADROOM.name}{labels} {headroom!r}\n",
        )

    def _running_texts(self) -> Iterator[tuple[str, ...]]:
        """The rows that run; 0 where a model has run before."""
        running: Counter[tuple[str, str]] = Counter()
        for partition in self._scheduler.dispatcher.fleet.partitions.values():
            for batch in partition.batches:
                running[public_key(batch.queue_key[0]), partition.name] += batch.rows
        known = {key: None for key in self._meters.batches if public_key(key[0]) == key[0]}
        for key in {**known, **dict.fromkeys(running)}:
            yield (RUNNING.sample(key, running[key]),)
