"""The planner as the running scheduler knows it: ranks the live options of a stage at every dispatch."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from sluice.batcher.interface.plan_data import CostToGo
from sluice.batcher.interface.planner_protocol import LiveOption, Ranker
from sluice.batcher.planner.rank import StageRanker
from sluice.models.units import INFINITE_NS

BEST = 5
"""Options that are ranked: ESG's configuration priority queue (HPDC 2024) holds about as many."""
FEW = 40
"""Options up to which ranking them one by one takes less time than calling NumPy for all at once."""


class FewOptionsRanker:
    """Ranks options one by one, and only those of groups that have something open."""

    def __init__(self, options: Sequence[LiveOption], rest: CostToGo) -> None:
        groups = max((option.group for option in options), default=-1) + 1
        self._of_group: list[list[tuple[int, int, int, float]]] = [[] for _ in range(groups)]
        for index, option in enumerate(options):
            self._of_group[option.group].append((index, option.rows, option.latency_ns, option.cost))
        self._within_ns = rest.within_ns
        self._rest_cost = rest.cost

    def rank(self, remaining_ns: int, rows: int, waits_ns: Sequence[int], least_rows: int) -> Sequence[int]:
        """See `sluice.batcher.interface.planner_protocol.Ranker`."""
        within_ns, rest_cost = self._within_ns, self._rest_cost
        only = rest_cost[0] if len(rest_cost) == 1 else None
        quickest_ns = within_ns[0] if within_ns else INFINITE_NS
        ranked = []
        for options, wait_ns in zip(self._of_group, waits_ns, strict=True):
            if wait_ns >= INFINITE_NS:
                continue
            for index, size, latency_ns, cost in options:
                if size < least_rows:
                    continue
                left_ns = remaining_ns - wait_ns - latency_ns
                if left_ns >= quickest_ns:
                    after = rest_cost[bisect_right(within_ns, left_ns) - 1] if only is None else only
                    ranked.append((cost / (size if size < rows else rows) + after, -left_ns, index))
        ranked.sort()
        return [index for _, _, index in ranked[:BEST]]


class ManyOptionsRanker:
    """Ranks all options at once: a `StageRanker` whose options cost by how many of the waiting rows they can take."""

    def __init__(self, options: Sequence[LiveOption], rest: CostToGo) -> None:
        self._rows = np.array([option.rows for option in options], np.float64)
        self._batch_cost = np.array([option.cost for option in options])
        self._row_cost = np.zeros(len(options))
        self._ranker = StageRanker(
            np.array([option.latency_ns for option in options], np.int64),
            self._row_cost,
            rest,
            [option.group for option in options],
        )

    def rank(self, remaining_ns: int, rows: int, waits_ns: Sequence[int], least_rows: int) -> Sequence[int]:
        """See `sluice.batcher.interface.planner_protocol.Ranker`."""
        np.minimum(self._rows, rows, out=self._row_cost)
        np.divide(self._batch_cost, self._row_cost, out=self._row_cost)
        large_enough = None if least_rows <= 1 else self._rows >= least_rows
        return self._ranker.rank(remaining_ns, BEST, large_enough, waits_ns)


class LivePlanner:
    """The `sluice.batcher.interface.planner_protocol.Planner` of this package."""

    def ranker(self, options: Sequence[LiveOption], rest: CostToGo) -> Ranker:
        """See `sluice.batcher.interface.planner_protocol.Planner`."""
        return (FewOptionsRanker if len(options) <= FEW else ManyOptionsRanker)(options, rest)
