"""The shape of a pipeline: parts in series, parts in parallel, and residual parts that are neither.

Only the order of the stages matters for the longest path through them, so the order is decomposed, not the graph
(modular decomposition; series-parallel orders: Valdes, Tarjan and Lawler, 1982). Transitive edges therefore do not
matter, and the single-entry, single-exit regions that dominators and post-dominators bound are among the parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

Sources = tuple[tuple[int, ...], ...]
"""For each node, in topological order, the nodes that must end before it begins."""


@dataclass(frozen=True)
class Series:
    """Parts one after another."""

    parts: tuple["Shape", ...]


@dataclass(frozen=True)
class Parallel:
    """Parts side by side, none before another."""

    parts: tuple["Shape", ...]


@dataclass(frozen=True)
class Residual:
    """Parts in topological order, each after the parts in `sources` (direct and indirect)."""

    parts: tuple["Shape", ...]
    sources: Sources


Shape = int | Series | Parallel | Residual
"""A single node, or parts put together."""


@lru_cache(maxsize=256)
def decompose(sources: Sources) -> Shape:
    """The shape of the order that `sources` give; there must be a node. O(nodes^3) bit operations at worst."""
    return _Order(sources).shape((1 << len(sources)) - 1)


@lru_cache(maxsize=256)
def ancestors(sources: Sources) -> Sources:
    """For each node all nodes that must end before it begins, in ascending order."""
    return tuple(tuple(_members(mask)) for mask in _Order(sources).before)


def is_series_parallel(shape: Shape) -> bool:
    """True if no part is residual."""
    return isinstance(shape, int) or (
        not isinstance(shape, Residual) and all(is_series_parallel(part) for part in shape.parts)
    )


def tangle(sources: Sources) -> int:
    """The number of nodes in regions that are not series-parallel."""
    return _Order(sources).tangle((1 << len(sources)) - 1)


class _Order:
    """A partial order; sets of nodes are the bits of an int."""

    def __init__(self, sources: Sources) -> None:
        self.before: list[int] = []
        self.after = [0] * len(sources)
        for node, direct in enumerate(sources):
            mask = 0
            for source in direct:
                mask |= self.before[source] | 1 << source
            self.before.append(mask)
            for earlier in _members(mask):
                self.after[earlier] |= 1 << node

    def shape(self, nodes: int) -> Shape:
        """The shape of a module: a set of nodes with the same relation to each node outside."""
        if nodes & (nodes - 1) == 0:
            return nodes.bit_length() - 1
        if len(parts := self.unordered_parts(nodes)) > 1:
            return Parallel(tuple(self.shape(part) for part in parts))
        if len(parts := self.ordered_parts(nodes)) > 1:
            return Series(tuple(self.shape(part) for part in parts))
        parts = self.modules(nodes)
        firsts = [_first(part) for part in parts]
        order = tuple(
            tuple(index for index, other in enumerate(firsts) if self.before[first] >> other & 1) for first in firsts
        )
        return Residual(tuple(self.shape(part) for part in parts), order)

    def tangle(self, nodes: int) -> int:
        """The number of nodes in residual regions, modules inside them included."""
        if nodes & (nodes - 1) == 0:
            return 0
        if len(parts := self.unordered_parts(nodes)) > 1 or len(parts := self.ordered_parts(nodes)) > 1:
            return sum(self.tangle(part) for part in parts)
        return nodes.bit_count()

    def unordered_parts(self, nodes: int) -> list[int]:
        """The parts whose nodes are unordered with the nodes of all other parts."""
        return self._components(nodes, [before | after for before, after in zip(self.before, self.after, strict=True)])

    def ordered_parts(self, nodes: int) -> list[int]:
        """The parts that follow one another as a whole, in topological order."""
        return self._components(
            nodes, [~(before | after) for before, after in zip(self.before, self.after, strict=True)]
        )

    def modules(self, nodes: int) -> list[int]:
        """The largest proper modules, for nodes that are one unordered and one ordered part."""
        parts: list[int] = []
        left = nodes
        while left:
            part = left & -left
            for other in _members(left & ~part):
                if not part >> other & 1 and (module := self._smallest_module(part | 1 << other, nodes)) != nodes:
                    part = module
            parts.append(part)
            left &= ~part
        return parts

    def _smallest_module(self, seed: int, nodes: int) -> int:
        """Grow `seed` by all nodes whose relation to two of its nodes differs."""
        first = _first(seed)
        module, fresh = seed, seed
        while fresh:
            apart = 0
            for node in _members(fresh):
                apart |= (self.before[first] ^ self.before[node]) | (self.after[first] ^ self.after[node])
            fresh = apart & nodes & ~module
            module |= fresh
        return module

    @staticmethod
    def _components(nodes: int, neighbours: list[int]) -> list[int]:
        """Connected components within `nodes`, in the order of their first nodes."""
        parts = []
        while nodes:
            part, fresh = 0, nodes & -nodes
            while fresh:
                part |= fresh
                reached = 0
                for node in _members(fresh):
                    reached |= neighbours[node]
                fresh = reached & nodes & ~part
            parts.append(part)
            nodes &= ~part
        return parts


def _first(nodes: int) -> int:
    return (nodes & -nodes).bit_length() - 1


def _members(nodes: int) -> Iterator[int]:
    while nodes:
        yield _first(nodes)
        nodes &= nodes - 1
