"""The planner as the running scheduler knows it: ranks the live options of a stage at every dispatch."""

from collections.abc import Sequence

import numpy as np

from batcher.planner.rank import StageRanker
from batcher.plans import Front
from batcher.ranking import LiveOption

BEST = 5
"""Options that are ranked: ESG's configuration priority queue (HPDC 2024) holds about as many."""


class LiveRanker:
    """A `StageRanker` whose options cost by how many of the waiting rows they can take."""

    def __init__(self, options: Sequence[LiveOption], rest: Front) -> None:
        self._rows = np.array([option.rows for option in options], np.float64)
        self._batch_cost = np.array([option.cost for option in options])
        self._row_cost = np.zeros(len(options))
        self._ranker = StageRanker(
            np.array([option.latency_ns for option in options], np.int64),
            self._row_cost,
            rest,
            [option.pool for option in options],
        )

    def rank(self, remaining_ns: int, rows: int, waits_ns: Sequence[int]) -> Sequence[int]:
        """See `batcher.ranking.Ranker`."""
        np.minimum(self._rows, rows, out=self._row_cost)
        np.divide(self._batch_cost, self._row_cost, out=self._row_cost)
        return self._ranker.rank(remaining_ns, BEST, waits_ns=waits_ns)


class LivePlanner:
    """The `batcher.ranking.Planner` of this package."""

    def ranker(self, options: Sequence[LiveOption], rest: Front) -> LiveRanker:
        """See `batcher.ranking.Planner`."""
        return LiveRanker(options, rest)
