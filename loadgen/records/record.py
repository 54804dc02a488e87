"""What happened to every query of a run, in columns."""

import enum
import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sluice.loadgen.traffic.schedule import Schedule

MAX_REASONS = 8
"""How many different reasons of failure a run keeps; further ones are counted together."""
_OTHERS = "other reasons"
_NUMBER = re.compile(r"(?<![\w.])(?<!\w[:-])(?<!HTTP )\d+(?:\.\d+)?(?:e[+-]?\d+)?")
"""A quantity in a reason: no status code, and no part of a name (`cpu0`, `mps-20`, `model:1`)."""


class Status(enum.IntEnum):
    """How a query ended; `PENDING` only until then."""

    PENDING = 0
    OK = 1
    SHED = 2
    """The target refused it for lack of time or space."""
    ERROR = 3
    TIMEOUT = 4
    """No answer came before the run gave up waiting."""
    DROPPED = 5
    """The client could not send it: its backlog was full."""


@dataclass
class Record:
    """Columns of shape (queries,): times are int64 nanoseconds from the start of the run.

    `sent_ns` is -1 for a query that never left the client. `answers` holds what the target needs to decode an answer
    after the run, and is empty unless answers are wanted. `reasons` counts why queries failed; one stands for all that
    differ from it in quantities only.
    """

    due_ns: npt.NDArray[np.int64]
    sample: npt.NDArray[np.int64]
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
            sent_ns=np.full(n, -1, np.int64),
            done_ns=np.zeros(n, np.int64),
            status=np.zeros(n, np.uint8),
            answers=[None] * n if keep_answers else [],
        )

    def __len__(self) -> int:
        return len(self.due_ns)

    def head(self, queries: int) -> "Record":
        """The first `queries` queries: those that were issued when a run is interrupted."""
        return Record(
            self.due_ns[:queries],
            self.sample[:queries],
            self.sent_ns[:queries],
            self.done_ns[:queries],
            self.status[:queries],
            self.answers[:queries],
            self.reasons,
            self._firsts,
        )

    def count_reason(self, reason: str) -> None:
        """Count a reason of failure as the first one like it; at most `MAX_REASONS` are told apart."""
        if reason not in self.reasons:
            alike = _NUMBER.sub("#", reason)
            full = len(self._firsts) >= MAX_REASONS
            reason = self._firsts.get(alike, _OTHERS) if full else self._firsts.setdefault(alike, reason)
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
