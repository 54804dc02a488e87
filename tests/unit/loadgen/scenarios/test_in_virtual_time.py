"""Every scenario on a simulated server of 10 ms a batch, of up to four rows."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from sluice.loadgen.records.progress import QueryCounts
from sluice.loadgen.run.result import RunResult, Verdict
from sluice.loadgen.run.runner import run
from sluice.loadgen.scenarios.config import ScenarioName
from tests.unit.loadgen.scenarios.records import MS, config
from tests.unit.loadgen.simulated_server import write_simulation

N = ScenarioName


def simulate(
    tmp_path: Path, scenario: ScenarioName, host: dict[str, int] | None = None, **settings: object
) -> RunResult:
    policy = {"name": "timeout", "max_delay_ms": 0}
    target = write_simulation(tmp_path, policy=policy, **({} if host is None else {"host": host}))
    return run(replace(config(scenario, **settings), target=target, model="small"))


def first_figure(result: RunResult) -> float | None:
    return result.score.figures[0].value


def test_a_single_stream_sends_each_query_at_the_answer_to_the_one_before(tmp_path: Path) -> None:
    result = simulate(tmp_path, N.SINGLE_STREAM, percentile=90.0, queries=100)
    assert result.record.due_ns.tolist() == [10 * MS * k for k in range(100)]
    assert result.record.sent_ns.tolist() == result.record.due_ns.tolist()
    assert (first_figure(result), result.verdict) == (10, Verdict.MET)


def test_the_time_of_the_way_to_the_gateway_counts_in_a_closed_loop(tmp_path: Path) -> None:
    host = {"send_us": 1000, "deliver_us": 2000}
    result = simulate(tmp_path, N.SINGLE_STREAM, percentile=90.0, queries=100, host=host)
    assert result.record.due_ns.tolist() == [13 * MS * k for k in range(100)]


def test_a_multi_stream_query_is_one_batch_and_waits_for_all_of_the_one_before(tmp_path: Path) -> None:
    result = simulate(tmp_path, N.MULTI_STREAM, samples_per_query=4, min_queries=700, min_duration_s=1.0)
    assert len(result.record) == 2800
    assert result.record.due_ns.reshape(-1, 4)[:, 3].tolist() == [10 * MS * k for k in range(700)]
    assert result.server is not None
    assert (result.server.mean_batch, first_figure(result)) == (4, 10)


def test_offline_keeps_the_server_busy_with_full_batches(tmp_path: Path) -> None:
    result = simulate(tmp_path, N.OFFLINE, queries=2000)
    assert result.record.due_ns.max() == 0
    # Four rows in 10 ms.
    assert first_figure(result) == pytest.approx(400)
    assert result.metrics.goodput_per_s == pytest.approx(400, rel=0.01)
    assert result.verdict is Verdict.MET


def test_offline_goes_on_for_its_minimum_duration(tmp_path: Path) -> None:
    result = simulate(tmp_path, N.OFFLINE, min_duration_s=5.0, concurrency=4)
    # The last queries leave at 5 s, the first time at which the minimum is reached.
    assert result.record.sent_ns.max() == 5000 * MS
    assert result.invalid == []


@pytest.mark.parametrize(("clients", "rate"), [(1, 100), (4, 400), (8, 400)])
def test_more_clients_than_rows_of_a_batch_do_not_help(tmp_path: Path, clients: int, rate: float) -> None:
    result = simulate(tmp_path, N.CONCURRENCY, concurrency=clients, duration_s=5.0)
    assert first_figure(result) == pytest.approx(rate, rel=0.01)
    latency = result.metrics.latency_ms
    assert latency is not None
    assert latency.p50 == pytest.approx(1000 * clients / rate)


def test_a_rate_caps_the_clients_that_would_send_more(tmp_path: Path) -> None:
    capped = simulate(tmp_path, N.CONCURRENCY, concurrency=8, rate=50.0, duration_s=20.0)
    assert capped.metrics.completed_per_s == pytest.approx(50, rel=0.1)
    latency = capped.metrics.latency_ms
    assert latency is not None
    assert latency.p50 < 15


def test_the_clients_cap_a_rate_that_would_send_more(tmp_path: Path) -> None:
    capped = simulate(tmp_path, N.CONCURRENCY, concurrency=1, rate=500.0, duration_s=5.0)
    assert capped.metrics.completed_per_s == pytest.approx(100, rel=0.01)
    # Latency counts from issue: the queries that had to wait for a client were not due.
    assert capped.metrics.latency_ms is not None
    assert capped.metrics.latency_ms.max == 10


def test_a_closed_loop_may_be_longer_than_its_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.loadgen.scenarios.closed_loop._FIRST_QUERIES", 16)
    result = simulate(tmp_path, N.CONCURRENCY, concurrency=2, duration_s=1.0)
    assert result.metrics.ok == len(result.record) == 200
    assert result.record.sample[:16].tolist() == result.record.sample[16:32].tolist()


def test_jobs_that_overlap_are_pending_for_each_other(tmp_path: Path) -> None:
    # A job takes 16 batches of 10 ms: 0.16 s alone.
    lone = simulate(tmp_path / "lone", N.JOBS, rate=0.1, queries=20)
    assert [figure.value for figure in lone.score.figures[:3]] == [160, 160, 10]
    busy = simulate(tmp_path / "busy", N.JOBS, rate=5.0, queries=60)
    assert [figure.value or 0 for figure in busy.score.figures[1:3]] > [250, 100]
    assert busy.metrics.ok == 60 * 64


def test_accuracy_mode_of_the_server_scenario_keeps_the_arrivals(tmp_path: Path) -> None:
    result = simulate(tmp_path, N.SERVER, rate=50.0, each_once=True)
    assert sorted(result.record.sample.tolist()) == list(range(64))
    assert 0.5 < result.record.due_ns[-1] / 1e9 < 3
    assert result.invalid == []


def test_the_same_seed_gives_the_same_closed_loop(tmp_path: Path) -> None:
    runs = [
        simulate(tmp_path / str(number), N.CONCURRENCY, concurrency=3, duration_s=1.0, seed=seed)
        for number, seed in enumerate((1, 1, 2))
    ]
    first, again, other = (run.record.sample.tolist() for run in runs)
    assert first == again != other
    assert runs[0].schedule_digest == runs[1].schedule_digest != runs[2].schedule_digest


def test_a_closed_loop_that_would_not_wait_for_answers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="--drain-timeout: single-stream waits for answers; expected more than 0 s"):
        simulate(tmp_path, N.SINGLE_STREAM, queries=1, drain_timeout_s=0.0)


def test_a_run_that_measures_nothing_is_invalid(tmp_path: Path) -> None:
    result = simulate(tmp_path, N.CONCURRENCY, queries=10, warmup_s=1.0)
    assert result.invalid == ["too short: no query after the warm-up of 1 s"]


def test_an_interrupted_simulation_reports_what_it_has_played(tmp_path: Path) -> None:
    def interrupt_after_ten(counts: Callable[[], QueryCounts]) -> None:
        def wait_and_interrupt() -> None:
            while counts().issued < 10:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=wait_and_interrupt).start()

    target = write_simulation(tmp_path, host={})
    run_config = replace(config(N.CONCURRENCY, duration_s=10_000.0), target=target, model="small")
    result = run(run_config, interrupt_after_ten)
    assert result.invalid == ["interrupted before its end"]
    assert 10 <= len(result.record) == result.metrics.ok < 1_000_000
