"""The queries of a record as a scenario counts them."""

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.record import Record, Status
from sluice.models.units import NS_PER_MS, NS_PER_S

NEVER = np.iinfo(np.int64).max
"""Latency of a query without an answer."""


class MeasuredQueries:
    """The queries after the warm-up, each a `group` of the record; columns of shape (queries,).

    `latency_ns` is that of the slowest of a group, or `NEVER` if one of them was not answered. `first_ns` is the time
    until the first answer to one of a group, `NEVER` where `latency_ns` is, and `good` is true where all of a group
    are. A last group that is not complete does not count. Queries that the client cancelled do not count either: a
    group is what is left of it.
    """

    def __init__(self, record: Record, warmup_s: float, group: int = 1) -> None:
        whole = len(record) // group * group
        due, done, status, good = (
            column[:whole].reshape(-1, group) for column in (record.due_ns, record.done_ns, record.status, record.good)
        )
        counted = (due[:, 0] >= round(warmup_s * NS_PER_S)) & (status != Status.CANCELLED).any(axis=1)
        latency = done - due
        latency[status != Status.OK] = NEVER
        latency = latency[counted]
        self.due_ns = due[counted, 0]
        if group == 1:
            self.latency_ns = self.first_ns = latency[:, 0]
            self.good = good[counted, 0]
            return
        cancelled = status[counted] == Status.CANCELLED
        self.latency_ns = np.where(cancelled, 0, latency).max(axis=1)
        self.first_ns = np.where(self.latency_ns < NEVER, latency.min(axis=1), NEVER)
        self.good = np.asarray((good[counted] | cancelled).all(axis=1))

    def __len__(self) -> int:
        return len(self.due_ns)

    @property
    def completed_per_s(self) -> float | None:
        """Answered queries a second, from the first one due to the last answer; None without two answers."""
        answered = self.latency_ns < NEVER
        if answered.sum() < 2:
            return None
        span_ns = int((self.due_ns + self.latency_ns)[answered].max() - self.due_ns[0])
        return float(answered.sum() - 1) / max(1, span_ns) * NS_PER_S


def milliseconds(latency_ns: np.integer | float) -> float | None:
    """A latency in milliseconds; None for `NEVER`."""
    return None if latency_ns >= NEVER else float(latency_ns) / NS_PER_MS


def percentile_ms(latency_ns: npt.NDArray[np.int64], percentile: float) -> float | None:
    """A percentile by MLPerf's rule (sorted[int(n * p)]); None without queries, or where it was not answered."""
    n = len(latency_ns)
    if not n:
        return None
    place = int(n * percentile / 100)
    return milliseconds(np.partition(latency_ns, place)[place])


def mean_ms(latency_ns: npt.NDArray[np.int64]) -> float | None:
    """The mean latency of the answered queries; None without any."""
    answered = latency_ns[latency_ns < NEVER]
    return float(answered.mean()) / NS_PER_MS if len(answered) else None
