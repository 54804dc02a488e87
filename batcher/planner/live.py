"""The planner of the running scheduler: ranks the live options of a stage at every dispatch."""

from bisect import bisect_right
from collections.abc import Sequence
from operator import neg

import numpy as np
import numpy.typing as npt

from sluice.batcher.interface.plan_data import CostToGo
from sluice.batcher.interface.planner_protocol import LiveOption, Ranker
from sluice.models.units import INFINITE_NS

BEST = 5
"""Options that are ranked: ESG's configuration priority queue (HPDC 2024) holds about as many."""
FEW = 40
"""Up to this number of options, ranking one by one is faster than calling NumPy for all at once."""


class FewOptionsRanker:
    """Ranks options one by one, and only those of partition groups that can take work."""

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


class StageRanker:
    """Ranks the options of one stage; the rest of its pipeline is prepared once, so ranking takes microseconds.

    `latency_ns` (without the waits, which differ from dispatch to dispatch) and `cost` are of shape (options,).
    `kind[i]` is the index of the wait of option i in the `waits_ns` of a ranking. Not thread-safe.
    """

    def __init__(
        self,
        latency_ns: npt.NDArray[np.int64],
        cost: npt.NDArray[np.float64],
        rest: CostToGo,
        kind: Sequence[int] | None = None,
    ) -> None:
        self._latency_ns = latency_ns
        self._cost = cost
        self._kind = np.zeros(len(cost), np.intp) if kind is None else np.asarray(kind, np.intp)
        self._within_ns = np.array(rest.within_ns, np.int64)
        self._rest_cost = np.array((np.inf, *rest.cost))
        self._left_ns = np.empty(len(cost), np.int64)
        self._total = np.empty(len(cost))
        self._scratch = np.empty(len(cost))

    def rank(
        self,
        remaining_ns: int,
        count: int = 5,
        live: npt.NDArray[np.bool_] | None = None,
        waits_ns: Sequence[int] | None = None,
    ) -> list[int]:
        """The (up to) `count` cheapest options with which the pipeline ends within `remaining_ns`, cheapest first.

        The cost is the option's and the least of the rest in the time that is then left; of two with equal cost the
        quicker comes first. Only options that are `live`, a mask of shape (options,), are ranked.
        """
        left_ns, total = self._left_ns, self._total
        np.subtract(remaining_ns, self._latency_ns, out=left_ns)
        if waits_ns is not None:
            left_ns -= np.array(waits_ns, np.int64).take(self._kind, mode="clip")
        # Mode "clip" writes to `out` without a buffer between; all indices are in range.
        self._rest_cost.take(self._within_ns.searchsorted(left_ns, "right"), out=total, mode="clip")
        total += self._cost
        if live is not None:
            total[~live] = np.inf
        limit = np.inf
        if count < len(total):
            self._scratch[:] = total
            self._scratch.partition(count - 1)
            limit = self._scratch[count - 1]
        best = (total <= limit if limit < np.inf else total < np.inf).nonzero()[0]
        ranked = sorted(zip(total[best].tolist(), map(neg, left_ns[best].tolist()), best.tolist(), strict=True))
        return [option for _, _, option in ranked[:count]]


class ManyOptionsRanker:
    """Ranks all options at once: a `StageRanker` whose costs depend on the number of rows that wait."""

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
