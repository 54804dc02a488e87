"""Partition events: partitions come up, are lost or resized, and load and unload models."""

from collections.abc import Callable, Mapping

import msgspec

from sluice.batcher.dispatch.dispatcher import Dispatcher
from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision, UnloadModel
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
)
from sluice.batcher.interface.plan_data import PipelinePlan
from sluice.batcher.interface.residency_config import Loading
from sluice.batcher.residency.on_demand import NoOnDemandLoading, OnDemandLoader
from sluice.batcher.residency.partition_memory import record_measured_memory
from sluice.batcher.residency.reconciler import ResidencyReconciler
from sluice.batcher.scaling.scaler import NoScaler, Scaler
from sluice.batcher.scheduler.replanner import NoReplanner, Replanner
from sluice.batcher.state import PipelineState
from sluice.models.profiles.measurement import ModelMemory


class PartitionEvents:
    """Handles the events of partitions and their models, and the plans that place models.

    `loader` loads models on demand if the spec says so: then demand places models instead of the plan. `grown` is
    called when models take more memory than was assumed.
    """

    def __init__(
        self,
        spec: SchedulerSpec,
        dispatcher: Dispatcher,
        replanner: Replanner | NoReplanner,
        pipelines: Mapping[str, PipelineState],
        grown: Callable[[], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._grown = grown
        self._replanner = replanner
        self.residency = ResidencyReconciler(dispatcher.fleet, self._unloading)
        self.scaler: Scaler | NoScaler = NoScaler()
        if spec.scaling.classes:
            self.scaler = Scaler(
                spec,
                dispatcher.fleet,
                pipelines,
                self._closed,
                dispatcher.sequences.is_used,
                self.residency.loading,
                self._is_served,
                self._plans,
            )
        self.loader: OnDemandLoader | NoOnDemandLoading = NoOnDemandLoading()
        if spec.residency.loading is Loading.DEMAND:
            self.loader = OnDemandLoader(
                spec, dispatcher.fleet, self.residency, dispatcher.reconsider, dispatcher.is_kept
            )

    def partition_ready(self, event: PartitionReady, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Record that a partition's worker is up; it unloads models that are no longer served."""
        models = self._dispatcher.models
        if forgotten := sorted(event.tables.keys() - models.keys()):
            decisions.extend(UnloadModel(event.partition, key) for key in forgotten)
            tables = {key: table for key, table in event.tables.items() if key in models}
            event = msgspec.structs.replace(event, tables=tables)
        self.scaler.ready(event.partition, now_ns)
        self._dispatcher.ready(event, now_ns)
        grown = self._record_memory(event.partition, event.memory)
        self.residency.check(event.partition)
        self.residency.advance(now_ns, decisions)
        self._fit(event.partition, grown, now_ns, decisions)
        self.loader.check_pinned(now_ns)
        self._replanner.changed()

    def partition_lost(self, event: PartitionLost, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Record that a partition's worker is gone."""
        self.scaler.lost(event.partition, now_ns)
        self.loader.lost(event.partition, now_ns)  # first: what is being loaded is known there
        self.residency.lost(event.partition, now_ns)
        self._dispatcher.lost(event.partition, now_ns, is_node_lost=event.is_node_lost)
        self.loader.check_pinned(now_ns)
        self._replanner.changed()

    def link_measured(self, event: LinkMeasured, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Record how long the way to a node takes."""
        if self._dispatcher.link_measured(event, now_ns):
            self._replanner.changed()

    def model_loaded(self, event: ModelLoaded, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Record that a worker holds one more model."""
        self.loader.loaded(event.partition, event.model, now_ns)  # first: the fleet may forget a retired model
        grown = event.memory is not None and self._record_memory(event.partition, {event.model: event.memory})
        self.residency.loaded(event.partition, event.model, event.table, now_ns, decisions)
        self._fit(event.partition, grown, now_ns, decisions)
        self._dispatcher.instances.load_ended(event.partition, event.model, now_ns)
        self._dispatcher.reconsider(event.partition, now_ns)
        if not self.loader.enabled:
            self._replanner.changed()

    def model_load_failed(self, event: ModelLoadFailed, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Record that a worker could not load a model."""
        self.residency.failed(event.partition, event.model, now_ns, decisions)
        self.loader.failed(event.partition, event.model, now_ns)
        self._dispatcher.instances.load_ended(event.partition, event.model, now_ns)

    def model_unloaded(self, event: ModelUnloaded, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Record that a worker has unloaded a model."""
        self.residency.advance(now_ns, decisions)

    def memory_sampled(self, event: MemorySampled, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Record the memory in use by partition."""
        self.loader.sampled(event.used)

    def plan_built(self, event: PlanBuilt, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Follow a new plan; queues that were deferred by the rules of the one before are looked at again."""
        plan = self._replanner.built(event.build, event.plan, now_ns)
        if plan is None:
            return
        if any(stage.rule is not None for planned in plan.pipelines for stage in planned.stages):
            self._dispatcher.wakeups.end_deferrals(None, now_ns)
        if plan.residency and not self.loader.enabled:
            self.residency.set_desired(plan.residency, now_ns, decisions)

    def resized(self, event: PartitionResized, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Record the memory of models on a partition of another kind."""
        self._fit(event.partition, self._record_memory(event.partition, event.memory), now_ns, decisions)

    def _record_memory(self, name: str, memory: Mapping[str, ModelMemory]) -> bool:
        """Record the memory of models on a partition; True if one takes more than was assumed."""
        models, kind = self._dispatcher.models, self._dispatcher.fleet.partitions[name].kind
        known = sorted(memory.keys() & models.keys())
        grown = [key for key in known if record_measured_memory(models[key], kind, memory[key])]
        if grown:
            self._grown()
            if not self.loader.enabled:
                self._replanner.redefined()
        return bool(grown)

    def _fit(self, name: str, grown: bool, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Evict models where they exceed the memory: on this partition, or on any if a model has `grown`."""
        self.loader.fit(self.loader.memories if grown else (name,), now_ns, decisions)

    def _closed(self, partition: str, now_ns: int) -> None:
        """Follow a partition that was closed, or opened again."""
        self._dispatcher.reconsider(partition, now_ns)
        self._replanner.changed()

    def _is_served(self, model: str) -> bool:
        return model in self._dispatcher.models and model not in self.residency.retired

    def _plans(self) -> Mapping[str, PipelinePlan]:
        """The plans in force, by pipeline."""
        in_force = self._replanner.in_force
        return {} if in_force is None else {each.pipeline: each for each in in_force.plan.pipelines}

    def _unloading(self, partition: str, now_ns: int) -> None:
        self._dispatcher.reconsider(partition, now_ns)
        self._replanner.stand_in()
