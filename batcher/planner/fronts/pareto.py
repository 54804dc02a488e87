"""Pareto fronts of latency and cost, and their composition in series and in parallel."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
Costs = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


class Steps(NamedTuple):
    """A front, both of shape (points,): latencies ascend, costs descend, and no point is dominated."""

    latency_ns: Times
    cost: Costs

    def cost_within(self, times_ns: Times) -> Costs:
        """The least cost within each of the times; inf where the time is too short."""
        index = self.latency_ns.searchsorted(times_ns, "right") - 1
        return np.where(index < 0, np.inf, self.cost[index])


DONE = Steps(np.zeros(1, np.int64), np.zeros(1))
"""Nothing left to do."""


def pareto(latency_ns: Times, cost: Costs) -> Indices:
    """The points that no other dominates, by ascending latency; of equal points one. O(n log n)."""
    order = _order(latency_ns, cost)
    sorted_cost = cost[order]
    useful = np.empty(len(order), np.bool_)
    useful[:1] = True
    np.less(sorted_cost[1:], np.minimum.accumulate(sorted_cost)[:-1], out=useful[1:])
    order = order[useful]
    times = latency_ns[order]
    # Of points of equal latency the packed order may have kept several, the cheapest last.
    last = np.empty(len(order), np.bool_)
    last[-1:] = True
    np.not_equal(times[1:], times[:-1], out=last[:-1])
    return order[last]


def _order(latency_ns: Times, cost: Costs) -> Indices:
    """The order by latency. Sorting (latency, index) packed in one word is many times faster than an indirect sort."""
    bits = len(latency_ns).bit_length()
    if int(latency_ns.max(initial=0)).bit_length() + bits > 63:
        return np.lexsort((cost, latency_ns))
    words = (latency_ns << bits) | np.arange(len(latency_ns))
    words.sort()
    return words & ((1 << bits) - 1)


def series(first: Steps, second: Steps, horizon_ns: int) -> Steps:
    """In series: latencies and costs add up. Points beyond the horizon are left out, except the quickest."""
    if first is DONE:
        return up_to(second, horizon_ns)
    if second is DONE:
        return up_to(first, horizon_ns)
    horizon_ns = max(horizon_ns, int(first.latency_ns[0] + second.latency_ns[0]))
    latency_ns = np.add.outer(first.latency_ns, second.latency_ns).ravel()
    cost = np.add.outer(first.cost, second.cost).ravel()
    reached = np.flatnonzero(latency_ns <= horizon_ns)
    if len(reached) < len(latency_ns):
        latency_ns, cost = latency_ns[reached], cost[reached]
    keep = pareto(latency_ns, cost)
    return Steps(latency_ns[keep], cost[keep])


def parallel(first: Steps, second: Steps) -> Steps:
    """In parallel, until both have ended: the longer latency, and costs add up."""
    times = np.concatenate((first.latency_ns, second.latency_ns))
    times.sort()
    times = times[times.searchsorted(max(first.latency_ns[0], second.latency_ns[0])) :]
    cost = first.cost_within(times) + second.cost_within(times)
    keep = pareto(times, cost)
    return Steps(times[keep], cost[keep])


def beside(other: Steps, after: Steps, left_ns: int) -> Steps:
    """The cost of `other` and of `after`, which begins when both `other` and one beside it have ended.

    `left_ns` is the time left when the two begin; the result goes by the time left when the one beside `other` ends.
    May be empty: then there is no time for both.
    """
    times = np.concatenate((after.latency_ns, left_ns - other.latency_ns))
    times = times[(times >= after.latency_ns[0]) & (times <= left_ns - other.latency_ns[0])]
    cost = other.cost_within(left_ns - times) + after.cost_within(times)
    keep = pareto(times, cost)
    return Steps(times[keep], cost[keep])


def up_to(front: Steps, horizon_ns: int) -> Steps:
    """The points up to the horizon, but at least the quickest."""
    count = max(1, int(front.latency_ns.searchsorted(horizon_ns, "right")))
    return front if count == len(front.latency_ns) else Steps(front.latency_ns[:count], front.cost[:count])


def thinned(latency_ns: Times, horizon_ns: int, max_points: int) -> Indices | None:
    """The points to keep of a front that has more than `max_points`, at most about half as many; None for all.

    Time up to the horizon is cut into `max_points // 2` cells, and each cell keeps its last, cheapest point (the first
    cell its quickest as well). This is a time grid rounded up, except that the times stay exact. Every point that is
    kept is attainable, so a plan made from it is never over the budget; it may miss the least cost by what one cell of
    time saves.
    """
    if len(latency_ns) <= max_points:
        return None
    cell_ns = max(1, -(-horizon_ns // (max_points // 2)))
    cells = latency_ns // cell_ns
    keep = np.empty(len(cells), np.bool_)
    keep[-1] = True
    np.not_equal(cells[1:], cells[:-1], out=keep[:-1])
    keep[0] = True
    return np.flatnonzero(keep)
