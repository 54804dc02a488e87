"""Assembles the regions of a pipeline; residual regions, which are not series-parallel, are solved case by case."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product

import numpy as np

from sluice.batcher.planner.fronts.conditioning import OpenedOrder, open_up
from sluice.batcher.planner.fronts.pareto import DONE, Indices, Steps, pareto, thinned, up_to
from sluice.batcher.planner.fronts.region import Bounds, Fixed, ParallelRegion, SeriesRegion, StageRegion
from sluice.batcher.planner.problem.graph import Residual, Series, Shape, Sources, ancestors, decompose

MAX_CASES = 256
"""Combinations of fixed options that are solved for a region that is not series-parallel."""


class ResidualRegion:
    """Regions in an order that is not series-parallel, solved for every combination of options of its cut parts.

    Exact up to `MAX_CASES` combinations; beyond, the cut parts keep evenly spread points of their fronts, so that the
    result still fits but may miss the least cost.
    """

    def __init__(self, parts: Sequence[StageRegion], sources: Sources, opened: OpenedOrder, bounds: Bounds) -> None:
        self.parts = parts
        self.sources = sources
        self._opened = opened
        self._bounds = bounds

    @cached_property
    def _cases(self) -> list[tuple[tuple[int, float], ...]]:
        """Latency and cost of each cut part, in all combinations."""
        most = int(MAX_CASES ** (1 / len(self._opened.cuts)))
        return list(product(*(_spread(self.parts[cut].front, most) for cut in self._opened.cuts)))

    @cached_property
    def _solved(self) -> tuple[Steps, Indices]:
        """The front, and the case that each of its points comes from."""
        fronts = [self._region(case).front for case in self._cases]
        latency_ns = np.concatenate([front.latency_ns for front in fronts])
        cost = np.concatenate([front.cost for front in fronts])
        cases = np.repeat(np.arange(len(fronts)), [len(front.cost) for front in fronts])
        keep = pareto(latency_ns, cost)
        keep = keep[: len(up_to(Steps(latency_ns[keep], cost[keep]), self._bounds.horizon_ns).cost)]
        if (coarse := thinned(latency_ns[keep], self._bounds.horizon_ns, self._bounds.max_points)) is not None:
            keep = keep[coarse]
        return Steps(latency_ns[keep], cost[keep]), cases[keep]

    @property
    def front(self) -> Steps:
        """As in `StageRegion`."""
        return self._solved[0]

    @property
    def quickest_ns(self) -> int:
        """As in `StageRegion`."""
        return int(self.front.latency_ns[0])

    def choose(self, within_ns: int, choices: list[int]) -> None:
        """As in `StageRegion`."""
        front, cases = self._solved
        case = self._cases[cases[front.latency_ns.searchsorted(within_ns, "right") - 1]]
        self._region(case).choose(within_ns, choices)
        for cut, (latency_ns, _) in zip(self._opened.cuts, case, strict=True):
            self.parts[cut].choose(latency_ns, choices)

    def _region(self, case: Sequence[tuple[int, float]]) -> StageRegion:
        """The series-parallel region that is left when the cut parts are fixed."""
        fixed = dict(zip(self._opened.cuts, case, strict=True))
        leaves: list[StageRegion] = []
        for part in self._opened.origin:
            if part in fixed:
                leaves.append(Fixed(*fixed[part]))
                fixed[part] = (fixed[part][0], 0.0)  # a part costs once, however many copies it has
            else:
                leaves.append(self.parts[part])
        return assemble(decompose(self._opened.sources), leaves, self._bounds)


def _spread(front: Steps, most: int) -> Iterator[tuple[int, float]]:
    """At most `most` points of a front, the first and the last among them."""
    count = len(front.cost)
    keep = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(np.intp))
    return zip(front.latency_ns[keep].tolist(), front.cost[keep].tolist(), strict=True)


def assemble(shape: Shape, leaves: Sequence[StageRegion], bounds: Bounds) -> StageRegion:
    """The region of a shape whose nodes are `leaves`.

    A residual part that cannot be opened with few cuts is solved as if it ran level by level, each level when the one
    before has ended. This order implies the true one: a path that fits it fits, but the least cost and the least time
    may be missed (`slack.spend_slack` makes up for most of that).
    """
    if isinstance(shape, int):
        return leaves[shape]
    parts = [assemble(part, leaves, bounds) for part in shape.parts]
    if isinstance(shape, Series):
        return SeriesRegion(parts, bounds)
    if not isinstance(shape, Residual):
        return ParallelRegion(parts, bounds)
    if (opened := open_up(shape.sources)) is not None:
        return ResidualRegion(parts, shape.sources, opened, bounds)
    return SeriesRegion([_level(parts, level, bounds) for level in _levels(shape.sources)], bounds)


def _level(parts: Sequence[StageRegion], level: Sequence[int], bounds: Bounds) -> StageRegion:
    chosen = [parts[part] for part in level]
    return chosen[0] if len(chosen) == 1 else ParallelRegion(chosen, bounds)


def _levels(sources: Sources) -> list[list[int]]:
    """Nodes by the number of nodes on the longest path to them."""
    depths: list[int] = []
    for direct in sources:
        depths.append(1 + max((depths[source] for source in direct), default=-1))
    return [[node for node, depth in enumerate(depths) if depth == level] for level in range(max(depths) + 1)]


def following(region: ResidualRegion, part: int, bounds: Bounds) -> Steps:
    """The front of all parts of the region that come after a part."""
    after = [other for other, before in enumerate(ancestors(region.sources)) if part in before]
    if not after:
        return DONE
    sources = tuple(
        tuple(position for position, other in enumerate(after) if other in region.sources[node]) for node in after
    )
    return assemble(decompose(sources), [region.parts[other] for other in after], bounds).front
