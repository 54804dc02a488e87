"""The record of a run: the times and the status of every query, in columns."""

import enum
import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sluice.loadgen.traffic.schedule import Schedule

MAX_REASONS = 8
"""Number of distinct failure reasons that a run counts; further ones are counted together."""
_OTHERS = "other reasons"
_NUMBER = re.compile(r"(?<![\w.])(?<!\w[:-])(?<!HTTP )\d+(?:\.\d+)?(?:e[+-]?\d+)?")
"""A quantity in a reason; status codes and parts of names (`cpu0`, `mps-20`, `model:1`) do not match."""


class Status(enum.IntEnum):
    """Status of a query; `PENDING` until it ends."""

    PENDING = 0
    OK = 1
    SHED = 2
    """The target refused the query for lack of time or space."""
    ERROR = 3
    TIMEOUT = 4
    """No answer arrived before the drain timeout."""
    DROPPED = 5
    """The query was not sent: too many others were waiting for the target."""
    CANCELLED = 6
    """The client gave the query up before its answer."""


@dataclass
class Record:
    """Columns of shape (queries,): times are int64 nanoseconds from the start of the run.

    `sent_ns` is -1 for a query that never left the client, and `queued_ns` for one that never waited for a free
    connection. `answers` holds the answers for the target to decode after the run, and is empty unless they are kept.
    `reasons` counts failures by their reason; reasons that differ only in quantities count as the first of them.
    """

    due_ns: npt.NDArray[np.int64]
    sample: npt.NDArray[np.int64]
    queued_ns: npt.NDArray[np.int64]
    sent_ns: npt.NDArray[np.int64]
    done_ns: npt.NDArray[np.int64]
    status: npt.NDArray[np.uint8]
    answers: list[object]
    reasons: dict[str, int] = field(default_factory=dict)
    _firsts: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, schedule: Schedule, keep_answers: bool = False) -> "Record":
        """An empty record of a schedule, everything allocated."""
        n = len(schedule)
        return cls(
            due_ns=schedule.due_ns,
            sample=schedule.sample,
            queued_ns=np.full(n, -1, np.int64),
            sent_ns=np.full(n, -1, np.int64),
            done_ns=np.zeros(n, np.int64),
            status=np.zeros(n, np.uint8),
            answers=[None] * n if keep_answers else [],
        )

    def __len__(self) -> int:
        return len(self.due_ns)

    def head(self, queries: int) -> "Record":
        """The first `queries` queries, which an interrupted run has issued."""
        return Record(
            self.due_ns[:queries],
            self.sample[:queries],
            self.queued_ns[:queries],
            self.sent_ns[:queries],
            self.done_ns[:queries],
            self.status[:queries],
            self.answers[:queries],
            self.reasons,
            self._firsts,
        )

    def count_reason(self, reason: str) -> None:
        """Count a failure under its reason, or under the first reason that differs only in quantities."""
        if reason not in self.reasons:
            alike = _NUMBER.sub("#", reason)
            full = len(self._firsts) >= MAX_REASONS
            reason = self._firsts.get(alike, _OTHERS) if full else self._firsts.setdefault(alike, reason)
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
