"""Pipelines on a fleet without a scheduler, whose models take the same time for every batch size."""

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.interface.config import Limits, PartitionConfig, PipelineConfig
from sluice.batcher.interface.events import PartitionReady
from sluice.batcher.scheduler.pipelines import new_pipeline
from sluice.batcher.state import PipelineState
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import model, spec_of


class Pipelines:
    """Pipelines, by name, of the models in `latency_ms`, all of which run on every one of the `partitions`."""

    def __init__(
        self,
        latency_ms: dict[str, float],
        *configs: PipelineConfig,
        partitions: tuple[str | PartitionConfig, ...] = ("cpu0",),
        max_batch: int = 1,
        hand_off_ns: int = 0,
    ) -> None:
        models = [model(key, max_batch) for key in latency_ms]
        self.spec = spec_of(models, configs, partitions=partitions, limits=Limits(hand_off_ns=hand_off_ns))
        self.fleet = Fleet(self.spec)
        self.by_name: dict[str, PipelineState] = {}
        for number, config in enumerate(self.spec.pipelines):
            pipeline = self.by_name[config.name] = new_pipeline(number, config, self.fleet.models)
            for stage in pipeline.stages:
                if stage.model is not None and pipeline not in stage.model.pipelines:
                    stage.model.pipelines.append(pipeline)
        tables = {key: LatencyTable.from_ms({1: latency}) for key, latency in latency_ms.items()}
        for partition in self.spec.partitions:
            self.fleet.ready(PartitionReady(partition.name, tables))
