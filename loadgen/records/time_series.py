"""Time series of a run in windows of one second."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.record import Record, Status
from sluice.models.units import NS_PER_MS, NS_PER_S

Counts = npt.NDArray[np.int64]
Milliseconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TimeSeries:
    """Columns of shape (windows,): window k holds the queries due in [k, k + 1) seconds, warm-up included.

    `completed` counts the answers of the window, whenever their queries were due. `failed` counts queries that were
    shed, failed, timed out or dropped. The percentiles are of the latency from due,
    by MLPerf's rule, and NaN in a window without an answer. `outstanding` is the number of queries that were due but
    had not ended at the end of the window.
    """

    offered: Counts
    good: Counts
    completed: Counts
    failed: Counts
    p50_ms: Milliseconds
    p99_ms: Milliseconds
    outstanding: Counts

    def __len__(self) -> int:
        return len(self.offered)


def time_series(record: Record) -> TimeSeries:
    """Divide a record into windows of one second, from the start of the run to the end of its last query."""
    window = (record.due_ns // NS_PER_S).astype(np.int32)
    ended = (record.done_ns // NS_PER_S).astype(np.int32)
    windows = int(max(window.max(), ended.max())) + 1 if len(record) else 0
    ok = record.status == Status.OK
    failed = ~ok & (record.status != Status.CANCELLED)
    offered, over = np.bincount(window, minlength=windows), np.bincount(ended, minlength=windows)
    completed = np.bincount(ended[ok], minlength=windows)
    del ended  # columns of a million queries count
    latency_ns, counts = _latencies(record, window, windows)
    return TimeSeries(
        offered=offered,
        good=np.bincount(window[record.good], minlength=windows),
        completed=completed,
        failed=np.bincount(window[failed], minlength=windows),
        p50_ms=_percentile(latency_ns, counts, 0.50),
        p99_ms=_percentile(latency_ns, counts, 0.99),
        outstanding=np.cumsum(offered - over),
    )


def _latencies(record: Record, window: npt.NDArray[np.int32], windows: int) -> tuple[Counts, Counts]:
    """The latencies of answers by window, ascending in each, and how many there are in each."""
    ok = record.status == Status.OK
    latency_ns = record.done_ns[ok]
    latency_ns -= record.due_ns[ok]
    answered = window[ok]
    return latency_ns[np.lexsort((latency_ns, answered))], np.bincount(answered, minlength=windows)


def _percentile(ordered_ns: Counts, counts: Counts, share: float) -> Milliseconds:
    """Element int(n * share) of each window's latencies, which lie one window after the other."""
    values = np.full(len(counts), np.nan)
    some = counts > 0
    place = np.cumsum(counts) - counts + (counts * share).astype(np.int64)
    values[some] = ordered_ns[place[some]] / NS_PER_MS
    return values
