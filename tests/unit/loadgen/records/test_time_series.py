import math

import numpy as np

from sluice.loadgen.records.record import Record, Status, objective_ns
from sluice.loadgen.records.time_series import time_series
from sluice.loadgen.traffic.schedule import Schedule

MS = 1_000_000


def test_windows_hold_the_queries_that_were_due_in_them() -> None:
    due_ms = [0, 100, 200, 999, 2000, 2500, 2999]
    latency_ms = [5, 2000, 7, 3, 10, 1, 40]
    status = [Status.OK, Status.OK, Status.SHED, Status.OK, Status.OK, Status.CANCELLED, Status.TIMEOUT]
    due_ns = np.array(due_ms, np.int64) * MS
    record = Record.of(Schedule(due_ns, np.zeros(7, np.int64)), objective_ns(10))
    record.done_ns[:] = due_ns + np.array(latency_ms) * MS
    record.status[:] = status
    series = time_series(record)
    assert len(series) == 4
    assert series.offered.tolist() == [4, 0, 3, 0]
    assert series.good.tolist() == [2, 0, 1, 0]
    assert series.completed.tolist() == [1, 1, 2, 0]
    assert series.failed.tolist() == [1, 0, 1, 0]
    # After 1 s, the queries due at 100 and 999 ms have not ended; after 2 s the first of them; after 3 s the last one.
    assert series.outstanding.tolist() == [2, 1, 1, 0]
    assert series.p50_ms[[0, 2]].tolist() == [5, 10]
    assert series.p99_ms[[0, 2]].tolist() == [2000, 10]
    assert math.isnan(series.p50_ms[1])


def test_a_record_without_queries_has_no_windows() -> None:
    series = time_series(Record.of(Schedule(np.zeros(0, np.int64), np.zeros(0, np.int64))))
    assert (len(series), len(series.p99_ms), len(series.outstanding)) == (0, 0, 0)
