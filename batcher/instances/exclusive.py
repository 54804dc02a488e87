"""Partitions of one's own: each model has some for itself, and takes more from others where its load is higher."""

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.instances.base import Assignment, Contender, PoolView
from sluice.batcher.interface.instance_config import InstanceConfig
from sluice.batcher.state import Entry, ModelState, PartitionState

WINDOW = 256
"""The loads of models are compared after this many requests: fewer say too little of the difference of two rates."""


class ExclusivePartitions:
    """Each partition is one model's until another one takes it.

    A model may have its equal share of the partitions at once, and more while no other is short of its share. One
    without partitions takes that of a model which has more than one, else a free one whose owner has nothing earlier
    to run. From time to time a model takes one from a model whose load a partition is less by the factor `steal_at`,
    if its own is then still the higher one: else the partition would go back. The load is the rate of rows times the
    time of a row.

    `steals` counts the partitions that were taken from other models.
    """

    def __init__(self, config: InstanceConfig, fleet: Fleet) -> None:
        self._config = config
        self._fleet = fleet
        self._owners: dict[int, str] = {}
        self._loads: dict[str, float] = {}
        self._recent: dict[str, float] = {}
        self._came = 0
        self.steals = 0

    def entered(self, model: ModelState, entry: Entry) -> None:
        """Count the time that an entry will take."""
        key = model.config.key
        self._recent[key] = self._recent.get(key, 0.0) + entry.rows * model.quickest_ns
        self._came += 1

    def choose(self, contenders: list[Contender], view: PoolView) -> Assignment | None:
        """The first request that a free partition of its own model can take, or one that its model may have."""
        if self._came >= WINDOW and all(each.number in self._owners for each in view.partitions):
            self._compare(view)
        for contender in contenders:
            if contender.due and (partition := self._partition_for(contender, contenders, view)) is not None:
                return Assignment(contender, partition)
        return None

    def _partition_for(
        self, contender: Contender, contenders: list[Contender], view: PoolView
    ) -> PartitionState | None:
        model = contender.model
        key = model.config.key
        able = [each for each in view.free if view.can_take(each, model)]
        for each in view.free:
            if self._owners.get(each.number) == key and each not in able:
                del self._owners[each.number]  # it has no room for the model: another one may have it
        own = self._owned(key, view)
        held = [each for each in able if key in each.models]
        for partition in (*held, *able):
            if self._owners.get(partition.number) == key:
                return partition
        unowned = [each for each in (*held, *able) if each.number not in self._owners]
        if unowned and self._may_have_more(len(own), view):
            self._owners[unowned[0].number] = key
            return unowned[0]
        if own:
            return None
        taken = self._spared(able, contender, contenders, view)
        if taken is not None:
            self._owners[taken.number] = key
            self.steals += 1
        return taken

    def _may_have_more(self, own: int, view: PoolView) -> bool:
        """True if a model with `own` partitions may have one that is no one's."""
        keys = self._keys()
        share = len(view.partitions) // len(keys)
        if own < share or not share:
            return True
        return all(len(self._owned(key, view)) >= share for key in keys)

    def _spared(
        self, able: list[PartitionState], contender: Contender, contenders: list[Contender], view: PoolView
    ) -> PartitionState | None:
        """A free partition for a model without any: of the model with the least load a partition that has several.

        Else one whose owner has nothing to run that came before.
        """
        several = [each for each in able if len(self._owned(self._owners[each.number], view)) > 1]
        if several:
            return min(several, key=lambda each: self._pressure(self._owners[each.number], view))
        earlier = {each.model.config.key for each in contenders if each.due and each.order < contender.order}
        return next((each for each in able if self._owners[each.number] not in earlier), None)

    def _compare(self, view: PoolView) -> None:
        """Renew the loads, and move one partition to the model with the highest load a partition."""
        for key in {**self._loads, **self._recent}:
            recent = self._recent.get(key, 0.0)
            self._loads[key] = (self._loads[key] + recent) / 2 if key in self._loads else recent
        self._recent.clear()
        self._came = 0
        keys = self._keys()
        self._loads = {key: load for key, load in self._loads.items() if key in keys and load}
        self._owners = {number: key for number, key in self._owners.items() if key in keys}
        owning = [key for key in keys if self._owned(key, view)]
        if len(owning) < 2:
            return
        high = max(owning, key=lambda key: self._pressure(key, view))
        low = min(owning, key=lambda key: self._pressure(key, view))
        pressure, load, left = self._pressure(high, view), self._loads.get(low, 0.0), len(self._owned(low, view)) - 1
        stays_lower = load < pressure * left or not load
        if pressure > self._config.steal_at * self._pressure(low, view) and stays_lower:
            model = self._fleet.models[high]
            able = [each for each in self._owned(low, view) if view.may_run(each, model)]
            if able:
                chosen = max(able, key=lambda each: (high in each.models, each in view.free, -each.number))
                self._owners[chosen.number] = high
                self.steals += 1

    def _pressure(self, key: str, view: PoolView) -> float:
        """The load of a model by the number of its partitions."""
        return self._loads.get(key, 0.0) / max(len(self._owned(key, view)), 1)

    def _owned(self, key: str, view: PoolView) -> list[PartitionState]:
        return [each for each in view.partitions if self._owners.get(each.number) == key]

    def _keys(self) -> list[str]:
        """The models that have this policy."""
        return [key for key, model in self._fleet.models.items() if model.config.instances == self._config]
