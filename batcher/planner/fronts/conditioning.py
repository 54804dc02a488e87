"""Makes an order series-parallel by fixing the latency of a few of its nodes.

A node with a fixed latency may be replaced by copies, one for each of its successors, for each of its predecessors, or
for each pair of the two: all longest paths stay the same. (Node reduction of activity networks: Bein, Kamburowski and
Stallmann, 1992; for time-cost trade-offs: De et al., 1995.)
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from sluice.batcher.planner.problem.graph import Sources, ancestors, tangle

MAX_CUTS = 4
"""Highest number of fixed nodes: the cases to solve are the product of their options."""
MAX_NODES = 24
"""Largest region for which cuts are searched."""
MAX_COPIES = 96
MAX_SPLITS = 12


class OpenedOrder(NamedTuple):
    """A series-parallel order of copies: `origin` is the node that each copies; the nodes in `cuts` are to be fixed."""

    cuts: tuple[int, ...]
    origin: tuple[int, ...]
    sources: Sources


@lru_cache(maxsize=256)
def open_up(sources: Sources) -> OpenedOrder | None:
    """Fix nodes until the rest is series-parallel, greedily the node that untangles most first.

    None if that takes more than `MAX_CUTS` or the region has more than `MAX_NODES`. Bounded: `MAX_SPLITS` rounds of
    at most three tries a node.
    """
    if len(sources) > MAX_NODES:
        return None
    opened = OpenedOrder((), tuple(range(len(sources))), _reduced(sources))
    for _ in range(MAX_SPLITS):
        best = min(_splits(opened), key=lambda split: (tangle(split.sources), len(split.cuts), split), default=None)
        if best is None:
            return None
        if tangle(best.sources) == 0:
            return best
        opened = best
    return None


def _reduced(sources: Sources) -> Sources:
    """The order without transitive edges."""
    before = ancestors(sources)
    return tuple(
        tuple(node for node in direct if not any(node in before[other] for other in direct)) for direct in sources
    )


def _splits(opened: OpenedOrder) -> Iterator[OpenedOrder]:
    """Every way to replace one node by copies."""
    for node, origin in enumerate(opened.origin):
        cuts = tuple(sorted({*opened.cuts, origin}))
        befores = opened.sources[node]
        afters = tuple(after for after, direct in enumerate(opened.sources) if node in direct)
        if len(cuts) > MAX_CUTS or len(opened.origin) + len(befores) * len(afters) > MAX_COPIES:
            continue
        if len(afters) > 1:
            yield _split(opened, cuts, node, [(befores, (after,)) for after in afters])
        if len(befores) > 1:
            yield _split(opened, cuts, node, [((before,), afters) for before in befores])
        if len(afters) > 1 and len(befores) > 1:
            yield _split(opened, cuts, node, [((before,), (after,)) for before in befores for after in afters])


def _split(
    opened: OpenedOrder, cuts: tuple[int, ...], node: int, copies: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> OpenedOrder:
    """Replace `node` by copies with these predecessors and successors; the order stays topological."""
    more = len(copies) - 1

    def moved(other: int) -> int:
        return other + more if other > node else other

    origin = opened.origin[:node] + (opened.origin[node],) * len(copies) + opened.origin[node + 1 :]
    sources = [*opened.sources[:node], *(befores for befores, _ in copies)]
    for after in range(node + 1, len(opened.sources)):
        direct = [moved(source) for source in opened.sources[after] if source != node]
        direct += [node + index for index, (_, afters) in enumerate(copies) if after in afters]
        sources.append(tuple(sorted(direct)))
    return OpenedOrder(cuts, origin, tuple(sources))
