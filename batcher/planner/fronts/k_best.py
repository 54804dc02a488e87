"""The cheapest full paths of a pipeline by best-first search, with the fronts as an exact heuristic."""

import heapq
from typing import NamedTuple

import numpy as np

from sluice.batcher.planner.fronts.pareto import DONE, Costs, Steps, Times, beside, series
from sluice.batcher.planner.fronts.region import Bounds, Leaf, ParallelRegion, SeriesRegion, StageRegion


class _Pending(NamedTuple):
    """The next leaf to choose, the time left when it begins, and the front of all that follows it."""

    leaf: StageRegion
    left_ns: int
    after: Steps


def k_best(root: StageRegion, stages: int, budget_ns: int, count: int, bounds: Bounds) -> list[tuple[int, ...]]:
    """The choices of the (up to) `count` cheapest paths within the budget.

    The budget must leave time for the quickest path. Leaves are chosen one at a time. The fronts give the cost of the
    cheapest full path that a partial path can become, so at most `count` partial paths of each length are extended. In
    a region that is not series-parallel, only combinations on its front are distinguished.
    """
    leaves = _leaves(root)
    heap: list[tuple[float, int, tuple[int, ...], float]] = [(0.0, 0, (), 0.0)]
    found: list[tuple[int, ...]] = []
    extended = [0] * len(leaves)
    while heap and len(found) < count:
        _, _, picks, spent = heapq.heappop(heap)
        if len(picks) == len(leaves):
            found.append(_choices(leaves, picks, stages))
            continue
        if extended[len(picks)] == count:  # `count` better ones become a full path each
            continue
        extended[len(picks)] += 1
        pending = _descend(root, picks, budget_ns, DONE, bounds)
        latency_ns, cost = _alternatives(pending.leaf)
        left = pending.left_ns - latency_ns
        total = cost + pending.after.cost_within(left)
        used = pending.after.latency_ns[pending.after.latency_ns.searchsorted(left, "right") - 1] - left
        for option in np.lexsort((used, total))[:count].tolist():
            if total[option] < np.inf:
                bound, further = spent + float(total[option]), spent + float(cost[option])
                heapq.heappush(heap, (bound, int(used[option]), (*picks, option), further))
    return found


def _alternatives(leaf: StageRegion) -> tuple[Times, Costs]:
    """The choices of a leaf: all options of a stage, or the front of a residual region."""
    return (leaf.latency_ns, leaf.cost) if isinstance(leaf, Leaf) else leaf.front


def _leaves(region: StageRegion) -> list[StageRegion]:
    """The regions that are chosen as a whole, in search order."""
    if isinstance(region, SeriesRegion | ParallelRegion):
        return [leaf for part in region.parts for leaf in _leaves(part)]
    return [region]


def _choices(leaves: list[StageRegion], picks: tuple[int, ...], stages: int) -> tuple[int, ...]:
    choices = [0] * stages
    for leaf, pick in zip(leaves, picks, strict=True):
        if isinstance(leaf, Leaf):
            leaf.take(pick, choices)
        else:
            leaf.choose(int(leaf.front.latency_ns[pick]), choices)
    return tuple(choices)


def _descend(region: StageRegion, picks: tuple[int, ...], left_ns: int, after: Steps, bounds: Bounds) -> _Pending:
    """Find the next leaf of a region that begins with `left_ns` left and is followed by `after`."""
    if not isinstance(region, SeriesRegion | ParallelRegion):
        return _Pending(region, left_ns, after)
    end_ns = left_ns
    for part, rest in zip(region.parts, (*region.rests, DONE), strict=False):
        size = len(_leaves(part))
        if len(picks) < size:
            if isinstance(region, SeriesRegion):
                return _descend(part, picks, left_ns, bounds.thinned(series(rest, after, left_ns)), bounds)
            count = after.latency_ns.searchsorted(end_ns, "right")
            after = Steps(after.latency_ns[:count], after.cost[:count])
            if part is not region.parts[-1]:
                after = bounds.thinned(beside(rest, after, left_ns))
            return _descend(part, picks, left_ns, after, bounds)
        ended_ns = left_ns - _elapsed(part, picks[:size])
        picks = picks[size:]
        if isinstance(region, SeriesRegion):
            left_ns = ended_ns
        else:
            end_ns = min(end_ns, ended_ns)
    raise AssertionError("a leaf is left to choose, but the region has none")


def _elapsed(region: StageRegion, picks: tuple[int, ...]) -> int:
    """The latency of a region all of whose leaves are chosen."""
    if not isinstance(region, SeriesRegion | ParallelRegion):
        return int(_alternatives(region)[0][picks[0]])
    elapsed = []
    for part in region.parts:
        size = len(_leaves(part))
        elapsed.append(_elapsed(part, picks[:size]))
        picks = picks[size:]
    return sum(elapsed) if isinstance(region, SeriesRegion) else max(elapsed)
