"""Statistics of a run, computed from its record."""

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.early_stopping import confirmed, queries_needed
from sluice.loadgen.records.record import Record, Status
from sluice.models.units import NS_PER_MS, NS_PER_S

Nanoseconds = npt.NDArray[np.int64]


class Distribution(msgspec.Struct, frozen=True):
    """Mean, percentiles and maximum in milliseconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p97: float
    p99: float
    p99_9: float
    max: float


class QueryStatistics(msgspec.Struct, frozen=True):
    """Statistics of the queries due after the warm-up.

    `attainment` is the share of these queries that were answered within their objective (answered at all when they have
    none); queries that were shed, failed, timed out or dropped missed it, and cancelled ones do not count. Queries that
    are all due at once have no offered rate, and their goodput is that of the answers. `latency_ms`
    counts from a query's due time, which avoids coordinated omission, and `service_ms` from the time it was sent; both
    are None without an answer.

    `lateness_ms` is the client's own delay: from due until a query was sent, or was ready but had to wait for a free
    connection. `waiting_ms` is the wait for a connection, which a slow target causes, and `waited` counts the queries
    with such a wait.
    """

    queries: int
    ok: int
    shed: int
    error: int
    timeout: int
    dropped: int
    cancelled: int
    good: int
    offered_per_s: float
    completed_per_s: float
    goodput_per_s: float
    attainment: float
    confirmed: bool
    """True when MLPerf's early-stopping test confirms that the percentile meets the objective."""
    queries_to_confirm: int
    """Queries needed for a confirmation with this number of misses."""
    latency_ms: Distribution | None
    service_ms: Distribution | None
    lateness_ms: Distribution | None
    waiting_ms: Distribution | None
    waited: int

    @property
    def judged(self) -> int:
        """Number of queries that could meet the objective: those that the client did not cancel."""
        return self.queries - self.cancelled

    @property
    def misses(self) -> int:
        """Number of queries that missed the objective."""
        return self.judged - self.good


def query_statistics(record: Record, percentile: float, warmup_s: float) -> QueryStatistics:
    """Compute the statistics of a record; `percentile` is the share that has to meet the objective, in %."""
    record = record.after(warmup_s)
    due, sent, done, status = record.due_ns, record.sent_ns, record.done_ns, record.status
    ok = status == Status.OK
    good = int(record.good.sum())
    cancelled = int((status == Status.CANCELLED).sum())
    judged = len(due) - cancelled
    attainment = good / judged if judged else 0.0
    offered, completed = _rate(due), _completed_rate(due, done[ok])
    return QueryStatistics(
        queries=len(due),
        ok=int(ok.sum()),
        shed=int((status == Status.SHED).sum()),
        error=int((status == Status.ERROR).sum()),
        timeout=int((status == Status.TIMEOUT).sum()),
        dropped=int((status == Status.DROPPED).sum()),
        cancelled=cancelled,
        good=good,
        offered_per_s=offered,
        completed_per_s=completed,
        goodput_per_s=(offered * good / len(due)) if offered else completed * good / max(1, int(ok.sum())),
        attainment=attainment,
        confirmed=confirmed(judged, judged - good, percentile),
        queries_to_confirm=queries_needed(judged - good, percentile),
        latency_ms=distribution((done - due)[ok]),
        service_ms=distribution((done - sent)[ok]),
        lateness_ms=distribution(_known_lateness(record)),
        waiting_ms=distribution(_waits(record)),
        waited=int((record.queued_ns >= 0).sum()),
    )


def _known_lateness(record: Record) -> Nanoseconds:
    late_ns, known = lateness(record)
    return late_ns[known]


def _waits(record: Record) -> Nanoseconds:
    """The wait for a connection of each query that was sent or that waited."""
    waited, sent = record.queued_ns >= 0, record.sent_ns >= 0
    waits = np.where(waited, np.where(sent, record.sent_ns, record.done_ns) - record.queued_ns, 0)
    return np.asarray(waits[waited | sent], np.int64)


def lateness(record: Record) -> tuple[Nanoseconds, npt.NDArray[np.bool_]]:
    """Time from due until the client had done its part, and for which queries it is known.

    The client has done its part with a query that it sent, that waits for a connection, or that it dropped.
    """
    ready = np.where(record.queued_ns >= 0, record.queued_ns, record.sent_ns)
    ready = np.where(record.status == Status.DROPPED, record.done_ns, ready)
    return np.asarray(ready - record.due_ns, np.int64), np.asarray(ready >= 0)


def distribution(times_ns: Nanoseconds) -> Distribution | None:
    """The distribution of times, with percentiles by MLPerf's rule (sorted[int(n * p)]); None without times."""
    n = len(times_ns)
    if not n:
        return None
    ordered = np.sort(times_ns) / NS_PER_MS
    p50, p90, p95, p97, p99, p99_9 = (float(ordered[int(n * p)]) for p in (0.50, 0.90, 0.95, 0.97, 0.99, 0.999))
    return Distribution(float(ordered.mean()), p50, p90, p95, p97, p99, p99_9, float(ordered[-1]))


def _rate(due: Nanoseconds) -> float:
    """Arrivals a second between the first and the last arrival."""
    span_ns = int(due[-1] - due[0]) if len(due) else 0
    return (len(due) - 1) / span_ns * NS_PER_S if span_ns else 0.0


def _completed_rate(due: Nanoseconds, done: Nanoseconds) -> float:
    """Answers a second from the first arrival to the last answer, as MLPerf counts them."""
    span_ns = int(done.max() - due[0]) if len(done) else 0
    return (len(done) - 1) / span_ns * NS_PER_S if span_ns > 0 else 0.0
