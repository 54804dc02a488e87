"""Choosing a stage's configuration again, at the dispatch: what each option costs with all that then has to follow."""

from collections.abc import Sequence
from operator import neg

import numpy as np
import numpy.typing as npt

from sluice.batcher.interface.plan_data import CostToGo


class StageRanker:
    """Ranks the options of one stage; the rest of its pipeline is prepared once, so that ranking takes microseconds.

    `latency_ns` (without what differs from dispatch to dispatch) and `cost` are of shape (options,); `kind[i]` says
    which of the `waits_ns` of a ranking option i has to wait. Not for use by several threads at once.
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
