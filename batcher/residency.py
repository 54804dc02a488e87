"""Residency: brings the partitions to hold the models that the plan gives them, without a gap in between."""

from batcher.decisions import AnyDecision, LoadModel, UnloadModel
from batcher.fleet import Fleet
from batcher.placement import PartitionState
from models.profile import LatencyTable


class Residency:
    """Loads first; when all that was to be loaded is there (or failed), takes the rest out of use and unloads it.

    A model is not unloaded from the last partition that holds it, whatever the plan says.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._aim: dict[str, frozenset[str]] = {}
        self._loading: dict[str, set[str]] = {name: set() for name in fleet.partitions}

    def aim(self, residency: dict[str, tuple[str, ...]], decisions: list[AnyDecision]) -> None:
        """Go for a new residency; partitions it does not name keep what they hold."""
        self._aim = {name: frozenset(models) for name, models in residency.items()}
        self.advance(decisions)

    def advance(self, decisions: list[AnyDecision]) -> None:
        """Order what can be done now."""
        for name, models in self._aim.items():
            partition = self._fleet.partitions[name]
            if partition.ready:
                for model in sorted(models - partition.models - self._loading[name]):
                    self._loading[name].add(model)
                    decisions.append(LoadModel(name, model))
        if any(self._loading.values()):
            return
        for name, models in self._aim.items():
            partition = self._fleet.partitions[name]
            if partition.ready:
                for model in sorted(partition.models - models):
                    self._unload(partition, model, decisions)

    def loaded(self, name: str, model: str, table: LatencyTable, decisions: list[AnyDecision]) -> None:
        """A partition holds one more model."""
        self._loading[name].discard(model)
        partition = self._fleet.partitions[name]
        self._fleet.learn(model, partition.kind, table)
        self._fleet.move(partition, partition.models | {model})
        self.advance(decisions)

    def failed(self, name: str, model: str, decisions: list[AnyDecision]) -> None:
        """A model could not be loaded: it is not tried again there until another plan asks for it."""
        self._loading[name].discard(model)
        if name in self._aim:
            self._aim[name] -= {model}
        self.advance(decisions)

    def lost(self, name: str) -> None:
        """A partition is gone: what was ordered of it is not answered any more."""
        self._loading[name].clear()

    def _unload(self, partition: PartitionState, model: str, decisions: list[AnyDecision]) -> None:
        hosts = self._fleet.models[model].partitions
        if any(host.ready for host in hosts if host is not partition):
            self._fleet.move(partition, partition.models - {model})
            decisions.append(UnloadModel(partition.name, model))
