"""Places models on partitions: each model once, then more replicas of the models with the most demand.

Placing models in bounded memory is bin packing. ParvaGPU (SC'24) and gpulet (ATC'22) take demands in descending order
and put each where it fits best, in one pass. Ours takes models by descending memory, puts each on the cheapest kind
that has room, and backtracks a bounded number of times if a model would be left out. The memory that is left goes to
replicas. ParvaGPU frees whole GPUs instead, but our partitions exist in any case.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from sluice.batcher.interface.config import PartitionConfig, ScheduledModel
from sluice.batcher.residency.packing import MIB, tenant_of, with_tenant
from sluice.mps.packing.policies import AnyPolicy
from sluice.mps.packing.tenant import Device

STAY = 0.8
"""Factor on the cost where a model is held already: models move to save a fifth, not with every change of traffic."""
STEPS = 2_000
"""Choices that are tried, besides one for each model, before models are left out."""


class ModelNeed(NamedTuple):
    """The needs of a model: memory, and by kind of partition the partition-seconds a second (none without traffic).

    A kind that is missing while there are others is taken last. The model gets `replicas` partitions before the memory
    that is left goes to the models with the most demand. A `pinned` model is placed before all others.
    """

    memory_bytes: int
    load: Mapping[str, float] = {}
    replicas: int = 1
    pinned: bool = False


class ResidencyPlan(NamedTuple):
    """The keys of the models that each partition is to hold, sorted; and the keys of models without room."""

    residency: dict[str, tuple[str, ...]]
    unplaced: tuple[str, ...]


def place_models(
    models: Mapping[str, ModelNeed],
    partitions: Sequence[PartitionConfig],
    present: Mapping[str, Collection[str]] | None = None,
    policy: AnyPolicy | None = None,
) -> ResidencyPlan:
    """Place every model once where it costs least, then the replicas that are asked for, then others by load per host.

    `present` are the models that partitions hold now, by name: a placement that is nearly as good stays. The memory of
    a partition is never exceeded, and a partition without a bound holds every model that it may. If there is no room
    for all models, pinned models come first, placed so that the largest other model still has room if possible. Then
    come the models with the most load, then those that are held, then the smaller ones. O((models + STEPS) partitions
    log partitions), and as much for each replica.

    A packing `policy` says which partitions with a bound may take a model beside those that are there, which of them is
    the best, and in which order models come. The memory that is then left stays free.
    """
    present = present or {}
    rooms = [_Room(number, config, present.get(config.name, ()), policy) for number, config in enumerate(partitions)]
    unbounded = [room for room in rooms if room.free == inf]
    for room in unbounded:
        for key, need in models.items():
            if room.may_hold(key):
                room.take(key, need)
    left = {key: need for key, need in models.items() if not any(key in room.models for room in unbounded)}
    unplaced = _place_once(left, rooms, policy)
    placed = {key: need for key, need in models.items() if key not in unplaced}
    _replicate_as_asked(placed, rooms)
    if policy is None:
        _replicate(placed, rooms)
    return ResidencyPlan({room.name: tuple(sorted(room.models)) for room in rooms}, unplaced)


class NewPlacement(NamedTuple):
    """The new models that each partition is to hold, and the copies of other models that are to go first.

    `unplaced` are the new models without room, sorted, and `free_bytes` is the most memory that any partition with a
    bound has free now.
    """

    residency: dict[str, tuple[str, ...]]
    spare: dict[str, tuple[str, ...]]
    unplaced: tuple[str, ...]
    free_bytes: int

    def hosts(self, key: str) -> tuple[str, ...]:
        """The partitions that are to hold a new model."""
        return tuple(name for name, keys in self.residency.items() if key in keys)


def model_needs(models: Collection[ScheduledModel], partitions: Iterable[PartitionConfig]) -> dict[str, ModelNeed]:
    """The memory that models need, and their expected demand, which is their priority as long as nothing is known."""
    kinds = dict.fromkeys(partition.kind for partition in partitions)
    least = min((model.priority for model in models), default=0)
    ranks = {model.key: model.priority - least for model in models}
    ranked = any(ranks.values())
    return {
        model.key: ModelNeed(
            model.most_bytes,
            dict.fromkeys(kinds, float(ranks[model.key])) if ranked else {},
            model.replicas,
            model.pinned,
        )
        for model in models
    }


def find_room(
    needs: Mapping[str, ModelNeed],
    new: Collection[str],
    partitions: Sequence[PartitionConfig],
    held: Mapping[str, Collection[str]],
    serving: Mapping[str, Collection[str]],
    policy: AnyPolicy | None = None,
) -> NewPlacement:
    """Place new models beside those that are held: no partition exceeds its memory, and no model loses its last copy.

    `needs` are of all models. `held` has the models that partitions hold or are loading, `serving` those that
    partitions which are up hold.
    """
    target = place_models(needs, partitions, held, policy).residency
    copies = {name: set(models) for name, models in serving.items()}
    residency: dict[str, tuple[str, ...]] = {}
    spare: dict[str, tuple[str, ...]] = {}
    most = 0
    for partition in partitions:
        name = partition.name
        free = partition.memory_bytes - sum(needs[key].memory_bytes for key in held[name] if key in needs)
        most = max(most, free)
        coming = [key for key in target[name] if key in new]
        if partition.memory_bytes and coming:
            lacking = sum(needs[key].memory_bytes for key in coming) - free
            leaving = _spare(lacking, needs, copies[name].difference(target[name]), copies, name)
            if leaving is None:
                continue
            copies[name].difference_update(leaving)
            if leaving:
                spare[name] = tuple(sorted(leaving))
        if coming:
            residency[name] = tuple(coming)
    return NewPlacement(residency, spare, tuple(sorted(set(new).difference(*residency.values()))), most)


class _Room:
    """A partition while it is filled: its free bytes, the load of the models that it holds so far, and its devices.

    The last of the devices is the partition as the packing policy sees it now, those before as it was.
    """

    __slots__ = (
        "_allowed",
        "_devices",
        "_loads",
        "_policy",
        "free",
        "kind",
        "models",
        "name",
        "number",
        "present",
        "price",
    )

    def __init__(
        self, number: int, config: PartitionConfig, present: Collection[str], policy: AnyPolicy | None
    ) -> None:
        self.number = number
        self.name = config.name
        self.kind = config.kind
        self.price = config.price
        self.present = frozenset(present)
        self.free: float = config.memory_bytes or inf
        self.models: set[str] = set()
        self._loads = [0.0]
        self._allowed = None if config.models is None else frozenset(config.models)
        self._policy = policy if config.memory_bytes else None
        self._devices = [Device(config.name, config.memory_bytes // MIB)]

    def may_take(self, key: str, need: ModelNeed) -> bool:
        """True if there is room for one more model."""
        if self.free < need.memory_bytes or key in self.models or not self.may_hold(key):
            return False
        return (
            self._policy is None or self._policy.refusal(tenant_of(key, need.memory_bytes), self._devices[-1]) is None
        )

    def may_hold(self, key: str) -> bool:
        return self._allowed is None or key in self._allowed

    def take(self, key: str, need: ModelNeed) -> None:
        self.models.add(key)
        self.free -= need.memory_bytes
        self._loads.append(self._loads[-1] + need.load.get(self.kind, 0.0))
        if self._policy is not None:
            self._devices.append(with_tenant(self._devices[-1], tenant_of(key, need.memory_bytes)))

    def give_up(self, key: str, need: ModelNeed) -> None:
        """Undo the last `take`."""
        self.models.remove(key)
        self.free += need.memory_bytes
        self._loads.pop()
        if self._policy is not None:
            self._devices.pop()

    def rank(self, key: str, need: ModelNeed) -> tuple[float, bool, float, int]:
        """Sort key of rooms for a model: lower cost first, then where it is already, then the lower load.

        For a pinned model the last criterion is less free memory, because no other model ever gets its room. A packing
        policy has its own cost.
        """
        cost = self.price * need.load.get(self.kind, inf) if need.load else 0.0
        moves = key not in self.present
        if self._policy is not None:
            return self._policy.cost(tenant_of(key, need.memory_bytes), self._devices[-1]), moves, 0.0, self.number
        return (cost if moves else cost * STAY, moves, self.free if need.pinned else self._loads[-1], self.number)


def _place_once(models: Mapping[str, ModelNeed], rooms: Sequence[_Room], policy: AnyPolicy | None) -> tuple[str, ...]:
    """Place each model in one room; returns the keys of those that are left out, sorted."""
    fitting = {key: need for key, need in models.items() if _ranked(key, need, rooms)}
    order = sorted(fitting, key=lambda key: (-fitting[key].memory_bytes, key))
    if policy is not None:
        tenants = [tenant_of(key, need.memory_bytes) for key, need in fitting.items()]
        order = [tenant.name for tenant in policy.in_order(tenants)]
    if _search(order, fitting, rooms):
        return tuple(sorted(models.keys() - fitting.keys()))
    held = frozenset[str]().union(*(room.present for room in rooms))
    urgent = {key: _least(need) if key in held else _least(need) * STAY for key, need in fitting.items()}

    def turn(key: str) -> tuple[bool, float, bool, int, str]:
        return (not fitting[key].pinned, -urgent[key], key not in held, fitting[key].memory_bytes, key)

    if not _place_pinned(order, fitting, rooms):
        # Held ones stay. They come in the order in which they were placed, so that each takes the room that it had.
        for key in sorted(fitting, key=turn):
            here = (room for room in _ranked(key, fitting[key], rooms) if key in room.present)
            if fitting[key].pinned and (room := next(here, None)) is not None:
                room.take(key, fitting[key])
    for key in sorted(_missing(fitting, rooms), key=turn):
        if ranked := _ranked(key, fitting[key], rooms):
            ranked[0].take(key, fitting[key])
    return tuple(sorted(_missing(models, rooms)))


def _place_pinned(order: Sequence[str], models: Mapping[str, ModelNeed], rooms: Sequence[_Room]) -> bool:
    """Place all pinned models, so that the largest other model has room too if possible; False if they do not fit."""
    pinned = [key for key in order if models[key].pinned]
    largest = next((key for key in order if not models[key].pinned), None)
    if pinned and largest is not None and _search([*pinned, largest], models, rooms):
        next(room for room in rooms if largest in room.models).give_up(largest, models[largest])
        return True
    return _search(pinned, models, rooms)


def _missing(models: Iterable[str], rooms: Sequence[_Room]) -> list[str]:
    return [key for key in models if not any(key in room.models for room in rooms)]


def _search(order: Sequence[str], models: Mapping[str, ModelNeed], rooms: Sequence[_Room]) -> bool:
    """Place all models in this order, depth first by rank; False, with none placed, if that fails within `STEPS`."""
    if sum(models[key].memory_bytes for key in order) > sum((room.free for room in rooms), 0.0):
        return False
    choices: list[Iterator[_Room]] = []
    chosen: list[_Room] = []
    for _ in range(STEPS + len(order)):
        depth = len(chosen)
        if depth == len(order):
            return True
        key = order[depth]
        if len(choices) == depth:
            choices.append(iter(_ranked(key, models[key], rooms)))
        if room := next(choices[-1], None):
            room.take(key, models[key])
            chosen.append(room)
        elif chosen:
            choices.pop()
            chosen.pop().give_up(order[depth - 1], models[order[depth - 1]])
        else:
            return False
    while chosen:
        room, key = chosen.pop(), order[len(chosen)]
        room.give_up(key, models[key])
    return False


def _replicate_as_asked(models: Mapping[str, ModelNeed], rooms: Sequence[_Room]) -> None:
    """Place the replicas that models ask for, in rounds of one for each, as far as there is room."""
    order = sorted(models, key=lambda key: (-_least(models[key]), key))
    most = max((need.replicas for need in models.values()), default=0)
    for hosts in range(2, min(most, len(rooms)) + 1):
        for key in order:
            lacks = models[key].replicas >= hosts > sum(key in room.models for room in rooms)
            if lacks and (ranked := _ranked(key, models[key], rooms)):
                ranked[0].take(key, models[key])


def _replicate(models: Mapping[str, ModelNeed], rooms: Sequence[_Room]) -> None:
    """Fill the memory that is left, each time with the model that has the most load per host."""
    waiting: list[tuple[float, bool, str]] = []

    def push(key: str, hosts: int) -> None:
        moves = not any(key in room.present and key not in room.models for room in rooms)
        load = _least(models[key]) / hosts
        heappush(waiting, (-load * STAY if moves else -load, moves, key))

    for key in models:
        push(key, sum(key in room.models for room in rooms))
    while waiting:
        key = heappop(waiting)[2]
        if ranked := _ranked(key, models[key], rooms):
            ranked[0].take(key, models[key])
            push(key, sum(key in room.models for room in rooms))


def _ranked(key: str, need: ModelNeed, rooms: Sequence[_Room]) -> list[_Room]:
    """The rooms that can take one more model, the best first."""
    fitting = (room for room in rooms if room.may_take(key, need))
    return sorted(fitting, key=lambda room: room.rank(key, need))


def _least(need: ModelNeed) -> float:
    return min(need.load.values(), default=0.0)


def _spare(
    lacking: int,
    needs: Mapping[str, ModelNeed],
    candidates: Collection[str],
    copies: Mapping[str, Collection[str]],
    partition: str,
) -> list[str] | None:
    """The candidates to unload for the lacking bytes, the largest first; None when they are not enough."""
    leaving: list[str] = []
    elsewhere = {key for name, models in copies.items() if name != partition for key in models}
    able = (key for key in needs if key in candidates and key in elsewhere)
    for key in sorted(able, key=lambda key: (-needs[key].memory_bytes, key)):
        if lacking <= 0:
            break
        leaving.append(key)
        lacking -= needs[key].memory_bytes
    return leaving if lacking <= 0 else None
