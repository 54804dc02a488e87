"""The reconciler of model placement: loads and unloads until partitions hold their planned models."""

from collections.abc import Callable, Collection, Iterable, Set
from typing import NamedTuple

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.interface.decisions import AnyDecision, LoadModel, UnloadModel
from sluice.batcher.state import PartitionState
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S

FIRST_RETRY_NS = NS_PER_S
"""Time until the first retry of a failed load; it doubles with every failure."""
LAST_RETRY_NS = 60 * NS_PER_S
"""The longest time until a retry. From then on there is no wake-up for the model: the next event retries it."""

_NOTHING = frozenset[str]()


class _Failure(NamedTuple):
    """A failed load: the time without a retry, and its end."""

    delay_ns: int
    retry_ns: int


class _LoadsInProgress:
    """The ordered loads that have not ended, by partition and by model."""

    __slots__ = ("_by_model", "_by_partition")

    def __init__(self, partitions: Iterable[str]) -> None:
        self._by_partition: dict[str, dict[str, None]] = {name: {} for name in partitions}
        self._by_model: dict[str, dict[str, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_model)

    @property
    def models(self) -> Collection[str]:
        """All models that are being loaded."""
        return self._by_model.keys()

    def of(self, partition: str) -> Set[str]:
        """The models that a partition is loading; a view."""
        return self._by_partition[partition].keys()

    def first_of(self, partition: str) -> str | None:
        """The model whose load a partition was ordered first, of those that have not ended; None if it loads none."""
        return next(iter(self._by_partition[partition]), None)

    def partitions_of(self, model: str) -> Collection[str]:
        """The partitions that are loading a model."""
        return self._by_model.get(model, ())

    def begin(self, partition: str, model: str) -> None:
        """Add a load."""
        self._by_partition[partition][model] = None
        self._by_model.setdefault(model, {})[partition] = None

    def end(self, partition: str, model: str) -> None:
        """Remove a load; one that is not there is no error."""
        if model in self._by_partition[partition]:
            del self._by_partition[partition][model]
            loaders = self._by_model[model]
            del loaders[partition]
            if not loaders:
                del self._by_model[model]

    def lost(self, partition: str) -> None:
        """Remove all loads of a partition."""
        for model in list(self._by_partition[partition]):
            self.end(partition, model)


class ResidencyReconciler:
    """Loads first; once everything is loaded (or failed), unloads the models that belong elsewhere.

    A planned model is not unloaded from its last partition. A failed load is retried after a time, which grows until
    the model is loaded or the worker is replaced. From `due_ns` on, any wake-up calls `advance`; `wake_ns` is when a
    wake-up is needed for that. `unloading` is called with the partitions that will unload models, which get no more
    batches of these models. `retired` models belong nowhere, whatever the plan says: they are unloaded at once, and the
    fleet forgets them once no partition holds them.
    """

    def __init__(self, fleet: Fleet, unloading: Callable[[str, int], None]) -> None:
        self._fleet = fleet
        self._unloading = unloading
        self.retired: set[str] = set()
        self._desired: dict[str, frozenset[str]] = {}
        self._extra: dict[str, frozenset[str]] = {}
        self._loads = _LoadsInProgress(fleet.partitions)
        self._failures: dict[str, dict[str, _Failure]] = {name: {} for name in fleet.partitions}
        self._orders: list[AnyDecision] = []
        self._order: dict[str, int] = {}  # of the partitions with desired models
        self._unchecked: dict[str, None] = {}  # partitions that may lack desired models
        self._may_spare = False  # partitions may hold models that belong elsewhere
        self.due_ns: int | None = None
        self.wake_ns: int | None = None

    def set_desired(self, residency: dict[str, tuple[str, ...]], now_ns: int, decisions: list[AnyDecision]) -> None:
        """Set the desired models of partitions, without retired ones; partitions not named keep their models."""
        known = self._fleet.models.keys() - self.retired
        self._desired = {name: frozenset(models) & known for name, models in residency.items()}
        self._extra = {name: models for name, models in self._extra.items() if name not in residency}
        self._check_all()
        self.advance(now_ns, decisions)

    def add_extra(
        self,
        residency: dict[str, tuple[str, ...]],
        spare: dict[str, tuple[str, ...]],
        now_ns: int,
        decisions: list[AnyDecision],
    ) -> None:
        """Add models to the desired ones of partitions, until the next plan for them; unload those in `spare` first."""
        for name, models in spare.items():
            self.unload(name, models)
            self._unloading(name, now_ns)
        for name, models in residency.items():
            self._extra[name] = self._extra.get(name, _NOTHING).union(models)
        self._check_all()
        self.advance(now_ns, decisions)

    def check(self, name: str) -> None:
        """Look at the models of a partition when `advance` is called next: its worker or its models have changed."""
        self._unchecked[name] = None
        self._may_spare = True

    def _check_all(self) -> None:
        self._order = {name: position for position, name in enumerate(self._desired | self._extra)}
        self._unchecked.update(dict.fromkeys(self._order))
        self._may_spare = True

    def held(self, name: str) -> frozenset[str]:
        """The models that a partition holds, is loading, or will load once it is up."""
        return self._fleet.partitions[name].models.union(self._loads.of(name), self._extra.get(name, _NOTHING))

    def pending(self, name: str) -> frozenset[str]:
        """The extra models that a partition has not loaded yet, for which it needs room."""
        extra = self._extra.get(name)
        return extra.difference(self._fleet.partitions[name].models, self._loads.of(name)) if extra else _NOTHING

    def replace(self, name: str, model: str, leaving: tuple[str, ...]) -> None:
        """Replace the models in `leaving` on a running partition by a model.

        The orders are given by `issue`, or before any other order.
        """
        if leaving:
            self.unload(name, leaving)
        self._loads.begin(name, model)
        self._orders.append(LoadModel(name, model))

    def unload(self, name: str, leaving: tuple[str, ...]) -> None:
        """Unload models from a running partition; the orders are given as for `replace`."""
        partition = self._fleet.partitions[name]
        for residency in (self._desired, self._extra):
            if name in residency:
                residency[name] = residency[name].difference(leaving)
        self._fleet.move(partition, partition.models.difference(leaving))
        self.check(name)
        self._orders.extend(UnloadModel(name, each) for each in leaving)

    def issue(self, decisions: list[AnyDecision]) -> None:
        """Give the orders of `replace` and `unload`."""
        decisions += self._orders
        self._orders.clear()

    def loading(self, name: str) -> Set[str]:
        """The models that a partition is loading."""
        return self._loads.of(name)

    def loaders(self, model: str) -> Iterable[str]:
        """The partitions that are loading a model."""
        return self._loads.partitions_of(model)

    def is_barred(self, name: str, model: str, now_ns: int) -> bool:
        """True if a recent load of a model on a partition failed."""
        failure = self._failures[name].get(model)
        return failure is not None and failure.retry_ns > now_ns

    def retire(self, models: set[str], now_ns: int, decisions: list[AnyDecision]) -> None:
        """Unload these models from all partitions, for good."""
        self.retired |= models
        for residency in (self._desired, self._extra):
            for name, held in residency.items():
                residency[name] = held - models
        self._check_all()
        self.advance(now_ns, decisions)

    def advance(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Give all orders that are possible now."""
        self.issue(decisions)
        self._load(now_ns, decisions)
        changed = self._discard(decisions) if self.retired else []
        if self._may_spare and not self._loads:
            self._may_spare = False
            changed += self._unload(decisions)
        for name in changed:
            self._unloading(name, now_ns)

    def loaded(self, name: str, model: str, table: LatencyTable, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Record that a partition holds one more model."""
        self._loads.end(name, model)
        self._failures[name].pop(model, None)
        partition = self._fleet.partitions[name]
        self._fleet.learn(model, partition.kind, table)
        self._fleet.move(partition, partition.models | {model})
        self.check(name)
        self.advance(now_ns, decisions)

    def failed(self, name: str, model: str, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Record that a load failed."""
        self._loads.end(name, model)
        self._failures[name][model] = self._failure(name, model, FIRST_RETRY_NS, now_ns)
        self.check(name)
        self.advance(now_ns, decisions)

    def lost(self, name: str, now_ns: int) -> None:
        """Record that a partition is lost: its orders are void, and failed loads may succeed on the next worker.

        The model that it was loading may be the cause. Its load is retried at once only the first time, since it could
        end one worker after the other.
        """
        loading = self._loads.first_of(name)
        self._failures[name] = {} if loading is None else {loading: self._failure(name, loading, 0, now_ns)}
        self._loads.lost(name)
        self.check(name)

    def _failure(self, name: str, model: str, first_ns: int, now_ns: int) -> _Failure:
        """A failed load of a model, whose first retry is after `first_ns`."""
        before = self._failures[name].get(model)
        delay_ns = first_ns if before is None else min(max(2 * before.delay_ns, FIRST_RETRY_NS), LAST_RETRY_NS)
        return _Failure(delay_ns, now_ns + delay_ns)

    def _load(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Load the missing models, except models whose load failed recently."""
        left: list[_Failure] = []
        unchecked = sorted(filter(self._order.__contains__, self._unchecked), key=self._order.__getitem__)
        self._unchecked.clear()
        for name in unchecked:
            partition = self._fleet.partitions[name]
            if partition.ready and not partition.closed:
                for model in sorted(self._wanted(name).difference(partition.models, self._loads.of(name))):
                    failure = self._failures[name].get(model)
                    if failure is not None and failure.retry_ns > now_ns:
                        left.append(failure)
                        self._unchecked[name] = None
                    else:
                        self._loads.begin(name, model)
                        decisions.append(LoadModel(name, model))
        self.due_ns = min((each.retry_ns for each in left), default=None)
        self.wake_ns = min((each.retry_ns for each in left if each.delay_ns < LAST_RETRY_NS), default=None)

    def _unload(self, decisions: list[AnyDecision]) -> list[str]:
        """Unload models that belong nowhere, or that another partition also holds; returns the affected partitions."""
        changed: list[str] = []
        placed = _NOTHING.union(*self._desired.values(), *self._extra.values())
        for name in self._desired:
            partition = self._fleet.partitions[name]
            if partition.ready:
                for model in sorted(partition.models - self._wanted(name)):
                    if model not in placed or self._is_held_beside(partition, model):
                        self._fleet.move(partition, partition.models - {model})
                        decisions.append(UnloadModel(name, model))
                        changed.append(name)
        return changed

    def _discard(self, decisions: list[AnyDecision]) -> list[str]:
        """Unload retired models, and forget them once no partition holds them; returns the affected partitions."""
        changed: list[str] = []
        for name, partition in self._fleet.partitions.items():
            gone = sorted(partition.models & self.retired) if partition.ready else []
            if gone:
                self._fleet.move(partition, partition.models - self.retired)
                decisions.extend(UnloadModel(name, model) for model in gone)
                changed.append(name)
        left = _NOTHING.union(self._loads.models, *(each.models for each in self._fleet.partitions.values()))
        for model in sorted(self.retired - left):
            if not self._fleet.models[model].outstanding:
                self.retired.remove(model)
                self._fleet.forget(model)
                for failures in self._failures.values():
                    failures.pop(model, None)
        return changed

    def _wanted(self, name: str) -> frozenset[str]:
        """The desired models of a partition."""
        return self._desired.get(name, _NOTHING) | self._extra.get(name, _NOTHING)

    def _is_held_beside(self, partition: PartitionState, model: str) -> bool:
        return any(host.ready for host in self._fleet.models[model].partitions if host is not partition)
