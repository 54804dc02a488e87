"""Pipelines on a fleet without a scheduler, whose models take the same time for every batch size."""

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.interface.config import Limits, PartitionConfig, PipelineConfig
from sluice.batcher.interface.events import PartitionReady
from sluice.batcher.scheduler.pipelines import new_pipeline
from sluice.batcher.state import Entry, PipelineState, Request
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import arrival, model, spec_of


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


def request_of(pipeline: PipelineState, identity: int = 1, rows: int = 1, deadline_ns: int = 0) -> Request:
    """A request that was admitted to the pipeline."""
    event = arrival(identity, deadline_ns, pipeline.config.name, rows=rows)
    stages = pipeline.stage_count
    return Request(identity, pipeline, rows, deadline_ns, event, pipeline.work, pipeline.all_stages, stages)


def entry_of(request: Request, stage: int = 0, sequence: int = 0) -> Entry:
    """An entry with all rows of a request."""
    model = request.pipeline.stages[stage].model
    assert model is not None
    key = (model.config.key, "")
    flow = request.pipeline.number
    return Entry(request, stage, request.rows, None, key, request.deadline_ns, 0, sequence, flow)
