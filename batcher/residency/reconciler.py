"""Residency: brings the partitions to hold the models that the plan gives them, without a gap in between."""

from collections.abc import Callable, Set
from typing import NamedTuple

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.interface.decisions import AnyDecision, LoadModel, UnloadModel
from sluice.batcher.state.model import PartitionState
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S

FIRST_RETRY_NS = NS_PER_S
"""How long a model that could not be loaded is left alone the first time; twice as long every further time."""
LAST_RETRY_NS = 60 * NS_PER_S
"""The longest that it is left alone, and then it is not woken up for: it is tried again when something else happens."""

_NOTHING = frozenset[str]()


class _Failure(NamedTuple):
    """A model could not be loaded: how long it is left alone, and until when."""

    delay_ns: int
    retry_ns: int


class ResidencyReconciler:
    """Loads first; when all that was to be loaded is there (or failed), takes the rest out of use and unloads it.

    A model that the plan has a place for is not unloaded from the last partition that holds it. One that could not be
    loaded on a partition is tried again there after a while, which grows until it is loaded or the worker is another.
    `due_ns` is when to `advance` at a wake-up, `wake_ns` when a wake-up is needed for that. `unloading` is told the
    partitions that are to unload models, and so take no more batches of them. `unwanted` are models that are to be
    nowhere, plan or not: they are unloaded at once, and the fleet forgets them as soon as nothing is left of them.
    """

    def __init__(self, fleet: Fleet, unloading: Callable[[str, int], None]) -> None:
        self._fleet = fleet
        self._unloading = unloading
        self.unwanted: set[str] = set()
        self._aim: dict[str, frozenset[str]] = {}
        self._beside: dict[str, frozenset[str]] = {}
        self._loading: dict[str, dict[str, None]] = {name: {} for name in fleet.partitions}
        self._failures: dict[str, dict[str, _Failure]] = {name: {} for name in fleet.partitions}
        self._exchanges: list[AnyDecision] = []
        self.due_ns: int | None = None
        self.wake_ns: int | None = None

    def aim(self, residency: dict[str, tuple[str, ...]], now_ns: int, decisions: list[AnyDecision]) -> None:
        """Go for a new residency, less what is unwanted; partitions that it does not name keep what they hold."""
        known = self._fleet.models.keys() - self.unwanted
        self._aim = {name: frozenset(models) & known for name, models in residency.items()}
        self._beside = {name: models for name, models in self._beside.items() if name not in residency}
        self.advance(now_ns, decisions)

    def hold(self, residency: dict[str, tuple[str, ...]], now_ns: int, decisions: list[AnyDecision]) -> None:
        """Have partitions hold these models as well, until a plan says what they are to hold."""
        for name, models in residency.items():
            self._beside[name] = self._beside.get(name, _NOTHING).union(models)
        self.advance(now_ns, decisions)

    def spare(self, copies: dict[str, tuple[str, ...]], now_ns: int, decisions: list[AnyDecision]) -> None:
        """Unload copies of models from partitions, but no last one, until a plan says what they are to hold."""
        self.issue(decisions)
        for name, models in copies.items():
            partition = self._fleet.partitions[name]
            gone = [model for model in models if model in partition.models and self._is_held_beside(partition, model)]
            for residency in (self._aim, self._beside):
                if name in residency:
                    residency[name] = residency[name].difference(gone)
            if gone and partition.ready:
                self._fleet.move(partition, partition.models.difference(gone))
                decisions.extend(UnloadModel(name, model) for model in gone)
                self._unloading(name, now_ns)

    def held(self, name: str) -> frozenset[str]:
        """What a partition holds, is being given, or is to be given when it is up."""
        return self._fleet.partitions[name].models.union(self._loading[name], self._beside.get(name, _NOTHING))

    def owed(self, name: str) -> frozenset[str]:
        """What a partition is to be given that could not be yet: there has to be room for it."""
        return self._beside.get(name, _NOTHING).difference(self._fleet.partitions[name].models, self._loading[name])

    def exchange(self, name: str, model: str, leaving: tuple[str, ...]) -> None:
        """Have a partition that is up load a model as soon as those have left it for which nothing waits.

        That is ordered by `issue`, or before anything else is.
        """
        if leaving:
            self.dismiss(name, leaving)
        self._loading[name][model] = None
        self._exchanges.append(LoadModel(name, model))

    def dismiss(self, name: str, leaving: tuple[str, ...]) -> None:
        """Have models leave a partition that is up; ordered as exchanges are."""
        partition = self._fleet.partitions[name]
        for residency in (self._aim, self._beside):
            if name in residency:
                residency[name] = residency[name].difference(leaving)
        self._fleet.move(partition, partition.models.difference(leaving))
        self._exchanges.extend(UnloadModel(name, each) for each in leaving)

    def issue(self, decisions: list[AnyDecision]) -> None:
        """Order all exchanges."""
        decisions += self._exchanges
        self._exchanges.clear()

    def loading(self, name: str) -> Set[str]:
        """What a partition is being given."""
        return self._loading[name].keys()

    def barred(self, name: str, model: str, now_ns: int) -> bool:
        """Whether a model could not be loaded on a partition lately."""
        failure = self._failures[name].get(model)
        return failure is not None and failure.retry_ns > now_ns

    def give_up(self, models: set[str], now_ns: int, decisions: list[AnyDecision]) -> None:
        """Have no partition hold these models any more."""
        self.unwanted |= models
        for residency in (self._aim, self._beside):
            for name, held in residency.items():
                residency[name] = held - models
        self.advance(now_ns, decisions)

    def advance(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Order what can be done now."""
        self.issue(decisions)
        self._load(now_ns, decisions)
        changed = self._discard(decisions) if self.unwanted else []
        if not any(self._loading.values()):
            changed += self._unload(decisions)
        for name in changed:
            self._unloading(name, now_ns)

    def loaded(self, name: str, model: str, table: LatencyTable, now_ns: int, decisions: list[AnyDecision]) -> None:
        """A partition holds one more model."""
        self._loading[name].pop(model, None)
        self._failures[name].pop(model, None)
        partition = self._fleet.partitions[name]
        self._fleet.learn(model, partition.kind, table)
        self._fleet.move(partition, partition.models | {model})
        self.advance(now_ns, decisions)

    def failed(self, name: str, model: str, now_ns: int, decisions: list[AnyDecision]) -> None:
        """A model could not be loaded."""
        self._loading[name].pop(model, None)
        self._failures[name][model] = self._failure(name, model, FIRST_RETRY_NS, now_ns)
        self.advance(now_ns, decisions)

    def lost(self, name: str, now_ns: int) -> None:
        """A partition is gone: what was ordered of it is not answered any more, and what failed there may not again.

        But the model that it was just loading may be why. It is tried again at once the first time only, or it would
        take one worker after the other along.
        """
        loading = next(iter(self._loading[name]), None)
        self._failures[name] = {} if loading is None else {loading: self._failure(name, loading, 0, now_ns)}
        self._loading[name].clear()

    def _failure(self, name: str, model: str, first_ns: int, now_ns: int) -> _Failure:
        """A model fails to be loaded; the first time it is left alone for `first_ns`."""
        before = self._failures[name].get(model)
        delay_ns = first_ns if before is None else min(max(2 * before.delay_ns, FIRST_RETRY_NS), LAST_RETRY_NS)
        return _Failure(delay_ns, now_ns + delay_ns)

    def _load(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Order the models that are missing, but for those that could not be loaded lately."""
        left: list[_Failure] = []
        for name in self._aim | self._beside:
            partition = self._fleet.partitions[name]
            if partition.ready:
                for model in sorted(self._due(name).difference(partition.models, self._loading[name])):
                    failure = self._failures[name].get(model)
                    if failure is not None and failure.retry_ns > now_ns:
                        left.append(failure)
                    else:
                        self._loading[name][model] = None
                        decisions.append(LoadModel(name, model))
        self.due_ns = min((each.retry_ns for each in left), default=None)
        self.wake_ns = min((each.retry_ns for each in left if each.delay_ns < LAST_RETRY_NS), default=None)

    def _unload(self, decisions: list[AnyDecision]) -> list[str]:
        """Take out of use what has no place, or has one elsewhere and is there; the partitions it is taken from."""
        changed: list[str] = []
        placed = _NOTHING.union(*self._aim.values(), *self._beside.values())
        for name in self._aim:
            partition = self._fleet.partitions[name]
            if partition.ready:
                for model in sorted(partition.models - self._due(name)):
                    if model not in placed or self._is_held_beside(partition, model):
                        self._fleet.move(partition, partition.models - {model})
                        decisions.append(UnloadModel(name, model))
                        changed.append(name)
        return changed

    def _discard(self, decisions: list[AnyDecision]) -> list[str]:
        """Unload what is unwanted, and forget what is not there any more; the partitions it is taken from."""
        changed: list[str] = []
        for name, partition in self._fleet.partitions.items():
            gone = sorted(partition.models & self.unwanted) if partition.ready else []
            if gone:
                self._fleet.move(partition, partition.models - self.unwanted)
                decisions.extend(UnloadModel(name, model) for model in gone)
                changed.append(name)
        left = _NOTHING.union(*self._loading.values(), *(each.models for each in self._fleet.partitions.values()))
        for model in sorted(self.unwanted - left):
            if not self._fleet.models[model].outstanding:
                self.unwanted.remove(model)
                self._fleet.forget(model)
                for failures in self._failures.values():
                    failures.pop(model, None)
        return changed

    def _due(self, name: str) -> frozenset[str]:
        """What a partition is to hold."""
        return self._aim.get(name, _NOTHING) | self._beside.get(name, _NOTHING)

    def _is_held_beside(self, partition: PartitionState, model: str) -> bool:
        return any(host.ready for host in self._fleet.models[model].partitions if host is not partition)
