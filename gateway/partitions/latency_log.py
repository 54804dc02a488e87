"""Log lines about latencies that a user should know of when a model is loaded."""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from sluice.batcher.interface.config import PipelineConfig
from sluice.batcher.interface.events import ModelLoaded, PartitionReady, PartitionResized
from sluice.gateway.observability.logs import log
from sluice.gateway.partitions.inventory import InventoryChange
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_US, ms_to_ns, ns_to_ms

logger = logging.getLogger(__name__)

NOISE = 0.2
"""The part by which a measured latency may be too low by chance."""
NOISE_NS = 100 * NS_PER_US
"""The time by which it may be so as well: on a busy machine, a batch of some microseconds is soon twice as quick."""


class LatencyLog:
    """Logs tables in which a larger batch takes less time, and batches that take longer than an objective.

    `pipelines` returns those that are served; the objective of one that has none is `default_slo_ms`.
    """

    def __init__(self, pipelines: Callable[[], Sequence[PipelineConfig]], default_slo_ms: float) -> None:
        self._pipelines = pipelines
        self._default_ns = ms_to_ns(default_slo_ms)
        self._known: Sequence[PipelineConfig] = ()
        self._objectives: dict[str, list[tuple[str, int]]] = {}  # pipelines and their objectives, by model

    def changed(self, change: InventoryChange) -> None:
        """Log what there is to say about the models that a partition has loaded."""
        tables: Mapping[str, LatencyTable]
        match change.event:
            case PartitionReady(tables=tables) | PartitionResized(tables=tables):
                pass
            case ModelLoaded(model=model, table=table):
                tables = {model: table}
            case _:
                return
        self._find_objectives()
        partition = change.event.partition
        for model, table in tables.items():
            _log_faster(partition, model, table)
            took_ns = table.latency_ns(1)
            for pipeline, objective_ns in self._objectives.get(model, ()):
                if took_ns > objective_ns:
                    log(
                        logger,
                        logging.WARNING,
                        "every batch takes longer than the objective",
                        pipeline=pipeline,
                        model=model,
                        partition=partition,
                        took_ms=ns_to_ms(took_ns),
                        objective_ms=ns_to_ms(objective_ns),
                    )

    def _find_objectives(self) -> None:
        pipelines = self._pipelines()
        if pipelines is self._known:
            return
        self._known, self._objectives = pipelines, {}
        for pipeline in pipelines:
            models = dict.fromkeys(key for stage in pipeline.stages for key in stage.variants or (stage.model,))
            for model in models:
                if model is not None:
                    objective = pipeline.name, pipeline.slo_ns or self._default_ns
                    self._objectives.setdefault(model, []).append(objective)


def _log_faster(partition: str, model: str, table: LatencyTable) -> None:
    """Log the first batch size that takes less time than the next smaller one, by more than chance."""
    for (smaller, smaller_ns), (larger, larger_ns) in pairwise(table.cells):
        if larger_ns < (1 - NOISE) * smaller_ns - NOISE_NS:
            log(
                logger,
                logging.WARNING,
                "a larger batch takes less time than a smaller one",
                model=model,
                partition=partition,
                rows=larger,
                took_ms=ns_to_ms(larger_ns),
                smaller_rows=smaller,
                smaller_took_ms=ns_to_ms(smaller_ns),
            )
            return
