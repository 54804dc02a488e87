"""The early-stopping test while a run goes on, at a few looks that are planned before it.

A search needs the verdict of a run and no more: misses that no later answer can make good end it early, and so does a
confirmation. Each look is one more chance of a wrong confirmation, so looks are few, and far apart later on.
"""

import enum
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.early_stopping import confirmed, misses_allowed, queries_needed
from sluice.loadgen.records.record import NO_OBJECTIVE, Record, Status
from sluice.models.units import NS_PER_MS, NS_PER_S

_FEWEST = 32
_GROWTH = 1.25
_SLACK_NS = 2 * NS_PER_MS
"""Timers of an event loop may fire a millisecond early."""


class EarlyVerdict(enum.StrEnum):
    """Verdict that ends a run before its schedule does."""

    CONFIRMED = "confirmed"
    EXCLUDED = "excluded"
    """The run has more misses than its whole schedule may have."""


class LookCounts(NamedTuple):
    """The queries at a look.

    `due` are those whose fate is known. The others count what came after the warm-up: the good of these, all that are
    judged, and those that have missed for sure.
    """

    due: int
    good: int
    judged: int
    missed: int


class InterimTest:
    """The test of one run: it excludes at every look, and confirms from `decide_from_s` on.

    `decided` is the decision, with the number of queries from the first on that it rests on: those due so long ago
    that an answer from now on misses the objective.
    """

    def __init__(
        self,
        due_ns: npt.NDArray[np.int64],
        objective_ns: int,
        *,
        percentile: float,
        warmup_s: float,
        decide_from_s: float,
    ) -> None:
        """Plan the looks at queries due at `due_ns` (queries,), ascending; `objective_ns` is the longest objective."""
        last_ns = int(due_ns[-1]) if len(due_ns) else 0
        self.decided: tuple[EarlyVerdict, int] | None = None
        self._percentile = percentile
        self._warmup_ns = round(warmup_s * NS_PER_S)
        first = int(np.searchsorted(due_ns, self._warmup_ns))
        measured = len(due_ns) - first
        self._misses_allowed = misses_allowed(measured, percentile)
        self._objective_ns = max(objective_ns, 0)
        self._decide_from_ns = round(min(decide_from_s * NS_PER_S, last_ns + 1))
        ends = {int(due_ns[first + queries - 1]) for queries in _sizes(measured, percentile)}
        if self._decide_from_ns < last_ns:
            ends.add(self._decide_from_ns)
        self._looks_ns = sorted((end + self._objective_ns + _SLACK_NS for end in ends), reverse=True)

    @property
    def next_look_ns(self) -> float:
        """When to look next, from the start of the run; infinite after the last look."""
        return self._looks_ns[-1] if self._looks_ns and self.decided is None else math.inf

    def look(self, record: Record, now_ns: int) -> None:
        """Look at the record as it stands `now_ns` after the start of the run; O(queries due by then)."""
        self.take_looks(now_ns)
        self.decide(self.count(record, now_ns), now_ns)

    def take_looks(self, now_ns: int) -> list[int]:
        """The times of the looks that are due by `now_ns`, ascending; each is taken once."""
        taken = []
        while self._looks_ns and self._looks_ns[-1] <= now_ns:
            taken.append(self._looks_ns.pop())
        return taken

    def count(self, record: Record, at_ns: int) -> LookCounts:
        """The queries of the run, or of a part of it, as they were `at_ns` after its start; that time is past."""
        first = int(np.searchsorted(record.due_ns, self._warmup_ns))
        end = int(np.searchsorted(record.due_ns, at_ns - self._objective_ns, side="right"))
        return LookCounts(end, *_count(record, slice(first, max(first, end)), at_ns))

    def decide(self, counts: LookCounts, at_ns: int) -> None:
        """Decide by the counts of all queries at a time, if they allow it."""
        if 0 <= self._misses_allowed < counts.missed:
            self.decided = EarlyVerdict.EXCLUDED, counts.due
        elif at_ns - self._objective_ns >= self._decide_from_ns and confirmed(
            counts.judged, counts.judged - counts.good, self._percentile
        ):
            self.decided = EarlyVerdict.CONFIRMED, counts.due


class PartialLooks:
    """The looks of a test at a part of the queries: it reports what it counts, and the decision is made elsewhere."""

    decided = None

    def __init__(self, test: InterimTest, report: Callable[[int, LookCounts], None]) -> None:
        self._test = test
        self._report = report

    @property
    def next_look_ns(self) -> float:
        """As in `InterimTest`."""
        return self._test.next_look_ns

    def look(self, record: Record, now_ns: int) -> None:
        """Report the counts at each time of a look that has come."""
        for at_ns in self._test.take_looks(now_ns):
            self._report(at_ns, self._test.count(record, at_ns))


class JoinedLooks:
    """Decides a test once all `parts` of a run have counted their queries at the same look."""

    def __init__(self, test: InterimTest, parts: int) -> None:
        self._test = test
        self._parts = parts
        self._reported: dict[int, dict[int, LookCounts]] = {}

    def add(self, part: int, at_ns: int, counts: LookCounts) -> bool:
        """Add the counts of a part at a look; True if they decide the test."""
        reported = self._reported.setdefault(at_ns, {})
        reported[part] = counts
        if len(reported) < self._parts or self._test.decided is not None:
            return False
        del self._reported[at_ns]
        self._test.decide(_sum(reported.values()), at_ns)
        return self._test.decided is not None


def _sum(counts: Iterable[LookCounts]) -> LookCounts:
    return LookCounts(*map(sum, zip(*counts, strict=True)))


def _count(record: Record, counted: slice, now_ns: int) -> tuple[int, int, int]:
    """The good queries, all that count, and those that have missed for sure."""
    status, done = record.status[counted], record.done_ns[counted]
    ended = (status != Status.PENDING) & (done > 0) & (done <= now_ns)
    good = record.good_among(counted) & ended
    judged = status != Status.CANCELLED
    missed = judged & ~good & (ended | (record.slo_ns[counted] != NO_OBJECTIVE))
    return int(good.sum()), int(judged.sum()), int(missed.sum())


def _sizes(measured: int, percentile: float) -> list[int]:
    """Numbers of queries to look at: that which is confirmed without a miss, and others at equal ratios."""
    needed = queries_needed(0, percentile)
    least = math.ceil(math.log(min(_FEWEST, needed) / needed, _GROWTH))
    most = math.floor(math.log(max(measured, 1) / needed, _GROWTH))
    sizes: npt.NDArray[np.int64] = np.rint(needed * _GROWTH ** np.arange(least, most + 1)).astype(np.int64)
    return [size for size in sizes.tolist() if 0 < size <= measured]
