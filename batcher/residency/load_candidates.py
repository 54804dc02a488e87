"""Load candidates: the partition that can load a model, when the model is ready, and the models to evict for it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import NamedTuple

import msgspec

from sluice.batcher.estimates.latency import QUANTILE
from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.fleet.partition_group import planned_until_ns
from sluice.batcher.interface.residency_config import Eviction, ResidencyConfig
from sluice.batcher.residency.foresight import Foresight
from sluice.batcher.residency.packing import PartitionPacking
from sluice.batcher.residency.partition_memory import PartitionMemory, choose_victims
from sluice.batcher.residency.reconciler import ResidencyReconciler
from sluice.batcher.state import ModelState, PipelineState
from sluice.models.units import INFINITE_NS

_MIB = 1 << 20


class LoadCandidate(NamedTuple):
    """A partition that can load a model by `ready_ns`, after it has unloaded the models in `leaving`."""

    ready_ns: int
    memory: PartitionMemory
    leaving: tuple[str, ...]


class RefusalCause(Enum):
    """The reason why no partition can load a model now."""

    TOO_LARGE = "no partition has room for it"
    BUSY = "the limit of concurrent loads is reached"
    IN_USE = "every loaded model is in use or pinned"
    FAILED = "it could not be loaded"
    PACKED = "the packing policy refuses every partition"
    DOWN = "no partition that has room for it is up"


class LoadRefusal(NamedTuple):
    """The reason why no partition can load a model now, and whether that may change soon.

    `ready_ns` is when the model is predicted to be ready if it waits until others may be evicted; None for never.
    """

    reason: str
    passing: bool
    ready_ns: int | None = None


class LoadPurpose(NamedTuple):
    """The reason for a load: admitted requests, or a request of `pipeline` that is about to be admitted.

    A `blocking` load is for entries that already wait for the model. It may evict models that requests will need at
    later stages, since these requests may also wait for a load. The load is useful only where the model could run
    before `before_ns`. With `asked`, no entry waits: that many recent rows were rejected because they could not wait
    for the load.
    """

    pipeline: PipelineState | None = None
    blocking: bool = False
    before_ns: int = INFINITE_NS
    asked: float | None = None


FOR_ADMITTED = LoadPurpose()


class _Option(NamedTuple):
    """A partition that may load a model and run it from `start_ns` on; the fields are in order of rank.

    Of partitions that are as good, a packing policy prefers the one of the least `cost`.
    """

    start_ns: int
    lacks_memory: bool
    cost: float
    number: int
    ready_ns: int
    memory: PartitionMemory


def asked_for(model: ModelState, now_ns: int) -> float:
    """The recent demand for a model in rows, served or not: of its pipelines, and of requests for its accuracy."""
    rows = sum(each.demand.rows(now_ns) * each.expected_runs.get(model, 0.0) for each in model.pipelines)
    return rows + model.demand.rows(now_ns)


class LoadCandidates:
    """Looks for partitions that can load a model.

    `memories` are the memories of the partitions by name, `waiting` the models that found no partition. `is_kept`
    returns True if a partition needs a model for a planned batch or for sequences, and `foresight` knows of requests
    that do not need a model any more. `packing` decides which partitions may load a model beside what they have.
    """

    def __init__(
        self,
        config: ResidencyConfig,
        fleet: Fleet,
        residency: ResidencyReconciler,
        memories: Mapping[str, PartitionMemory],
        waiting: Collection[ModelState],
        is_kept: Callable[[str, str], bool],
        foresight: Foresight,
    ) -> None:
        self._config = config
        self._foresight = foresight
        self._models = fleet.models
        self._queues = fleet.queues
        self._residency = residency
        self._memories = memories
        self._waiting = waiting
        self._is_kept = is_kept
        self.packing = None if config.packing is None else PartitionPacking(config.packing)

    def find(
        self, model: ModelState, now_ns: int, purpose: LoadPurpose = FOR_ADMITTED, ahead_ns: Mapping[str, int] = {}
    ) -> LoadCandidate | LoadRefusal:
        """The partition that can run a model the soonest; of equal ones, one without evictions.

        `ahead_ns` is the time by partition for other loads first, in addition to the ordered loads.
        """
        able = [memory for memory in self._memories.values() if memory.may_hold(model)]
        if not able or model.config.key in self._residency.retired:
            return _refusal(model, RefusalCause.TOO_LARGE)
        absent = [memory for memory in able if self._is_absent(memory, model.config.key)]
        willing = [
            memory
            for memory in absent
            if not self._residency.is_barred(memory.partition.name, model.config.key, now_ns)
        ]
        coming = [(memory, self._load_ns(memory, model, ahead_ns)) for memory in willing]
        idle = [(memory, coming_ns) for memory, coming_ns in coming if memory.loads < self._config.loads]
        options = (self._option(memory, model, coming_ns, now_ns) for memory, coming_ns in idle)
        useful = sorted((each for each in options if each.start_ns < purpose.before_ns), key=lambda each: each[:4])
        packed = ""
        for option in useful:
            leaving, refusal = self._make_room(option.memory, model, now_ns, purpose)
            if leaving is not None:
                return LoadCandidate(option.ready_ns, option.memory, leaving)
            packed = packed or refusal
        if len(idle) < len(coming):
            return _refusal(model, RefusalCause.BUSY, True, self._later_ns(model, coming, now_ns))
        if useful:
            later_ns = self._later_ns(model, coming, now_ns)
            if packed:
                return LoadRefusal(f"{RefusalCause.PACKED.value}: {packed}", later_ns is not None, later_ns)
            return _refusal(model, RefusalCause.IN_USE, later_ns is not None, later_ns)
        if len(willing) < len(absent):
            return _refusal(model, RefusalCause.FAILED)
        passing = any(not memory.partition.ready and not memory.partition.is_gone(now_ns) for memory in able)
        return _refusal(model, RefusalCause.DOWN, passing)

    def room_on(
        self, memory: PartitionMemory, model: ModelState, stays: Collection[str], now_ns: int
    ) -> tuple[str, ...] | None:
        """The models to evict so that a partition which an instance policy chose loads a model; None if it cannot.

        Models with such a policy may go although entries wait for them: these run wherever the policy has them run.
        Those in `stays` do not.
        """
        partition, config = memory.partition, model.config
        if not memory.may_hold(model) or config.key in self._residency.retired:
            return None
        if not self._is_absent(memory, config.key) or memory.loads >= self._config.loads:
            return None
        if self._residency.is_barred(partition.name, config.key, now_ns):
            return None
        lacking = config.memory_on(partition.kind) - memory.free_bytes
        if lacking <= 0:
            return ()
        if self._config.eviction is Eviction.NONE:
            return None

        def may_go(key: str) -> bool:
            if self._models[key].config.instances is None:
                return self._may_go(self._models[key], memory, now_ns, LoadPurpose(blocking=True))
            return key not in stays

        return memory.victims(lacking, config.priority, may_go)

    @staticmethod
    def _is_absent(memory: PartitionMemory, key: str) -> bool:
        """True if a running partition that is not closed neither holds nor loads a model."""
        partition = memory.partition
        held = key in partition.models or memory.is_loading(key)
        return partition.ready and not partition.closed and partition.group is not None and not held

    def _load_ns(self, memory: PartitionMemory, model: ModelState, ahead_ns: Mapping[str, int]) -> int:
        return ahead_ns.get(memory.partition.name, 0) + memory.load_ns(model, self._config.load_ns)

    def _make_room(
        self, memory: PartitionMemory, model: ModelState, now_ns: int, purpose: LoadPurpose
    ) -> tuple[tuple[str, ...] | None, str]:
        """The models to evict from a partition for a model; None if too few may be evicted.

        One after the other goes until the packing policy lets the partition load the model, if there is one; else the
        second value is its reason.
        """
        packing, refusal = self.packing, ""
        lacking = model.config.memory_on(memory.partition.kind) - memory.free_bytes
        while True:
            leaving = self._leaving(memory, model, lacking, now_ns, purpose) if lacking > 0 else ()
            if leaving is None or packing is None:
                return leaving, refusal
            reason = packing.refusal(model, memory.partition, memory.device(packing, leaving))
            if reason is None:
                return leaving, ""
            refusal = refusal or reason
            freed = sum([self._models[key].config.memory_on(memory.partition.kind) for key in leaving])
            lacking = max(lacking, freed, 0) + 1

    def _option(self, memory: PartitionMemory, model: ModelState, load_ns: int, now_ns: int) -> _Option:
        partition = memory.partition
        ready_ns = memory.loads_end_ns(now_ns) + load_ns
        start_ns = max(ready_ns, planned_until_ns(partition, now_ns))
        lacks_memory = memory.free_bytes < model.config.memory_on(partition.kind)
        packing = self.packing
        cost = 0.0 if packing is None else packing.cost(model, partition, memory.device(packing))
        return _Option(start_ns, lacks_memory, cost, partition.number, ready_ns, memory)

    def surplus(self, memory: PartitionMemory, now_ns: int) -> tuple[str, ...]:
        """The models to evict from a partition that exceeds its memory, since a model takes more than was assumed.

        Models without requests come first, then models that requests need only at later stages, then models with
        waiting entries. If that is not enough, returns all models that may be evicted.
        """
        lacking = -memory.free_bytes
        residents = sorted(memory.residents()) if lacking > 0 else []
        if not residents:
            return ()
        most = max(each.priority for each in residents)
        for purpose in (FOR_ADMITTED, LoadPurpose(blocking=True), None):

            def may_go(key: str, purpose: LoadPurpose | None = purpose) -> bool:
                return purpose is None or self._may_go(self._models[key], memory, now_ns, purpose)

            if (leaving := choose_victims(residents, lacking, most, may_go)) is not None:
                return leaving
        return tuple(each.key for each in residents)

    def _later_ns(self, model: ModelState, coming: Iterable[tuple[PartitionMemory, int]], now_ns: int) -> int | None:
        """When a model is ready if it waits, as the last of all waiting ones, for evictions; None for never.

        `coming` are the partitions that may load it, with the expected times of the load.
        """
        if self._config.eviction is Eviction.NONE:
            return None
        min_resident_ns, load_ns = self._config.min_resident_ns, self._config.load_ns
        times_ns: list[int] = []
        for memory, coming_ns in coming:
            if memory.may_get_room(model) and self._may_be_packed(memory, model):
                backlog_ns = planned_until_ns(memory.partition, now_ns)
                ahead = (each for each in self._waiting if each is not model and self._queues.has_work(each))
                ahead_ns = sum(memory.load_ns(each, load_ns) + min_resident_ns for each in ahead)
                times_ns.append(max(memory.settled_ns(min_resident_ns, now_ns), backlog_ns) + ahead_ns + coming_ns)
        return min(times_ns, default=None)

    def _may_be_packed(self, memory: PartitionMemory, model: ModelState) -> bool:
        """True if the packing policy would let a partition load a model beside those that never go for it."""
        packing = self.packing
        if packing is None:
            return True
        alone = packing.device(memory.partition, memory.capacity, memory.staying(model))
        return packing.refusal(model, memory.partition, msgspec.structs.replace(alone, used=())) is None

    def _leaving(
        self, memory: PartitionMemory, model: ModelState, lacking: int, now_ns: int, purpose: LoadPurpose
    ) -> tuple[str, ...] | None:
        """The models to evict from a partition for a model to free `lacking` bytes; None if too few may be evicted."""
        if self._config.eviction is Eviction.NONE:
            return None
        models = self._models
        load_ns = memory.load_ns(model, self._config.load_ns)

        def worth(key: str) -> float:
            """The recent demand for another model, plus the rows that would be lost while it is unloaded and reloaded.

            The new model is expected to stay as long as the other one has been here.
            """
            other = models[key]
            if other.config.priority < model.config.priority:
                return 0.0
            return asked_for(other, now_ns) * (1 + 2 * load_ns / max(memory.held_ns(key, now_ns), 1))

        def may_go(key: str) -> bool:
            outweighed = purpose.asked is None or worth(key) < purpose.asked
            return outweighed and self._may_go(models[key], memory, now_ns, purpose)

        leaving = memory.victims(lacking, model.config.priority, may_go)
        if leaving is not None and purpose.asked is not None and sum(map(worth, leaving)) >= purpose.asked:
            return None
        return leaving

    def _may_go(self, model: ModelState, memory: PartitionMemory, now_ns: int, purpose: LoadPurpose) -> bool:
        """True if a model may be evicted.

        It is then not `young`, and no entry, later stage, planned batch or sequence needs it.
        """
        if self._queues.has_work(model) or memory.young(model, self._config.min_resident_ns, now_ns):
            return False
        for pipeline in () if purpose.blocking else model.pipelines:
            needing = pipeline.outstanding - self._foresight.passed_by(pipeline, model)
            used = not pipeline.single and (needing > 0 or pipeline is purpose.pipeline)
            if used and pipeline.expected_runs.get(model, 0.0) > 1 - QUANTILE:
                return False
        return not self._is_kept(memory.partition.name, model.config.key)


def _refusal(model: ModelState, cause: RefusalCause, passing: bool = False, ready_ns: int | None = None) -> LoadRefusal:
    reason = cause.value
    if cause is RefusalCause.TOO_LARGE and model.config.measured_bytes:
        reason = f"no partition has room for its measured {model.config.most_bytes / _MIB:.3g} MiB"
    return LoadRefusal(reason, passing, ready_ns)
