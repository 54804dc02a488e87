"""The load generator against real servers: small ones that misbehave on purpose, and `sluice serve`."""

import asyncio
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from sluice.loadgen.mixes.mix import Mix, MixStream
from sluice.loadgen.records.record import Status
from sluice.loadgen.records.samples import SampleSource
from sluice.loadgen.results.folder import write_result
from sluice.loadgen.results.read import read_result
from sluice.loadgen.run import runner
from sluice.loadgen.run.result import RunResult, Verdict
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.loadgen.target.base import TargetUnreachable
from sluice.loadgen.traffic.draws import Cancellation
from sluice.models.errors import ConfigError
from tests.support.gateway.server import gateway_server
from tests.support.loadgen.v2_server import ANSWER, BUSY, Reply, server
from tests.support.models.onnx_models import save_mlp


def run(target: str, queries: int = 200, rate: float = 500, **settings: object) -> RunResult:
    arguments: dict[str, object] = {"warmup_s": 0.0, "drain_timeout_s": 60.0, "seed": 1} | settings
    return runner.run(
        RunConfig(target=target, model="m", rate=rate, queries=queries, **arguments)  # type: ignore[arg-type]
    )


@pytest.mark.timed
def test_a_stall_of_the_server_shows_in_the_latency_from_due_only() -> None:
    async def stall_once(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 100:
            time.sleep(1)  # noqa: ASYNC251 (nothing else is answered either)
        writer.write(ANSWER)

    # One connection, so that queries wait in the client: a client that times from sending would not notice.
    with server(stall_once) as target:
        result = run(target, queries=400, rate=200, connections=1)
    metrics = result.metrics
    assert metrics.ok == 400
    assert metrics.latency_ms is not None
    assert metrics.service_ms is not None
    assert metrics.latency_ms.p90 > 500
    assert metrics.service_ms.p99 < 200
    assert metrics.service_ms.max > 990
    assert metrics.waiting_ms is not None
    assert metrics.waiting_ms.p90 > 500
    assert metrics.lateness_ms is not None
    assert metrics.lateness_ms.p90 < 250


def overloaded(per_answer_s: float) -> Reply:
    """A server that answers one query after the other."""
    turn = asyncio.Lock()

    async def one_by_one(number: int, writer: asyncio.StreamWriter) -> None:
        async with turn:
            await asyncio.sleep(per_answer_s)
        writer.write(ANSWER)

    return one_by_one


@pytest.mark.timed
def test_an_overloaded_server_is_measured_and_not_taken_for_a_slow_client() -> None:
    with server(overloaded(0.01)) as target:
        result = run(target, queries=500, rate=500, connections=4, slo_ms=1000, drain_timeout_s=60)
    metrics = result.metrics
    assert (metrics.ok, result.invalid, result.verdict) == (500, [], Verdict.MISSED)
    assert metrics.completed_per_s < 125
    assert metrics.latency_ms is not None
    assert metrics.service_ms is not None
    assert metrics.waiting_ms is not None
    # Four of them are with the server at a time; the others wait in the client, which the latency has in it.
    assert metrics.latency_ms.p90 > 2000
    assert metrics.waiting_ms.p90 > 2000
    assert metrics.service_ms.p50 < 200
    assert metrics.waited > 400


def test_the_wait_for_a_connection_is_the_difference_between_due_and_sent() -> None:
    with server(overloaded(0.005)) as target:
        result = run(target, queries=200, rate=500, connections=2)
    record = result.record
    waited = record.queued_ns >= 0
    assert result.metrics.waited == waited.sum() > 100
    assert (record.due_ns <= record.queued_ns)[waited].all()
    assert (record.queued_ns < record.sent_ns)[waited].all()
    assert (record.sent_ns < record.done_ns).all()


def test_queries_beyond_the_backlog_of_an_overloaded_server_miss_but_leave_the_run_valid() -> None:
    with server(overloaded(0.01)) as target:
        # The client may be late by a twentieth of the objective.
        result = run(target, queries=500, rate=1000, connections=1, max_outstanding=6, slo_ms=1_200_000)
    metrics = result.metrics
    assert metrics.ok + metrics.dropped == 500
    assert metrics.dropped > 100
    assert (result.invalid, result.verdict) == ([], Verdict.MISSED)


def test_a_lost_reply_is_a_timeout_and_the_run_ends() -> None:
    async def lose_one(number: int, writer: asyncio.StreamWriter) -> None:
        if number != 50:
            writer.write(ANSWER)

    with server(lose_one) as target:
        result = run(target, drain_timeout_s=5)
    assert (result.metrics.ok, result.metrics.timeout) == (199, 1)
    assert result.metrics.attainment == 0.995


def test_a_lost_reply_holds_up_one_client_of_a_closed_loop_until_the_timeout() -> None:
    async def lose_one(number: int, writer: asyncio.StreamWriter) -> None:
        if number != 50:
            writer.write(ANSWER)

    with server(lose_one) as target:
        result = run(target, rate=0.0, scenario=ScenarioName.SINGLE_STREAM, percentile=90.0, drain_timeout_s=5)
    assert (result.metrics.ok, result.metrics.timeout) == (199, 1)
    assert result.verdict is Verdict.MET


@pytest.mark.parametrize(
    ("scenario", "settings", "open_at_most"),
    [
        (ScenarioName.SINGLE_STREAM, {}, 1),
        (ScenarioName.MULTI_STREAM, {"queries": 25}, 8),
        (ScenarioName.OFFLINE, {"concurrency": 5}, 5),
        (ScenarioName.CONCURRENCY, {"concurrency": 3}, 3),
        (ScenarioName.CONCURRENCY, {"concurrency": 4, "rate": 2000.0}, 4),
    ],
)
def test_a_server_sees_as_many_queries_at_a_time_as_the_scenario_says(
    scenario: ScenarioName, settings: dict[str, object], open_at_most: int
) -> None:
    reply, most = counted(open_at_most)
    arguments: dict[str, object] = {"rate": 0.0} | settings
    with server(reply) as target:
        result = run(target, scenario=scenario, **arguments)  # type: ignore[arg-type]
    assert (result.metrics.ok, most()) == (200, open_at_most)


def counted(expected: int) -> tuple[Reply, Callable[[], int]]:
    """A server that answers once `expected` queries were open at a time, and the most that were open at a time."""
    under_way = most = 0
    all_open = asyncio.Event()

    async def count(number: int, writer: asyncio.StreamWriter) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == expected:
            all_open.set()
        await all_open.wait()
        await asyncio.sleep(0.002)
        under_way -= 1
        writer.write(ANSWER)

    return count, lambda: most


def test_503_is_shed_with_its_reason() -> None:
    async def every_fourth_is_busy(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER if number % 4 else BUSY)

    with server(every_fourth_is_busy) as target:
        result = run(target)
    assert (result.metrics.ok, result.metrics.shed) == (150, 50)
    assert result.metrics.attainment == 0.75
    assert result.record.reasons == {'HTTP 503: {"error":"busy"}': 50}


def test_a_closed_connection_fails_its_own_query_only() -> None:
    async def hang_up(number: int, writer: asyncio.StreamWriter) -> None:
        if number % 20 == 10:
            writer.write(ANSWER[:30])
            writer.close()
        else:
            writer.write(ANSWER)

    with server(hang_up) as target:
        result = run(target, connections=4)
    assert (result.metrics.ok, result.metrics.error) == (190, 10)
    assert result.record.reasons == {"connection closed before the answer": 10}


def test_an_answer_that_is_no_http_fails_its_query() -> None:
    async def babble(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n\r\n" if number == 3 else ANSWER)

    with server(babble) as target:
        result = run(target)
    assert (result.metrics.ok, result.metrics.error) == (199, 1)


def test_answers_in_pieces_are_compared_with_the_labels(tmp_path: Path) -> None:
    async def in_pieces(number: int, writer: asyncio.StreamWriter) -> None:
        for piece in (ANSWER[:20], ANSWER[20:-3], ANSWER[-3:]):
            writer.write(piece)
            await asyncio.sleep(0.001)

    np.savez(tmp_path / "s.npz", x=np.zeros((40, 2), np.float32), y=np.array([1] * 30 + [0] * 10))
    with server(in_pieces) as target:
        samples = SampleSource(str(tmp_path / "s.npz"), labels="y")
        result = run(target, queries=100, samples=samples, each_once=True)
    assert result.answered_rows == 40
    assert result.accuracy == 0.75


def test_queries_beyond_the_connections_wait_their_turn() -> None:
    reply, most = counted(3)
    with server(reply) as target:
        result = run(target, queries=100, rate=5000, connections=3)
    assert (result.metrics.ok, most()) == (100, 3)


def test_a_server_that_goes_away_fails_the_rest_in_bounded_time() -> None:
    gone = False

    async def go_away(number: int, writer: asyncio.StreamWriter) -> None:
        nonlocal gone
        gone = gone or number >= 50
        if gone:
            writer.close()
        else:
            writer.write(ANSWER)

    with server(go_away) as target:
        started = time.monotonic()
        result = run(target, connections=8, drain_timeout_s=600)
        assert time.monotonic() - started < 100
    assert (result.metrics.ok, result.metrics.error, result.metrics.timeout) == (50, 150, 0)


def test_an_interrupt_ends_the_run_with_a_report(tmp_path: Path) -> None:
    seen = threading.Event()

    async def note(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER)
        seen.set()

    command = [
        sys.executable,
        "-m",
        "sluice.loadgen.cli.main",
        "run",
        "--model",
        "m",
        "--rate",
        "200",
        "--duration",
        "60",
    ]
    with (
        server(note) as target,
        subprocess.Popen([*command, "--target", target], stdout=subprocess.PIPE, text=True) as process,
    ):
        assert seen.wait(120)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "Result: INVALID: interrupted before its end" in output
    assert " 0 timeout," in output


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], str]]:
    """The targets of a server with a model `m` by protocol, and the URL of its metrics.

    It has one partition: with another one, the rows of a batch that stalls for 100 ms run there as well.
    """
    directory = tmp_path_factory.mktemp("gateway")
    save_mlp(directory / "repository" / "m" / "1" / "model.onnx", [2, 8, 2])
    with gateway_server(directory / "repository", directory, {"partitions": 1}) as running:
        targets = {"http": f"http://{running.http_url}", "grpc": f"grpc://{running.grpc_url}"}
        yield targets, f"http://{running.http_url}/metrics"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_every_query_to_sluice_is_answered_and_counted(
    gateway: tuple[dict[str, str], str], protocol: str, tmp_path: Path
) -> None:
    targets, metrics_url = gateway
    np.savez(tmp_path / "s.npz", x=np.random.default_rng(1).random((50, 2), np.float32), y=np.zeros(50, np.int64))
    samples = SampleSource(str(tmp_path / "s.npz"), labels="y")
    result = run(targets[protocol], rate=200, samples=samples, rows=2, slo_ms=60_000, metrics_url=metrics_url)
    assert result.metrics.ok == 200
    assert result.answered_rows == 400
    assert result.server is not None
    assert sum(batch.batches * batch.mean_rows for batch in result.server.batches) == pytest.approx(400)
    assert [(stage.stage, stage.rows) for stage in result.server.stages] == [("m", 400)]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_result_folder_has_the_times_of_the_server_by_model_and_by_stage(
    gateway: tuple[dict[str, str], str], protocol: str, tmp_path: Path
) -> None:
    targets, metrics_url = gateway
    result = run(targets[protocol], rate=200, rows=2, slo_ms=60_000, metrics_url=metrics_url, explain_share=0.1)
    assert result.server is not None
    (model,) = result.server.models
    assert (model.model, model.requests, model.rows, model.is_pipeline) == ("m:1", 200, 400, False)
    assert model.met_batch >= model.mean_batch >= 2
    (stage,) = result.figures.stages
    assert (stage.stage, stage.partition, stage.queries) == ("m", "cpu0", 20)
    assert result.metrics.service_ms is not None
    assert 0 < stage.compute_ms <= stage.total_ms <= result.metrics.service_ms.max
    assert result.figures.cost is not None
    assert result.figures.cost.source == "metrics"
    write_result(result, tmp_path / "result")
    again = read_result(tmp_path / "result")
    assert (again.metrics, again.server) == (result.metrics, result.server)
    assert (again.figures.stages, again.figures.cost) == (result.figures.stages, result.figures.cost)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_streams_of_a_mix_reach_sluice_with_their_own_rows_and_labels(
    gateway: tuple[dict[str, str], str], protocol: str, tmp_path: Path
) -> None:
    targets, metrics_url = gateway
    np.savez(tmp_path / "s.npz", x=np.random.default_rng(1).random((40, 2), np.float32), y=np.zeros(40, np.int64))
    labelled = SampleSource(str(tmp_path / "s.npz"), labels="y")
    mix = Mix(
        (
            MixStream(name="single", model="m", share=2, slo_ms=60_000),
            MixStream(name="four", model="m", slo_ms=0.001, samples=labelled, rows=4, priority=1),
        ),
        "mix.yaml",
    )
    result = run(targets[protocol], rate=200, mix=mix, metrics_url=metrics_url)
    four = result.record.stream == 1
    assert 40 < four.sum() < 95
    assert result.answered_rows == 4 * (four & (result.record.status == Status.OK)).sum()
    assert (result.record.good == (~four & (result.record.status == Status.OK))).all()
    assert result.server is not None


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_sluice_hears_of_queries_that_were_given_up(gateway: tuple[dict[str, str], str], protocol: str) -> None:
    targets, metrics_url = gateway
    record = run(targets[protocol], rate=200, slo_ms=60_000, cancellation=Cancellation(0.5, 0)).record
    given_up = record.status == Status.CANCELLED
    assert 0 < given_up.sum() <= 140
    assert ((record.status == Status.OK) | given_up).all()
    with urllib.request.urlopen(metrics_url) as answer:
        assert b'sluice_requests_total{outcome="cancelled_client",pipeline="m:1"}' in answer.read()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("scenario", "settings", "answers"),
    [
        (ScenarioName.SINGLE_STREAM, {"queries": 80, "percentile": 90.0}, 80),
        (ScenarioName.MULTI_STREAM, {"queries": 20, "each_once": True}, 64),
        (ScenarioName.OFFLINE, {"queries": None, "min_queries": 300}, 300),
        (ScenarioName.CONCURRENCY, {"queries": 100, "concurrency": 4}, 100),
        (ScenarioName.JOBS, {"queries": 4, "rate": 20.0, "samples_per_query": 16}, 64),
    ],
)
def test_every_scenario_runs_against_sluice(
    gateway: tuple[dict[str, str], str],
    protocol: str,
    scenario: ScenarioName,
    settings: dict[str, object],
    answers: int,
) -> None:
    arguments: dict[str, object] = {"rate": 0.0} | settings
    result = run(gateway[0][protocol], scenario=scenario, **arguments)  # type: ignore[arg-type]
    assert result.metrics.ok == len(result.record) == answers
    assert result.score.figures[0].value is not None or scenario is ScenarioName.MULTI_STREAM
    assert result.baseline_lateness_ms is not None


def test_both_protocols_predict_the_same(gateway: tuple[dict[str, str], str], tmp_path: Path) -> None:
    targets, _ = gateway
    np.savez(tmp_path / "s.npz", x=np.random.default_rng(2).random((50, 2), np.float32), y=np.zeros(50, np.int64))
    samples = SampleSource(str(tmp_path / "s.npz"), labels="y")
    over_http, over_grpc = (
        run(targets[protocol], samples=samples, each_once=True).predictions for protocol in ("http", "grpc")
    )
    assert over_http is not None
    assert over_grpc is not None
    assert over_http.tolist() == over_grpc.tolist()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_the_server_refuses_as_out_of_time_is_shed(gateway: tuple[dict[str, str], str], protocol: str) -> None:
    result = run(gateway[0][protocol], queries=20, slo_ms=0.000001)
    assert result.metrics.ok + result.metrics.shed == 20
    assert result.metrics.shed > 0


def test_the_port_of_the_other_protocol_is_named(gateway: tuple[dict[str, str], str]) -> None:
    target = gateway[0]["grpc"].replace("grpc://", "http://")
    with pytest.raises(TargetUnreachable, match=r"answered 400 this port serves gRPC, over HTTP/2 only; "):
        runner.run(RunConfig(target=target, model="m", rate=10, queries=1))


def test_the_grpc_port_of_a_server_that_does_not_say_so_is_named() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with pytest.raises(TargetUnreachable, match=f"not an HTTP server; for a gRPC port give grpc://{address}$"):
            runner.run(RunConfig(target=f"http://{address}", model="m", rate=10, queries=1))
    finally:
        server.stop(None)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_unknown_model_is_named(gateway: tuple[dict[str, str], str], protocol: str) -> None:
    config = RunConfig(target=gateway[0][protocol], model="absent", rate=10, queries=1)
    with pytest.raises(ConfigError, match=r"--model absent: .*absent"):
        runner.run(config)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_queries_to_a_server_that_dies_are_errors_and_not_shed(protocol: str, tmp_path: Path) -> None:
    save_mlp(tmp_path / "repository" / "m" / "1" / "model.onnx", [2, 8, 2])
    with gateway_server(tmp_path / "repository", tmp_path) as running:

        def kill_once_it_has_answered_some() -> None:
            counted = re.compile(rb'sluice_requests_total{outcome="completed",pipeline="m:1"} (\S+)')
            while (found := counted.search(running.request("GET", "/metrics")[2])) and float(found[1]) < 50:
                time.sleep(0.02)
            running.process.kill()

        killer = threading.Thread(target=kill_once_it_has_answered_some)
        killer.start()
        target = f"http://{running.http_url}" if protocol == "http" else f"grpc://{running.grpc_url}"
        result = run(target, queries=1200, rate=200, slo_ms=60_000, connections=1)
        killer.join()
    metrics = result.metrics
    assert metrics.ok > 0
    assert (metrics.error, metrics.shed, metrics.timeout) == (1200 - metrics.ok, 0, 0)
    assert any("cannot connect" in reason or "UNAVAILABLE" in reason for reason in result.record.reasons)
