"""Stage latencies worked out by hand: l is the batch's time, m the servers, rho the utilisation.

Filling takes the 99th percentile of Gamma(b - 1) over the rate. A wait for a server is l / (2 b m (1 - rho)) on the
average where there is one, which has the probability P = rho ** (sqrt(2 (m + 1)) - 1), and
l / (2 b m (1 - rho)) * ln(100 P) at the 99th percentile.
"""

import pytest

from sluice.batcher.planner.problem.problem import MAX_LATENCY_NS
from sluice.batcher.planner.stage_latency import LONGEST_WAIT_NS, StageLatency, stage_latency
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S


def constant(rows: int) -> int:
    return 10 * MS


def affine(rows: int) -> int:
    return (10 + rows) * MS


def p99_ms(latency: StageLatency | None) -> float:
    assert latency is not None
    return latency.p99_ns / MS


def test_a_batch_that_fills_slowly_waits_for_its_rows() -> None:
    # rho = 100 / s * 14 ms / 4 = 0.35. Gamma(3) is half of chi-squared with 6 degrees of freedom: 16.8119 / 2 = 8.406,
    # so that 99 of 100 batches fill within 84.06 ms; the queue, with 2.69 ms * ln(35), is shorter.
    latency = stage_latency(affine, 4, 100.0, 1)
    assert latency is not None
    assert latency.p99_ns / MS == pytest.approx(14 + 84.06, rel=0.005)
    assert latency.p50_ns == 29 * MS, "14 ms, and half of the three gaps of 10 ms"
    assert latency.utilisation == pytest.approx(0.35)


def test_single_rows_wait_for_a_server_only() -> None:
    # rho = 50 / s * 11 ms = 0.55 = P; 11 ms / (2 * 0.45) = 12.222 ms; ln(55) = 4.00733.
    assert p99_ms(stage_latency(affine, 1, 50.0, 1)) == pytest.approx(11 + 48.978, abs=0.001)


def test_several_servers_share_the_queue() -> None:
    # rho = 320 / s * 10 ms / 4 = 0.8; sqrt(10) - 1 = 2.16228; P = 0.617239; 10 ms / (2 * 4 * 0.2) = 6.25 ms.
    assert p99_ms(stage_latency(constant, 1, 320.0, 4)) == pytest.approx(10 + 6.25 * 4.12268, abs=0.001)


def test_with_many_servers_nobody_waits() -> None:
    # rho = 0.5; P = 0.5 ** (sqrt(130) - 1) = 0.0007 < 0.01.
    latency = stage_latency(constant, 1, 3200.0, 64)
    assert latency == StageLatency(10 * MS, 10 * MS, 0.5, 1)


def test_the_longest_wait_limits_what_filling_costs() -> None:
    # Of the 84 ms that filling would take, 30 ms are waited. 1 + 100 / s * 30 ms = 4 rows: the batch is full.
    latency = stage_latency(affine, 4, 100.0, 1, 30 * MS)
    assert latency is not None
    assert (latency.p50_ns, latency.p99_ns) == (29 * MS, 44 * MS)


def test_more_is_never_waited_for_than_arrives() -> None:
    # 1 row a second: of 64 rows one comes within 5 ms, and 99 of 100 times no second one.
    latency = stage_latency(affine, 64, 0.01, 1, 5 * MS)
    assert latency is not None
    assert (latency.p50_ns, latency.p99_ns) == (16 * MS, 16 * MS)


def test_a_lone_row_that_is_not_made_to_wait_takes_the_time_of_one_row() -> None:
    # rho is 0.01 when rows come one by one, so that at most one of 100 meets another.
    latency = stage_latency(constant, 8, 1.0, 1, 0)
    assert latency is not None
    assert (latency.p50_ns, latency.p99_ns) == (10 * MS, 10 * MS)


def test_without_filling_a_row_waits_for_the_batch_that_runs() -> None:
    # 5 rows arrive in 10 ms, so that the server is always busy, and 99 of 100 rows wait for less than 9.9 ms.
    latency = stage_latency(constant, 8, 500.0, 1, 0)
    assert latency == StageLatency(15 * MS, 19_900_000, 0.625, 5, 8, queue99_ns=6_891_944, running99_ns=9_900_000)


def test_without_filling_the_first_of_several_servers_to_end_takes_the_row() -> None:
    # Both are busy; both have more than 0.9 of their batches before them in one of 100 cases.
    assert p99_ms(stage_latency(constant, 8, 1000.0, 2, 0)) == pytest.approx(10 + 9)


def test_without_filling_batches_are_what_arrives_meanwhile() -> None:
    # 3 rows take 13 ms, in which 300 / s * 13 ms = 3.9 arrive; 5 take 15 ms, and 4.5 arrive: they are the steady batch.
    # 4.5 + 2.326 * sqrt(4.5) = 9.43, so that 10 rows are the most in 99 of 100 batches: 20 ms, and 0.99 of that before.
    latency = stage_latency(affine, 32, 300.0, 1, 0)
    assert latency is not None
    assert (latency.p50_ns, latency.p99_ns) == (22_500_000, 39_800_000)


def test_at_the_cap_there_is_a_bound_and_beyond_there_is_none() -> None:
    def second(rows: int) -> int:
        return S

    assert stage_latency(second, 1, 0.5, 1, rho_max=0.5) is not None
    assert stage_latency(second, 1, 0.501, 1, rho_max=0.5) is None
    assert stage_latency(second, 4, 0.501, 1, rho_max=0.5) is not None, "batches quadruple what one server can do"
    assert stage_latency(second, 1, 1.5, 1) is None, "more than the server can do at all"


def test_without_traffic_a_row_is_alone() -> None:
    assert stage_latency(affine, 1, 0.0, 2) == StageLatency(11 * MS, 11 * MS, 0.0, 1)
    assert stage_latency(affine, 8, 0.0, 2, 0) == StageLatency(11 * MS, 11 * MS, 0.0, 1)
    assert stage_latency(affine, 8, 0.0, 2, 5 * MS) == StageLatency(16 * MS, 16 * MS, 0.0, 1, fill99_ns=5 * MS)
    assert stage_latency(affine, 8, 0.0, 2) == StageLatency(11 * MS, 11 * MS, 0.0, 1), "its deadline closes the batch"


@pytest.mark.parametrize("max_wait_ns", [None, 0, 5 * MS, 1 << 62])
@pytest.mark.parametrize("rate", [1e-6, 1e-9, 1e-12, 1e-15, 1e-300, 5e-324])
def test_as_the_rate_vanishes_the_latency_is_that_of_a_lone_row(rate: float, max_wait_ns: int | None) -> None:
    found, lone = (stage_latency(affine, 8, each, 1, max_wait_ns) for each in (rate, 0.0))
    assert found is not None
    assert lone is not None
    assert (found.p99_ns, found.rows, found.rows99) == (lone.p99_ns, 1, 1)
    assert found.p50_ns == lone.p50_ns


def test_a_batch_that_fills_too_slowly_for_the_objective_is_closed_by_its_deadline() -> None:
    # 84.06 ms until the batch is full, as above, and 14 ms for the batch.
    filled = stage_latency(affine, 4, 100.0, 1, within_ns=99 * MS)
    assert filled is not None
    assert filled.fill99_ns == pytest.approx(84.06 * MS, rel=0.005)
    assert stage_latency(affine, 4, 100.0, 1, within_ns=98 * MS) == stage_latency(affine, 4, 100.0, 1, 0)


def test_no_wait_is_longer_than_the_longest_objective() -> None:
    forever = stage_latency(affine, 8, 1e-9, 1, 1 << 62)
    assert forever is not None
    assert forever.p99_ns == LONGEST_WAIT_NS + 11 * MS
    assert forever.p99_ns < MAX_LATENCY_NS // 40
    slow = stage_latency(affine, 1, 5e-324, 5e-322)
    assert slow is not None
    assert slow.p99_ns <= LONGEST_WAIT_NS + 11 * MS


@pytest.mark.parametrize("max_wait_ns", [None, 0, 5 * MS])
def test_more_servers_never_make_it_later(max_wait_ns: int | None) -> None:
    p99 = [p99_ms(stage_latency(affine, 4, 200.0, servers, max_wait_ns)) for servers in (1, 2, 4, 8)]
    assert p99 == sorted(p99, reverse=True)


BULGE = LatencyTable(((1, 10 * MS), (2, 10 * MS), (4, 12 * MS), (32, 10 * MS)))
"""Batches of 3 and 4 rows take longer than larger ones."""


def test_where_larger_batches_are_quicker_the_tail_is_that_of_the_slowest() -> None:
    # 3 rows come while a batch of 3 runs, and 99 of 100 times no more than 2.88 + 2.33 * sqrt(2.88) = 6.8. A tenth of a
    # server is seldom free: nearly every row waits for a whole batch.
    latency = stage_latency(BULGE.latency_ns, 32, 24.0, 0.1, 0)
    assert latency is not None
    assert (latency.rows, latency.rows99) == (3, 4)
    assert latency.p50_ns / MS == pytest.approx(12 + 12 * (1 - 0.5**10))
    assert latency.p99_ns / MS == pytest.approx(24)


@pytest.mark.parametrize("max_wait_ns", [None, 0, 5 * MS])
@pytest.mark.parametrize("rows_per_s", range(0, 700, 40))
@pytest.mark.parametrize("servers", [0.1, 1, 4])
def test_the_tail_is_never_shorter_than_the_median(servers: float, rows_per_s: int, max_wait_ns: int | None) -> None:
    latency = stage_latency(BULGE.latency_ns, 32, rows_per_s * servers, servers, max_wait_ns)
    assert latency is None or latency.p50_ns <= latency.p99_ns
