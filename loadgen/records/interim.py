"""The early-stopping test while a run goes on, at a few looks that are planned before it.

A search needs the verdict of a run and no more: misses that no later answer can make good end it early, and so does a
confirmation. Each look is one more chance of a wrong confirmation, so looks are few, and far apart later on.
"""

import enum
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.early_stopping import confirmed, misses_allowed, queries_needed
from sluice.loadgen.records.record import Record, Status
from sluice.models.units import NS_PER_MS, NS_PER_S

_FEWEST = 32
_GROWTH = 1.25
_SLACK_NS = 2 * NS_PER_MS
"""Timers of an event loop may fire a millisecond early."""


class Decision(enum.StrEnum):
    """Decision that ends a run before its schedule does."""

    CONFIRMED = "confirmed"
    EXCLUDED = "excluded"
    """The run has more misses than its whole schedule may have."""


@dataclass(frozen=True)
class InterimTest:
    """The test of one schedule: it confirms from `decide_from_ns` on, and excludes at every look.

    `looks_ns` are times from the start of the run, in ascending order. Without an objective (`slo_ns` None) a query is
    good once it is answered.
    """

    looks_ns: tuple[int, ...]
    first: int
    slo_ns: int | None
    percentile: float
    decide_from_ns: int
    misses_allowed: int

    @classmethod
    def plan(
        cls,
        due_ns: npt.NDArray[np.int64],
        *,
        slo_ms: float | None,
        percentile: float,
        warmup_s: float,
        decide_from_s: float,
    ) -> "InterimTest":
        """Plan the looks at a schedule whose queries are due at `due_ns` (queries,), in ascending order."""
        first = int(np.searchsorted(due_ns, round(warmup_s * NS_PER_S)))
        measured = len(due_ns) - first
        slo_ns = None if slo_ms is None else round(slo_ms * NS_PER_MS)
        wait_ns = (slo_ns or 0) + _SLACK_NS
        last_ns = int(due_ns[-1]) if len(due_ns) else 0
        decide_from_ns = round(min(decide_from_s * NS_PER_S, last_ns + 1))
        looks = {int(due_ns[first + queries - 1]) + wait_ns for queries in _sizes(measured, percentile)}
        if decide_from_ns < last_ns:
            looks.add(decide_from_ns + wait_ns)
        allowed = misses_allowed(measured, percentile)
        return cls(tuple(sorted(looks)), first, slo_ns, percentile, decide_from_ns, allowed)

    def look(self, record: Record, now_ns: int) -> tuple[Decision, int] | None:
        """The decision at a time of the run, with the number of queries from the first on that it rests on.

        These are the queries whose fate is known: due so long ago that an answer from now on misses the objective.
        """
        horizon_ns = now_ns - (self.slo_ns or 0)
        end = int(np.searchsorted(record.due_ns, horizon_ns, side="right"))
        counted = slice(self.first, end)
        due, done, status = record.due_ns[counted], record.done_ns[counted], record.status[counted]
        settled = (status != Status.PENDING) & (done <= now_ns)
        good = settled & (status == Status.OK)
        if self.slo_ns is not None:
            good &= done - due <= self.slo_ns
        not_good = len(due) - int(good.sum())
        misses = not_good if self.slo_ns is not None else int((settled & ~good).sum())
        if misses > self.misses_allowed:
            return Decision.EXCLUDED, end
        if horizon_ns >= self.decide_from_ns and confirmed(len(due), not_good, self.percentile):
            return Decision.CONFIRMED, end
        return None

    def first_decision(self, record: Record, until_ns: int | None) -> tuple[Decision, int] | None:
        """The first decision of the looks at a record that is complete up to `until_ns` (None: to its end)."""
        for look_ns in self.looks_ns:
            if until_ns is not None and look_ns > until_ns:
                break
            if decided := self.look(record, look_ns):
                return decided
        return None


def _sizes(measured: int, percentile: float) -> list[int]:
    """Numbers of queries to look at: that which is confirmed without a miss, and others at equal ratios."""
    needed = queries_needed(0, percentile)
    least = math.ceil(math.log(min(_FEWEST, needed) / needed, _GROWTH))
    most = math.floor(math.log(max(measured, 1) / needed, _GROWTH))
    sizes = {round(needed * _GROWTH**power) for power in range(least, most + 1)}
    return sorted(size for size in sizes if 0 < size <= measured)
