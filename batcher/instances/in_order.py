"""The rules by which requests are served one after the other: by arrival, or by the time that they still need."""

from sluice.batcher.fleet.home_order import home_order, name_hash
from sluice.batcher.instances.base import Assignment, Contender, PoolView
from sluice.batcher.state import Entry, ModelState, PartitionState


class RoundRobin:
    """Partitions take turns in the order of their numbers, and a busy one is waited for.

    A partition that is down, or may not run the model whose turn it is, is passed over.
    """

    def __init__(self) -> None:
        self._last = -1

    def entered(self, model: ModelState, entry: Entry) -> None:
        """Nothing is learned."""

    def choose(self, contenders: list[Contender], view: PoolView) -> Assignment | None:
        """The first request, on the partition whose turn it is."""
        first = contenders[0]
        if not first.due:
            return None
        after = [each for each in view.partitions if each.number > self._last]
        before = [each for each in view.partitions if each.number <= self._last]
        for partition in (*after, *before):
            if not view.may_run(partition, first.model):
                continue
            if partition not in view.free:
                return None
            if view.can_take(partition, first.model):
                self._last = partition.number
                return Assignment(first, partition)
        return None


class Balance:
    """A request goes to the partition that was given a batch the longest ago, of those that are free."""

    def entered(self, model: ModelState, entry: Entry) -> None:
        """Nothing is learned."""

    def choose(self, contenders: list[Contender], view: PoolView) -> Assignment | None:
        """The first request that some free partition can take."""
        return first_possible(contenders, view)


class ShortestFirst:
    """As `Balance`, but the request with the shortest time remaining goes first."""

    def entered(self, model: ModelState, entry: Entry) -> None:
        """Nothing is learned."""

    def choose(self, contenders: list[Contender], view: PoolView) -> Assignment | None:
        """The shortest request that some free partition can take."""
        return first_possible(sorted(contenders, key=lambda each: (each.remaining_ns, each.order)), view)


class HomeHash:
    """A request goes to the first free partition in the order that belongs to its model; O(partitions)."""

    def __init__(self) -> None:
        self._orders: dict[str, list[int]] = {}
        self._count = 0

    def entered(self, model: ModelState, entry: Entry) -> None:
        """Nothing is learned."""

    def choose(self, contenders: list[Contender], view: PoolView) -> Assignment | None:
        """The first request that some free partition can take, as near to the home of its model as possible."""
        for contender in contenders:
            if not contender.due:
                return None
            for partition in self._tried(contender.model, view):
                if partition in view.free and view.can_take(partition, contender.model):
                    return Assignment(contender, partition)
        return None

    def _tried(self, model: ModelState, view: PoolView) -> list[PartitionState]:
        """The partitions in the order in which they are tried for a model."""
        if self._count != len(view.partitions) or len(self._orders) > len(view.partitions) + _REMEMBERED:
            self._count = len(view.partitions)
            self._orders.clear()
        order = self._orders.get(model.config.key)
        if order is None:
            order = self._orders[model.config.key] = home_order(self._count, name_hash(model.config.key))
        return [view.partitions[index] for index in order]


_REMEMBERED = 1024
"""Models whose orders are remembered."""


def first_possible(contenders: list[Contender], view: PoolView) -> Assignment | None:
    """The first of the contenders that some free partition can take; one that is not due holds up those behind it."""
    for contender in contenders:
        if not contender.due:
            return None
        if (partition := view.first_free(contender.model)) is not None:
            return Assignment(contender, partition)
    return None
