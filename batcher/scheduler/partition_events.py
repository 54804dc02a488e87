"""Holdings: which partitions are up, and what their workers hold."""

from collections.abc import Callable, Mapping

from sluice.batcher.dispatch.dispatcher import Dispatcher
from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision, UnloadModel
from sluice.batcher.interface.events import (
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
    PartitionResized,
    PlanBuilt,
)
from sluice.batcher.interface.residency_config import Loading
from sluice.batcher.residency.on_demand import OnDemandLoader
from sluice.batcher.residency.reconciler import ResidencyReconciler
from sluice.batcher.residency.weighing import weigh
from sluice.batcher.scheduler.replanner import Replanner
from sluice.models.profiles.measurement import ModelMemory


class PartitionEvents:
    """Takes in what is told of partitions, of their models, and of the plan that says what these are to be.

    With `cold_starts` it is demand that says so; they are there when models are loaded on demand. `grown` is told when
    models take more than was believed.
    """

    def __init__(
        self, spec: SchedulerSpec, dispatcher: Dispatcher, replanner: Replanner | None, grown: Callable[[], None]
    ) -> None:
        self._dispatcher = dispatcher
        self._grown = grown
        self._replanner = replanner
        self.residency = ResidencyReconciler(dispatcher.fleet, self._unloading)
        self.cold_starts: OnDemandLoader | None = None
        if spec.residency.loading is Loading.DEMAND:
            self.cold_starts = OnDemandLoader(spec, dispatcher, self.residency)

    def partition_ready(self, event: PartitionReady, now_ns: int, decisions: list[AnyDecision]) -> None:
        """A partition's worker is up; what it holds of models that are not served any more, it is to give up."""
        models = self._dispatcher.models
        if forgotten := sorted(event.tables.keys() - models.keys()):
            decisions.extend(UnloadModel(event.partition, key) for key in forgotten)
            tables = {key: table for key, table in event.tables.items() if key in models}
            event = PartitionReady(event.partition, tables, event.memory)
        self._dispatcher.ready(event, now_ns)
        grown = self._weigh(event.partition, event.memory)
        self.residency.advance(now_ns, decisions)
        self._fit(event.partition, grown, now_ns, decisions)
        if self.cold_starts is not None:
            self.cold_starts.look_after_pinned(now_ns)
        self._changed()

    def partition_lost(self, event: PartitionLost, now_ns: int, decisions: list[AnyDecision]) -> None:
        """A partition's worker is gone."""
        self.residency.lost(event.partition, now_ns)
        if self.cold_starts is not None:
            self.cold_starts.lost(event.partition, now_ns)
        self._dispatcher.lost(event.partition, now_ns)
        if self.cold_starts is not None:
            self.cold_starts.look_after_pinned(now_ns)
        self._changed()

    def model_loaded(self, event: ModelLoaded, now_ns: int, decisions: list[AnyDecision]) -> None:
        """A worker holds a model more."""
        if self.cold_starts is not None:  # before it may be forgotten, as nobody needs it any more
            self.cold_starts.loaded(event.partition, event.model, now_ns)
        grown = event.memory is not None and self._weigh(event.partition, {event.model: event.memory})
        self.residency.loaded(event.partition, event.model, event.table, now_ns, decisions)
        self._fit(event.partition, grown, now_ns, decisions)
        self._dispatcher.look_at(event.partition, now_ns)
        if self.cold_starts is None:
            self._changed()

    def model_load_failed(self, event: ModelLoadFailed, now_ns: int, decisions: list[AnyDecision]) -> None:
        """A worker could not load a model."""
        self.residency.failed(event.partition, event.model, now_ns, decisions)
        if self.cold_starts is not None:
            self.cold_starts.failed(event.partition, event.model, now_ns)

    def model_unloaded(self, event: ModelUnloaded, now_ns: int, decisions: list[AnyDecision]) -> None:
        """A worker has room again."""
        self.residency.advance(now_ns, decisions)

    def plan_built(self, event: PlanBuilt, now_ns: int, decisions: list[AnyDecision]) -> None:
        """There is another plan."""
        assert self._replanner is not None, "only a scheduler with a planner asks for plans"
        plan = self._replanner.built(event.build, event.plan)
        if plan is not None and plan.residency and self.cold_starts is None:
            self.residency.aim(plan.residency, now_ns, decisions)

    def resized(self, event: PartitionResized, now_ns: int, decisions: list[AnyDecision]) -> None:
        """A partition is of another kind, on which models may take more."""
        self._fit(event.partition, self._weigh(event.partition, event.memory), now_ns, decisions)

    def _weigh(self, name: str, memory: Mapping[str, ModelMemory]) -> bool:
        """Take in what models take on a partition; whether some take more there than was believed."""
        models, kind = self._dispatcher.models, self._dispatcher.fleet.partitions[name].kind
        grown = [key for key in sorted(memory.keys() & models.keys()) if weigh(models[key], kind, memory[key])]
        if grown:
            self._grown()
            if self._replanner is not None and self.cold_starts is None:
                self._replanner.redefined()
        return bool(grown)

    def _fit(self, name: str, grown: bool, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Make room where models that were loaded, on this partition or all of its kind, take more than there is."""
        if self.cold_starts is not None:
            self.cold_starts.fit(self.cold_starts.shelves if grown else (name,), now_ns, decisions)

    def _unloading(self, partition: str, now_ns: int) -> None:
        self._dispatcher.look_at(partition, now_ns)
        if self._replanner is not None:
            self._replanner.stand_in()

    def _changed(self) -> None:
        if self._replanner is not None:
            self._replanner.changed()
