"""The memory of one partition: its models, its ordered loads, and the models that may be evicted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

import msgspec

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.residency.packing import PartitionPacking
from sluice.batcher.residency.reconciler import ResidencyReconciler
from sluice.batcher.state import ModelState, PartitionState
from sluice.models.profiles.measurement import ModelMemory
from sluice.models.units import INFINITE_NS
from sluice.mps.packing.tenant import Device

LOAD_WEIGHT = 0.3
"""Weight of one load in the smoothed load time of a model."""
COMPACT_ABOVE = 64
"""The models by their last use are listed again when the list has this many more than twice as many items."""
NEVER_YOUNG = -1
"""The count of batches that a model had when it was loaded, for one that may go before it has run."""
PRECISION_BYTES = 1 << 20
"""Smaller increases of a model's memory are ignored: the memory of a process varies by some hundred KiB."""


class Resident(NamedTuple):
    """A model that a partition holds.

    The order of the fields is the order of eviction: of equal `priority`, the least recently used one first.
    """

    priority: int
    last_used_ns: int
    key: str
    memory_bytes: int


class PartitionMemory:
    """Counts the bytes of the models of a partition with bounded memory, and predicts when ordered loads end.

    `memories` has the memories of all partitions by name. A loaded model is `young` until it has run a batch or
    `min_resident_ns` have passed.
    """

    def __init__(
        self,
        config: PartitionConfig,
        fleet: Fleet,
        residency: ResidencyReconciler,
        memories: Mapping[str, PartitionMemory],
    ) -> None:
        self.partition: PartitionState = fleet.partitions[config.name]
        self._sizes: dict[str, tuple[int, int]] = {}
        self._pinned: dict[str, ModelState] = {}
        self._priorities: dict[int, int] = {}
        self._listed: dict[str, int] = {}
        self._by_use: list[tuple[int, int, str, int]] = []
        self._serial = 0
        self.allow(config)
        self._fleet = fleet
        self._residency = residency
        self._memories = memories
        self._loading = residency.loading(config.name)
        self._since: dict[str, tuple[int, int]] = {}
        self._ordered_ns: dict[str, int] = {}
        self._ready_ns: dict[str, int] = {}
        self._last_load_ns = 0
        self._usual_ns = self._usual_bytes = 0.0

    def allow(self, config: PartitionConfig) -> None:
        """Set the models that may be here, and the bytes for them."""
        self._allowed = None if config.models is None else frozenset(config.models)
        self.capacity = config.memory_bytes
        self._held = frozenset[str]()
        self._held_bytes = 0
        self._sizes.clear()
        self._pinned.clear()
        self._priorities.clear()
        self._listed.clear()
        self._by_use.clear()

    @property
    def loads(self) -> int:
        """The number of ordered loads that have not ended."""
        return len(self._loading)

    @property
    def free_bytes(self) -> int:
        """Bytes that are free, and stay free once all orders are carried out."""
        self._follow()
        coming = self._loading | self._residency.pending(self.partition.name)
        return self.capacity - self._held_bytes - sum(map(self._bytes, coming))

    def _follow(self) -> None:
        """Look at the models that have come and gone since the last time; O(those), after `allow` O(models)."""
        held, before = self.partition.models, self._held
        if held is before:
            return
        self._held = held
        for key in sorted(before - held):
            priority, taken = self._sizes.pop(key)
            self._held_bytes -= taken
            self._priorities[priority] -= taken
            self._pinned.pop(key, None)
            del self._listed[key]
        for key in sorted(self._since.keys() - held):
            del self._since[key]
        for key in sorted(held - before):
            model = self._fleet.models[key]
            priority, taken = self._sizes[key] = model.config.priority, self._bytes(key)
            self._held_bytes += taken
            self._priorities[priority] = self._priorities.get(priority, 0) + taken
            if model.config.pinned:
                self._pinned[key] = model
            self._serial = self._listed[key] = self._serial + 1
            heappush(self._by_use, (priority, model.last_used_ns, key, self._serial))
        if len(self._by_use) > COMPACT_ABOVE + 2 * len(held):
            self._by_use = [item for item in self._by_use if self._listed.get(item[2]) == item[3]]
            heapify(self._by_use)

    def may_get_room(self, model: ModelState) -> bool:
        """True if a model would fit after the eviction of all models that may be evicted for it."""
        self._follow()
        most = model.config.priority
        stay_bytes = sum([taken for priority, taken in self._priorities.items() if priority > most])
        stay_bytes += sum([self._sizes[each.config.key][1] for each in self._pinned_for(model)])
        return stay_bytes + model.config.memory_on(self.partition.kind) <= self.capacity

    def staying(self, model: ModelState) -> list[ModelState]:
        """The models here that are never evicted for a model; O(models here)."""
        self._follow()
        most = model.config.priority
        above = [self._fleet.models[key] for key, (priority, _) in self._sizes.items() if priority > most]
        return above + self._pinned_for(model)

    def _pinned_for(self, model: ModelState) -> list[ModelState]:
        """The copies of pinned models that stay here, of those with no higher priority than a model."""
        most = model.config.priority
        return [each for each in self._pinned.values() if each.config.priority <= most and self._stays(each)]

    def may_hold(self, model: ModelState) -> bool:
        """True if a model may ever be here."""
        key = model.config.key
        allowed = self._allowed is None or key in self._allowed
        return allowed and model.config.memory_on(self.partition.kind) <= self.capacity

    def load_ns(self, model: ModelState, default_ns: int) -> int:
        """The expected time of a load: from the last loads, else as measured, else from the loads of other models here.

        In the last case, a model that is larger than the others takes longer in proportion.
        """
        kind = self.partition.kind
        footprint = model.config.footprints.get(kind)
        measured_ns = footprint.load_ns if footprint is not None else 0
        if known_ns := model.load_ns.get(kind) or measured_ns:
            return known_ns
        if not self._usual_ns:
            return default_ns
        return round(self._usual_ns * max(1.0, self._bytes(model.config.key) / max(self._usual_bytes, 1.0)))

    def loads_end_ns(self, now_ns: int) -> int:
        """When all loads in progress are expected to end."""
        return max(now_ns, max(self._ready_ns.values(), default=0))

    def is_loading(self, key: str) -> bool:
        """True if an ordered load of a model has not ended."""
        return key in self._loading

    def ready_ns(self, key: str, now_ns: int) -> int:
        """When a load in progress is expected to end."""
        return max(self._ready_ns.get(key, 0), now_ns)

    def ordered(self, key: str, ready_ns: int, now_ns: int) -> None:
        """Record that a load was ordered."""
        self._ordered_ns[key] = now_ns
        self._ready_ns[key] = ready_ns

    def loaded(self, model: ModelState, now_ns: int) -> None:
        """Record that a load ended; it took the time since the last one ended, as loads run one after the other."""
        key, kind = model.config.key, self.partition.kind
        ordered_ns = self._ordered_ns.get(key)
        if ordered_ns is not None:
            took_ns = max(now_ns - max(ordered_ns, self._last_load_ns), 1)
            model.load_ns[kind] = round(_smoothed(model.load_ns.get(kind, 0), took_ns))
            self._usual_ns = _smoothed(self._usual_ns, took_ns)
            self._usual_bytes = _smoothed(self._usual_bytes, self._bytes(key))
        self.dropped(key, now_ns)
        self._since[key] = now_ns, model.batches
        model.last_load_ns = now_ns

    def release(self, model: ModelState) -> None:
        """Have a model that has not run since it was loaded go as if it had not been loaded."""
        key = model.config.key
        since = self._since.get(key)
        if since is None or model.batches != since[1]:
            return
        self._since[key] = since[0], NEVER_YOUNG
        model.last_load_ns = 0
        if key in self._listed:
            self._serial = self._listed[key] = self._serial + 1
            heappush(self._by_use, (model.config.priority, model.last_used_ns, key, self._serial))

    def dropped(self, key: str, now_ns: int) -> None:
        """Remove an ordered load; the loads after it are shifted by the difference from its expected time."""
        expected_ns = self._ready_ns.pop(key, now_ns)
        self._ready_ns = {each: ready_ns + now_ns - expected_ns for each, ready_ns in self._ready_ns.items()}
        self._ordered_ns.pop(key, None)
        self._last_load_ns = now_ns

    def lost(self) -> list[str]:
        """Drop all orders, since the worker is gone; returns the models that were being loaded."""
        loading = sorted(self._loading)
        self._ready_ns.clear()
        self._ordered_ns.clear()
        self._since.clear()
        return loading

    def young(self, model: ModelState, min_resident_ns: int, now_ns: int) -> bool:
        """True if a model was loaded only recently and has run no batch."""
        since = self._since.get(model.config.key)
        return since is not None and model.batches == since[1] and now_ns - since[0] < min_resident_ns

    def held_ns(self, key: str, now_ns: int) -> int:
        """The time that a model has been here; infinite if it was not loaded on demand."""
        since = self._since.get(key)
        return INFINITE_NS if since is None else now_ns - since[0]

    def settled_ns(self, min_resident_ns: int, now_ns: int) -> int:
        """When no model here, or ordered, is `young` any more, even if none of them runs before."""
        if self._loading:
            return self.loads_end_ns(now_ns) + min_resident_ns
        models = map(self._fleet.models.__getitem__, self.partition.models)
        young = (model.config.key for model in models if self.young(model, min_resident_ns, now_ns))
        return max((self._since[key][0] + min_resident_ns for key in young), default=now_ns)

    def device(self, packing: PartitionPacking, leaving: Collection[str] = ()) -> Device:
        """The partition as packing policies see it, once the models in `leaving` have gone."""
        models = self._fleet.models
        held = [models[key] for key in sorted(self.partition.models) if key not in leaving]
        loading = [models[key] for key in sorted(self._loading)]
        return packing.device(self.partition, self.capacity, held, loading)

    def residents(self) -> list[Resident]:
        """The models here, without the copies of pinned models that stay."""
        models = map(self._fleet.models.__getitem__, sorted(self.partition.models))
        return [
            Resident(model.config.priority, model.last_used_ns, model.config.key, self._bytes(model.config.key))
            for model in models
            if not model.config.pinned or not self._stays(model)
        ]

    def victims(self, lacking_bytes: int, priority: int, may_go: Callable[[str], bool]) -> tuple[str, ...] | None:
        """The models here that `choose_victims` chooses."""
        residents = self._by_last_use()
        try:
            return choose_victims(residents, lacking_bytes, priority, may_go)
        finally:
            residents.close()

    def _by_last_use(self) -> Generator[Resident, None, None]:
        """As `residents`, in their order, which is known only as far as it is asked for."""
        self._follow()
        models, waiting = self._fleet.models, self._by_use
        passed: list[tuple[int, int, str, int]] = []
        try:
            while waiting:
                priority, used_ns, key, serial = waiting[0]
                if self._listed.get(key) != serial:
                    heappop(waiting)
                elif (last_used_ns := models[key].last_used_ns) != used_ns:
                    heapreplace(waiting, (priority, last_used_ns, key, serial))
                else:
                    passed.append(heappop(waiting))
                    if key not in self._pinned or not self._stays(models[key]):
                        yield Resident(priority, used_ns, key, self._sizes[key][1])
        finally:
            for item in passed:
                heappush(waiting, item)

    def _stays(self, model: ModelState) -> bool:
        """True if the copy of a pinned model here stays: the copy that leaves the most room for large models."""

        def room(host: PartitionState) -> tuple[int, int]:
            memory = self._memories.get(host.name)
            return (0 if memory is None else memory.capacity, -host.number)  # nothing is evicted from unbounded memory

        return min((host for host in model.partitions if host.ready), key=room, default=None) is self.partition

    def _bytes(self, key: str) -> int:
        return self._fleet.models[key].config.memory_on(self.partition.kind)


def _smoothed(before: float, now: float) -> float:
    """The running mean, in which the latest value has the weight `LOAD_WEIGHT`; the first value alone."""
    return before + LOAD_WEIGHT * (now - before) if before else float(now)


def choose_victims(
    residents: Iterable[Resident], lacking_bytes: int, priority: int, may_go: Callable[[str], bool]
) -> tuple[str, ...] | None:
    """The models to evict for a model of that `priority` to free `lacking_bytes`; None if too few may be evicted.

    The `residents` are in their order. No model of a higher priority is evicted. `may_go` is called for as few models
    as possible.
    """
    chosen: list[Resident] = []
    freed = 0
    for resident in residents:
        if freed >= lacking_bytes or resident.priority > priority:
            break
        if may_go(resident.key):
            chosen.append(resident)
            freed += resident.memory_bytes
    if freed < lacking_bytes:
        return None
    for resident in reversed(chosen[:-1]):  # a larger model chosen later may make others unnecessary
        if freed - resident.memory_bytes >= lacking_bytes:
            chosen.remove(resident)
            freed -= resident.memory_bytes
    return tuple(resident.key for resident in chosen)


def record_measured_memory(model: ModelState, kind: str, memory: ModelMemory) -> bool:
    """Record the measured memory of a model on a kind of partition; True if it is more than was assumed.

    A profile takes precedence. A smaller measurement is ignored: a part of the model may lie in memory that another
    model has left.
    """
    config = model.config
    taken = memory.of(config.max_batch)
    if kind in config.footprints or taken - config.memory_on(kind) <= PRECISION_BYTES:
        return False
    model.config = msgspec.structs.replace(config, measured_bytes={**config.measured_bytes, kind: taken})
    return True
