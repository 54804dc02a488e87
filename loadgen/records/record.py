"""The record of a run: the times and the status of every query, in columns."""

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sluice.loadgen.traffic.draws import MOST_MS
from sluice.loadgen.traffic.schedule import Schedule
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S, ms_to_ns

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
    """The client gave the query up, as the schedule says; it is neither good nor a miss."""


NO_OBJECTIVE = -1
"""Value of `Record.slo_ns` for a query without an objective."""


def objective_ns(slo_ms: float | None) -> int:
    """An objective as a value of `Record.slo_ns`; raises `ConfigError` for one that is too long."""
    if slo_ms is None:
        return NO_OBJECTIVE
    if slo_ms > MOST_MS:
        raise ConfigError(f"objective: expected at most {MOST_MS:g} ms, got {slo_ms:g} ms")
    return ms_to_ns(slo_ms)


Number = TypeVar("Number", np.int64, np.uint16)


@dataclass
class Record:
    """Columns of shape (queries,): times are int64 nanoseconds from the start of the run.

    `stream` is the query's place in the mix (uint16, 0 without a mix), and `slo_ns` its objective, or `NO_OBJECTIVE`.
    `sent_ns` is -1 for a query that never left the client, and `queued_ns` for one that never waited for a free
    connection. `answers` holds the answers for the target to decode after the run, and is empty unless they are kept.
    `stages` holds what the server said of the stages of the queries that asked for it. `reasons` counts failures by
    their reason; reasons that differ only in quantities count as the first of them.
    """

    due_ns: npt.NDArray[np.int64]
    sample: npt.NDArray[np.int64]
    stream: npt.NDArray[np.uint16]
    slo_ns: npt.NDArray[np.int64]
    queued_ns: npt.NDArray[np.int64]
    sent_ns: npt.NDArray[np.int64]
    done_ns: npt.NDArray[np.int64]
    status: npt.NDArray[np.uint8]
    answers: list[object]
    stages: dict[int, str] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    _firsts: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        slo_ns: int | npt.NDArray[np.int64] = NO_OBJECTIVE,
        keep_answers: bool = False,
    ) -> "Record":
        """An empty record of a schedule, everything allocated; one objective counts for all queries."""
        n = len(schedule)
        return cls(
            due_ns=schedule.due_ns,
            sample=schedule.sample,
            stream=schedule.stream,
            slo_ns=np.broadcast_to(np.asarray(slo_ns, np.int64), n),
            queued_ns=np.full(n, -1, np.int64),
            sent_ns=np.full(n, -1, np.int64),
            done_ns=np.zeros(n, np.int64),
            status=np.zeros(n, np.uint8),
            answers=[None] * n if keep_answers else [],
        )

    @classmethod
    def empty(cls, reasons: dict[str, int]) -> "Record":
        """A record without queries, of which only the reasons of failures are known."""
        none = np.zeros(0, np.int64)
        return cls(none, none, none.astype(np.uint16), none, none, none, none, none.astype(np.uint8), [], {}, reasons)

    @classmethod
    def joined(cls, parts: Sequence["Record"], order: npt.NDArray[np.int64]) -> "Record":
        """The queries of several records, one record after the other, in the given order of their rows."""

        def column(name: str) -> Any:
            return np.concatenate([getattr(part, name) for part in parts])[order]

        names = ("due_ns", "sample", "stream", "slo_ns", "queued_ns", "sent_ns", "done_ns", "status")
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        first = 0
        stages: dict[int, str] = {}
        for part in parts:
            stages |= {int(places[first + query]): text for query, text in part.stages.items()}
            first += len(part)
        record = cls(**{name: column(name) for name in names}, answers=[], stages=stages)
        for part in parts:
            for reason, count in part.reasons.items():
                record.count_reason(reason, count)
        return record

    def __len__(self) -> int:
        return len(self.due_ns)

    def head(self, queries: int) -> "Record":
        """The first `queries` queries, which an interrupted run has issued."""
        return Record(
            self.due_ns[:queries],
            self.sample[:queries],
            self.stream[:queries],
            self.slo_ns[:queries],
            self.queued_ns[:queries],
            self.sent_ns[:queries],
            self.done_ns[:queries],
            self.status[:queries],
            self.answers[:queries],
            {query: text for query, text in self.stages.items() if query < queries},
            self.reasons,
            self._firsts,
        )

    def doubled(self) -> "Record":
        """A record of twice as many queries: the later half goes on with the first one's requests, due at 0."""
        n = len(self)

        def twice(column: npt.NDArray[Number]) -> npt.NDArray[Number]:
            return np.concatenate((column, column))

        return Record(
            np.concatenate((self.due_ns, np.zeros(n, np.int64))),
            twice(self.sample),
            twice(self.stream),
            twice(self.slo_ns),
            np.concatenate((self.queued_ns, np.full(n, -1, np.int64))),
            np.concatenate((self.sent_ns, np.full(n, -1, np.int64))),
            np.concatenate((self.done_ns, np.zeros(n, np.int64))),
            np.concatenate((self.status, np.zeros(n, np.uint8))),
            self.answers + [None] * len(self.answers),
            self.stages,
            self.reasons,
            self._firsts,
        )

    def after(self, warmup_s: float) -> "Record":
        """The queries due after the warm-up, without answers and reasons; views where they are in order of due time."""
        start_ns = round(warmup_s * NS_PER_S)
        measured = self.due_ns >= start_ns
        first = int(measured.argmax()) if measured.any() else len(self)
        return self._part(slice(first, None) if measured[first:].all() else measured)

    def select(self, chosen: npt.NDArray[np.bool_]) -> "Record":
        """A copy of the queries where `chosen`, shape (queries,), is True; without answers and reasons."""
        return self._part(chosen)

    def _part(self, chosen: "npt.NDArray[np.bool_] | slice[int, None, None]") -> "Record":
        numbers = np.full(len(self), -1, np.int32)
        numbers[chosen] = np.arange(len(self.due_ns[chosen]), dtype=np.int32)
        return Record(
            self.due_ns[chosen],
            self.sample[chosen],
            self.stream[chosen],
            self.slo_ns[chosen],
            self.queued_ns[chosen],
            self.sent_ns[chosen],
            self.done_ns[chosen],
            self.status[chosen],
            [],
            {int(numbers[query]): text for query, text in self.stages.items() if numbers[query] >= 0},
        )

    @property
    def good(self) -> npt.NDArray[np.bool_]:
        """True for each query that was answered within its objective, or answered at all when it has none."""
        return self.good_among(slice(None))

    def good_among(self, rows: slice) -> npt.NDArray[np.bool_]:
        """`good` of some queries; O(their number)."""
        slo_ns = self.slo_ns[rows]
        in_time = (slo_ns == NO_OBJECTIVE) | (self.done_ns[rows] - self.due_ns[rows] <= slo_ns)
        return np.asarray((self.status[rows] == Status.OK) & in_time)

    @property
    def has_objectives(self) -> bool:
        """True if any query has an objective."""
        return bool((self.slo_ns != NO_OBJECTIVE).any())

    def count_reason(self, reason: str, times: int = 1) -> None:
        """Count failures under their reason, or under the first reason that differs only in quantities."""
        if reason not in self.reasons:
            alike = _NUMBER.sub("#", reason)
            full = len(self._firsts) >= MAX_REASONS
            reason = self._firsts.get(alike, _OTHERS) if full else self._firsts.setdefault(alike, reason)
        self.reasons[reason] = self.reasons.get(reason, 0) + times
