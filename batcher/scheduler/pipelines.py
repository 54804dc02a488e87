"""The registry of pipelines: drops a retired pipeline after its last request, and a model after its last pipeline."""

from collections.abc import Callable, Container, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import msgspec

from sluice.batcher.dispatch.dispatcher import Dispatcher
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, SchedulerSpec
from sluice.batcher.interface.decisions import AcceptChange, AnyDecision, RejectChange
from sluice.batcher.interface.events import (
    LinkMeasured,
    MemorySampled,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
    PartitionResized,
    PlanBuilt,
    ServingChanged,
)
from sluice.batcher.interface.planner_config import Replan
from sluice.batcher.interface.residency_config import Loading
from sluice.batcher.places.places import late_share
from sluice.batcher.places.planned_batches import DEVIATIONS
from sluice.batcher.residency.placement import NewPlacement, find_room, model_needs
from sluice.batcher.scheduler.memory_shares import MemoryShares
from sluice.batcher.scheduler.partition_events import PartitionEvents
from sluice.batcher.scheduler.replanner import NoReplanner, Replanner
from sluice.batcher.scheduler.resizer import NoResizer, Resizer
from sluice.batcher.state import ModelState, PipelineState, StageState
from sluice.models.pipelines.pipeline import Late

Handlers = Mapping[type[Any], Callable[[Any, int, list[AnyDecision]], None]]
"""The handler of each type of event, called with the event, the time and the list of decisions to extend."""

_MIB = 1 << 20

TAIL_SHARE = 0.3
"""The share of batches that may end later than their places allow, in parts of what the percentile of a pipeline does.

The rest is for what varies with time, which the feedback on late requests sees too late for the first of them.
"""
MOST_LINKS = 256
"""The most pairs of stages, one of which waits for the other, of a pipeline that runs strictly as planned."""


class PipelineRegistry:
    """Keeps `pipelines`, by name, and the models that they need; `spec` describes what is served now.

    Each pipeline has a share of the `memory`. A retired pipeline is in `retiring` until its last request has its
    outcome. `handlers` handle the events that change pipelines and partitions.
    """

    def __init__(self, spec: SchedulerSpec, dispatcher: Dispatcher, memory: MemoryShares, *, planned: bool) -> None:
        self.spec = spec
        self.retiring: list[PipelineState] = []
        self.pipelines: dict[str, PipelineState] = {}
        self._dispatcher = dispatcher
        self._memory = memory
        self._fleet = dispatcher.fleet
        self._next_number = 0
        for config in spec.pipelines:
            self._add(config)
        self.replanner: Replanner | NoReplanner = NoReplanner()
        if planned:
            on_demand = spec.residency.loading is Loading.DEMAND
            once = spec.planner.replan is Replan.ONCE
            self.replanner = Replanner(self._fleet, self.pipelines, for_objectives=on_demand, once=once)
        self.resizer: Resizer | NoResizer = NoResizer()
        if spec.resizing is not None:
            self.resizer = Resizer(spec.resizing, self._fleet, self.pipelines, self.replanner, lambda: self.spec)
        partition_events = PartitionEvents(spec, dispatcher, self.replanner, self.pipelines, self._specify)
        self._partition_events = partition_events
        self.residency = partition_events.residency
        self.loader = partition_events.loader
        self.scaler = partition_events.scaler
        self.handlers: Handlers = {
            PartitionReady: partition_events.partition_ready,
            PartitionLost: partition_events.partition_lost,
            LinkMeasured: partition_events.link_measured,
            PartitionResized: self._resized,
            ModelLoaded: partition_events.model_loaded,
            ModelLoadFailed: partition_events.model_load_failed,
            ModelUnloaded: partition_events.model_unloaded,
            PlanBuilt: partition_events.plan_built,
            MemorySampled: partition_events.memory_sampled,
            ServingChanged: self._change,
            **self.resizer.handlers,
        }

    def reap(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Forget retired pipelines without requests, and retire the models that no other pipeline needs.

        A model is kept until its last batch ends. That may be after its unload, on the worker before a resize.
        """
        unneeded: set[str] = set()
        for pipeline in [each for each in self.retiring if not each.outstanding]:
            self.retiring.remove(pipeline)
            self._dispatcher.forget(pipeline)
            self._memory.leave()
            for model in self._models_of(pipeline.config):
                model.pipelines.remove(pipeline)
                if not model.pipelines:
                    unneeded.add(model.config.key)
        if unneeded:
            self.residency.retire(unneeded, now_ns, decisions)
            self._specify()
            self.loader.check_pinned(now_ns)
        elif any(
            not (self._fleet.models[key].outstanding or self._fleet.models[key].groups)
            for key in self.residency.retired
        ):
            self.residency.advance(now_ns, decisions)

    def _change(self, event: ServingChanged, now_ns: int, decisions: list[AnyDecision]) -> None:
        retired = [name for name in event.retired if name in self.pipelines]
        if not (event.models or event.pipelines or retired):
            return
        placement = self._place(event) if event.models else NewPlacement({}, {}, (), 0)
        if isinstance(placement, RejectChange):
            decisions.append(placement)
            return
        if event.models:
            decisions.append(AcceptChange({model.key: placement.hosts(model.key) for model in event.models}))
        for model in event.models:
            self._fleet.add(model)
        for config in event.pipelines:
            self._add(config)
        self.retiring += map(self.pipelines.pop, retired)
        self._specify([model.key for model in event.models])
        self.scaler.start_for([model.key for model in event.models if not self._is_up(placement, model.key)], now_ns)
        self.residency.add_extra(placement.residency, placement.spare, now_ns, decisions)
        self.reap(now_ns, decisions)
        self.loader.check_pinned(now_ns)
        self.replanner.redefined()

    def _is_up(self, placement: NewPlacement, key: str) -> bool:
        """True if a partition that is to hold a new model can load it now."""
        hosts = map(self._fleet.partitions.__getitem__, placement.hosts(key))
        return any(host.ready and not host.closed for host in hosts)

    def _place(self, event: ServingChanged) -> NewPlacement | RejectChange:
        """Place the models of a change; a model without room waits for demand, if that is possible."""
        new, packing = tuple(model.key for model in event.models), self.spec.residency.packing
        needs = model_needs([*self.spec.models, *event.models], self.spec.partitions)
        partitions = [_may_hold(each, needs, new) for each in self.spec.partitions if not each.fixed]
        states, held = self._fleet.partitions, {each.name: self.residency.held(each.name) for each in partitions}
        serving = {name: states[name].models if states[name].ready else frozenset[str]() for name in held}
        # A worker that is gone may not come back: its partition is used only if no other has room.
        up = [
            each
            for each in partitions
            if not each.memory_bytes or (states[each.name].ready and not states[each.name].closed)
        ]
        placement = find_room(needs, new, up or partitions, held, serving, packing)
        if placement.unplaced:
            placement = find_room(needs, new, partitions, held, serving, packing)
        largest = max((each.memory_bytes for each in partitions), default=0)
        for key in placement.unplaced:
            size = _mib(needs[key].memory_bytes)
            if needs[key].memory_bytes > largest:
                reason = f"no partition has room for the {size} that {key} takes, only for {_mib(largest)}"
                return RejectChange(new, reason, passing=False)
            if event.is_reload and self.spec.residency.loading is not Loading.DEMAND:
                free = f"{_mib(placement.free_bytes)} of {_mib(largest)} are free"
                reason = f"no partition has room for the {size} of {key} beside what is served: {free}"
                return RejectChange(new, reason, passing=True)
        return placement

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
        self.loader.allow(self.spec.partitions)
        self._partition_events.resized(event, now_ns, decisions)
        self.replanner.redefined()
        self.resizer.resized(event.partition, decisions)

    def _add(self, config: PipelineConfig) -> None:
        assert config.name not in self.pipelines, f"there is a pipeline {config.name} already"
        pipeline = self.pipelines[config.name] = new_pipeline(self._next_number, config, self._fleet.models)
        self._next_number += 1
        self._memory.join()
        for model in self._models_of(config):
            model.pipelines.append(pipeline)
        self._fleet.touch(model.config.key for model in self._models_of(config))

    def _specify(self, new: Sequence[str] = ()) -> None:
        models = {key: model.config for key, model in self._fleet.models.items() if key not in self.residency.retired}
        partitions = (_may_hold(each, models, new) for each in self.spec.partitions)
        self.spec = msgspec.structs.replace(
            self.spec,
            models=tuple(models.values()),
            pipelines=tuple(pipeline.config for pipeline in self.pipelines.values()),
            partitions=tuple(partitions),
        )
        self.loader.allow(self.spec.partitions)

    def _models_of(self, config: PipelineConfig) -> list[ModelState]:
        """The models that may run a stage of a pipeline, without duplicates."""
        keys = [key for stage in config.stages for key in stage.variants or filter(None, (stage.model,))]
        return [self._fleet.models[key] for key in dict.fromkeys(keys)]


def _may_hold(partition: PartitionConfig, served: Container[str], new: Sequence[str]) -> PartitionConfig:
    """The partition with new models added to its allowed models, unless it is fixed, and unserved ones removed."""
    if partition.models is None:
        return partition
    known = filter(served.__contains__, partition.models)
    return msgspec.structs.replace(partition, models=(*known, *(() if partition.fixed else new)))


def _mib(size: int) -> str:
    return f"{size / _MIB:.3g} MiB"


def new_pipeline(number: int, config: PipelineConfig, models: Mapping[str, ModelState]) -> PipelineState:
    """The state of a new pipeline; `models` are all models by key."""
    waits_for = [
        tuple(sorted({*stage.sources, *((stage.when.stage,) if stage.when else ())})) for stage in config.stages
    ]
    stages = [
        StageState(
            index,
            stage,
            None if stage.model is None else models[stage.model],
            waits_for[index],
            [later for later, sources in enumerate(waits_for) if index in sources],
            stage.request_keyed or stage.source_keyed or stage.compete is not None,
        )
        for index, stage in enumerate(config.stages)
    ]
    partial = tuple([stage for stage in stages if stage.config.partial])
    has_sequences = any(stage.model is not None and stage.model.config.sequences is not None for stage in stages)
    feeds = _feeds(stages) if config.percentile == 100 else []
    fed_by = [tuple([source for source, later in enumerate(feeds) if index in later]) for index in range(len(feeds))]
    return PipelineState(
        number,
        config,
        stages,
        stage_count=len(stages),
        planned_rows=[0] * len(stages),
        missing=[len(sources) for sources in waits_for],
        roots=[stage for stage in stages if not stage.waits_for],
        is_keyed=any(stage.is_keyed for stage in stages),
        single=len(stages) == 1 and not stages[0].config.uses_cache,
        feeds=feeds,
        fed_by=fed_by,
        has_parallel_stages=_has_parallel_stages(stages),
        has_sequences=has_sequences,
        partial=partial,
        evicts=config.late is Late.EVICT and not has_sequences and not partial,
        caution=NormalDist().inv_cdf(1 - TAIL_SHARE * late_share(config)) / DEVIATIONS,
    )


def _feeds(stages: Sequence[StageState]) -> list[tuple[int, ...]]:
    """By stage, the later model stages that wait for its end, directly or through combiners.

    Empty if the batches of a pipeline cannot run strictly as planned: its models are run in another order than that of
    deadlines or have an instance policy, or there are more than `MOST_LINKS` pairs of stages.
    """
    models = [stage.model for stage in stages if stage.model is not None]
    if not all(model.by_deadline and model.config.instances is None for model in models):
        return []
    sources: list[dict[int, None]] = []
    feeds: list[list[int]] = [[] for _ in stages]
    links = 0
    for stage in stages:
        own: dict[int, None] = {}
        for source in stage.waits_for:
            own.update(sources[source] if stages[source].model is None else {source: None})
        links += len(own)
        if links > MOST_LINKS:
            return []
        sources.append(own)
        if stage.model is not None:
            for source in own:
                feeds[source].append(stage.index)
    return [tuple(later) for later in feeds]


def _has_parallel_stages(stages: Sequence[StageState]) -> bool:
    """True if neither of two model stages comes before the other."""
    before: list[int] = []
    earlier = 0
    for stage in stages:
        mask = 0
        for source in stage.waits_for:
            mask |= before[source] | 1 << source
        before.append(mask)
        if stage.config.model is not None:
            if earlier & ~mask:
                return True
            earlier |= 1 << stage.index
    return False
