"""What is served: pipelines come, and go with the last of their requests; the models that nobody needs then go, too."""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import msgspec

from sluice.batcher.dispatch.dispatcher import Dispatcher
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision
from sluice.batcher.interface.events import (
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
    PartitionResized,
    PlanBuilt,
    ServingChanged,
)
from sluice.batcher.interface.residency_config import Loading
from sluice.batcher.scheduler.partition_events import PartitionEvents
from sluice.batcher.scheduler.replanner import Replanner
from sluice.batcher.state.model import ModelState
from sluice.batcher.state.pipeline import PipelineState
from sluice.models.pipelines.pipeline import Late

Handlers = Mapping[type[Any], Callable[[Any, int, list[AnyDecision]], None]]
"""What is to be done on an event of a type, at a time, with the decisions that it leads to."""


class PipelineRegistry:
    """Keeps `pipelines`, by name, and the models that they need; `spec` is all that takes requests now.

    A pipeline that is retired is among `retiring` until its last request has its outcome. `handlers` are for the events
    that tell what is served, and where; `reserve` is called before the first pipeline that evicts gets a request.
    """

    def __init__(
        self, spec: SchedulerSpec, dispatcher: Dispatcher, reserve: Callable[[int], None], *, planned: bool
    ) -> None:
        self.spec = spec
        self.retiring: list[PipelineState] = []
        self.pipelines: dict[str, PipelineState] = {}
        self._dispatcher = dispatcher
        self._reserve = reserve
        self._fleet = dispatcher.fleet
        self._next_number = 0
        for config in spec.pipelines:
            self._add(config)
        on_demand = spec.residency.loading is Loading.DEMAND
        self.replanner = Replanner(self._fleet, self.pipelines, for_objectives=on_demand) if planned else None
        holdings = PartitionEvents(spec, dispatcher, self.replanner, lambda: self._specify({}))
        self._holdings = holdings
        self.residency = holdings.residency
        self.cold_starts = holdings.cold_starts
        self.handlers: Handlers = {
            PartitionReady: holdings.partition_ready,
            PartitionLost: holdings.partition_lost,
            PartitionResized: self._resized,
            ModelLoaded: holdings.model_loaded,
            ModelLoadFailed: holdings.model_load_failed,
            ModelUnloaded: holdings.model_unloaded,
            PlanBuilt: holdings.plan_built,
            ServingChanged: self._change,
        }

    def reap(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Forget the retired pipelines that have no request any more, and unload what nobody needs without them.

        A model goes with its last batch, which may end after it was unloaded: on the worker before a resize.
        """
        unneeded: set[str] = set()
        for pipeline in [each for each in self.retiring if not each.outstanding]:
            self.retiring.remove(pipeline)
            for model in self._models_of(pipeline.config):
                model.pipelines.remove(pipeline)
                for queue in model.queues.values():
                    queue.close_flow(pipeline.number)
                if not model.pipelines:
                    unneeded.add(model.config.key)
        if unneeded:
            self.residency.give_up(unneeded, now_ns, decisions)
            self._specify({})
            if self.cold_starts is not None:
                self.cold_starts.check_pinned(now_ns)
        elif any(
            not (self._fleet.models[key].outstanding or self._fleet.models[key].groups)
            for key in self.residency.unwanted
        ):
            self.residency.advance(now_ns, decisions)

    def _change(self, event: ServingChanged, now_ns: int, decisions: list[AnyDecision]) -> None:
        for model in event.models:
            self._fleet.add(model)
        for config in event.pipelines:
            self._add(config)
        if self._dispatcher.reserved is None and any(config.late is Late.EVICT for config in event.pipelines):
            self._reserve(now_ns)
        self.retiring.extend(self.pipelines.pop(name) for name in event.retired)
        self._specify(event.residency)
        self.residency.spare(event.spare, now_ns, decisions)
        self.residency.hold(event.residency, now_ns, decisions)
        self.reap(now_ns, decisions)
        if self.cold_starts is not None:
            self.cold_starts.check_pinned(now_ns)
        if self.replanner is not None:
            self.replanner.redefined()

    def _resized(self, event: PartitionResized, now_ns: int, decisions: list[AnyDecision]) -> None:
        replace = msgspec.structs.replace
        self.spec = replace(
            self.spec,
            partitions=tuple(
                replace(each, kind=event.kind, price=event.price, share=event.share, device=event.device)
                if each.name == event.partition
                else each
                for each in self.spec.partitions
            ),
        )
        self._dispatcher.resized(event, now_ns)
        if self.cold_starts is not None:
            self.cold_starts.allow(self.spec.partitions)
        self._holdings.resized(event, now_ns, decisions)
        if self.replanner is not None:
            self.replanner.redefined()

    def _add(self, config: PipelineConfig) -> None:
        assert config.name not in self.pipelines, f"there is a pipeline {config.name} already"
        self.pipelines[config.name] = PipelineState(self._next_number, config, self._fleet.models)
        self._next_number += 1
        self._fleet.touch(model.config.key for model in self._models_of(config))

    def _specify(self, residency: Mapping[str, Sequence[str]]) -> None:
        models = {key: model.config for key, model in self._fleet.models.items() if key not in self.residency.unwanted}
        partitions = (_may_hold(each, models, residency.get(each.name, ())) for each in self.spec.partitions)
        self.spec = msgspec.structs.replace(
            self.spec,
            models=tuple(models.values()),
            pipelines=tuple(pipeline.config for pipeline in self.pipelines.values()),
            partitions=tuple(partitions),
        )
        if self.cold_starts is not None:
            self.cold_starts.allow(self.spec.partitions)

    def _models_of(self, config: PipelineConfig) -> list[ModelState]:
        """The models that may run a stage of a pipeline, each once."""
        keys = [key for stage in config.stages for key in stage.variants or filter(None, (stage.model,))]
        return [self._fleet.models[key] for key in dict.fromkeys(keys)]


def _may_hold(partition: PartitionConfig, served: Container[str], models: Sequence[str]) -> PartitionConfig:
    """A partition that may hold these models as well, and no longer those that are not served."""
    if partition.models is None:
        return partition
    return msgspec.structs.replace(partition, models=(*filter(served.__contains__, partition.models), *models))
