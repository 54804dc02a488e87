from collections.abc import Sequence

import numpy as np
import pytest

from sluice.loadgen.records.record import Record, Status, objective_ns
from sluice.loadgen.records.statistics import distribution, query_statistics
from sluice.loadgen.traffic.schedule import Schedule

MS = 1_000_000


def record_of(rows: Sequence[tuple[float, float, float, Status]], slo_ms: float | None = None) -> Record:
    """From (due, sent, done) in milliseconds and status, and one objective for all."""
    due, sent, done, status = zip(*rows, strict=True)
    record = Record.of(Schedule(np.array(due) * MS, np.zeros(len(rows), np.int64)), objective_ns(slo_ms))
    record.due_ns = (np.array(due) * MS).astype(np.int64)
    record.sent_ns[:] = [round(time * MS) if time >= 0 else -1 for time in sent]
    record.done_ns[:] = (np.array(done) * MS).astype(np.int64)
    record.status[:] = status
    return record


def test_the_wait_for_a_connection_is_not_the_lateness_of_the_client() -> None:
    record = record_of(
        [
            (0, 1, 10, Status.OK),  # sent at once, 1 ms late
            (10, 42, 50, Status.OK),  # ready 2 ms late, then waited 30 ms
            (20, -1, 120, Status.TIMEOUT),  # ready 3 ms late, then waited until the end of the run
            (30, -1, 34, Status.DROPPED),  # 4 ms late, and there was no room to wait
        ]
    )
    record.queued_ns[1:3] = [12 * MS, 23 * MS]
    metrics = query_statistics(record, 99, 0)
    assert metrics.lateness_ms is not None
    assert (metrics.lateness_ms.mean, metrics.lateness_ms.max) == (2.5, 4)
    assert metrics.waiting_ms is not None
    assert (metrics.waiting_ms.mean, metrics.waiting_ms.p50, metrics.waiting_ms.max) == (127 / 3, 30, 97)
    assert metrics.waited == 2
    assert metrics.latency_ms is not None
    assert metrics.latency_ms.max == 40


def test_percentiles_are_elements_of_the_sorted_times_without_interpolation() -> None:
    times = np.arange(1, 1001, dtype=np.int64)[::-1] * MS
    found = distribution(times)
    assert found is not None
    # sorted[int(1000 * p)], counted from 0.
    assert (found.p50, found.p90, found.p95, found.p97) == (501, 901, 951, 971)
    assert (found.p99, found.p99_9, found.max, found.mean) == (991, 1000, 1000, 500.5)


def test_a_single_time_is_every_percentile() -> None:
    found = distribution(np.array([5 * MS]))
    assert found is not None
    assert (found.mean, found.p50, found.p99_9, found.max) == (5, 5, 5, 5)


def test_no_times_have_no_distribution() -> None:
    assert distribution(np.array([], np.int64)) is None


def test_whatever_is_not_answered_in_time_misses_the_objective() -> None:
    metrics = query_statistics(
        record_of(
            [
                (0, 1, 10, Status.OK),
                (10, 10, 20, Status.OK),  # exactly the objective is still good
                (20, 25, 31, Status.OK),  # 11 ms from due although 6 ms from sent
                (30, 30, 31, Status.SHED),
                (40, 40, 41, Status.ERROR),
                (50, 50, 900, Status.TIMEOUT),
                (60, -1, 60, Status.DROPPED),
                (100, 100, 101, Status.OK),
            ],
            slo_ms=10,
        ),
        percentile=99,
        warmup_s=0,
    )
    assert (metrics.queries, metrics.ok, metrics.good) == (8, 4, 3)
    assert (metrics.shed, metrics.error, metrics.timeout, metrics.dropped) == (1, 1, 1, 1)
    assert metrics.attainment == 0.375
    assert metrics.offered_per_s == pytest.approx(70)  # 7 gaps in 100 ms
    assert metrics.completed_per_s == pytest.approx(3 / 0.101)
    assert metrics.goodput_per_s == pytest.approx(26.25)
    assert metrics.latency_ms is not None
    assert metrics.service_ms is not None
    assert metrics.lateness_ms is not None
    assert (metrics.latency_ms.max, metrics.service_ms.max, metrics.lateness_ms.max) == (11, 10, 5)


def test_without_an_objective_an_answer_is_enough() -> None:
    rows = [(0, 0, 5000, Status.OK), (1, 1, 2, Status.SHED)]
    assert query_statistics(record_of(rows), 99, 0).attainment == 0.5


def test_every_query_is_judged_by_its_own_objective() -> None:
    record = record_of([(0, 0, 8, Status.OK)] * 3)
    record.slo_ns = np.array([7 * MS, 8 * MS, -1])
    assert record.good.tolist() == [False, True, True]
    assert query_statistics(record, 99, 0).good == 2


def test_cancelled_queries_are_neither_good_nor_misses() -> None:
    rows = [
        (0, 0, 5, Status.OK),
        (10, 10, 12, Status.CANCELLED),
        (20, -1, 21, Status.CANCELLED),
        (40, 40, 90, Status.OK),
    ]
    metrics = query_statistics(record_of(rows, 10), 99, 0)
    assert (metrics.queries, metrics.judged, metrics.cancelled, metrics.good, metrics.misses) == (4, 2, 2, 1, 1)
    assert metrics.attainment == 0.5
    assert (metrics.offered_per_s, metrics.goodput_per_s) == pytest.approx((75, 18.75))


def test_queries_of_the_warm_up_do_not_count() -> None:
    rows = [(0, 0, 500, Status.ERROR), (999, 999, 2000, Status.OK), (1000, 1000, 1001, Status.OK)]
    metrics = query_statistics(record_of(rows, 10), 99, warmup_s=1.0)
    assert (metrics.queries, metrics.ok, metrics.error, metrics.attainment) == (1, 1, 0, 1.0)


def test_a_record_without_queries_has_no_figures() -> None:
    metrics = query_statistics(record_of([(0, 0, 1, Status.OK)]).head(0), 99, 0)
    assert (metrics.queries, metrics.attainment, metrics.latency_ms, metrics.offered_per_s) == (0, 0, None, 0)
