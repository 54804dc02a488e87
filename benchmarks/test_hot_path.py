"""The hot path: a small network (64 floats in) with gateway and worker on one core, the client on another."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from benchmarks.conftest import Report
from benchmarks.support.closed_loop import drive_grpc, drive_http, grpc_request, http_request
from benchmarks.support.processes import ServerProcess, alternate, gateway, pinned, running

SERVER_CORE, CLIENT_CORE = 0, 1
ROUNDS = 5
SECONDS = 2.0
CONFIG = f"partitions: [{{name: cpu0, cores: [{SERVER_CORE}]}}]\nmax_batch_size: 64\n"
HTTP_REQUEST = http_request("/v2/models/mlp/infer", "x", (1, 64))
GRPC_REQUEST = grpc_request("mlp", "x", (1, 64))


@pytest.fixture(scope="module")
def model(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The network as a file of its own, which names the model."""
    file = tmp_path_factory.mktemp("model") / "mlp.onnx"
    file.write_bytes((repository / "mlp" / "1" / "model.onnx").read_bytes())
    return str(file)


@pytest.fixture(scope="module")
def sluice(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with gateway(tmp_path_factory.mktemp("sluice"), CONFIG, SERVER_CORE, model) as server, pinned(CLIENT_CORE):
        yield server


@pytest.fixture(scope="module")
def grpcio(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The same gateway with the gRPC server on the core of grpcio."""
    with gateway(tmp_path_factory.mktemp("grpcio"), f"grpc_server: grpcio\n{CONFIG}", SERVER_CORE, model) as server:
        yield server


@pytest.fixture(scope="module")
def fastapi(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    ready = tmp_path_factory.mktemp("fastapi") / "ready.json"
    model = repository / "mlp" / "1" / "model.onnx"
    with running(["-m", "benchmarks.support.fastapi_server", str(model), str(ready)], ready, SERVER_CORE) as server:
        yield server


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    ready = tmp_path_factory.mktemp("echo") / "ready.json"
    with running(["-m", "benchmarks.support.grpc_echo", str(ready)], ready, SERVER_CORE) as server:
        yield server


def test_http(benchmark: Any, sluice: ServerProcess, fastapi: ServerProcess, report: Report) -> None:
    """Requests a second at concurrency 64, interleaved with the plain FastAPI server's."""
    ours_us: list[float] = []
    theirs_us: list[float] = []

    def drive(server: ServerProcess, cpu_us: list[float]) -> float:
        before = server.cpu_s()
        closed = drive_http(server.http_port, HTTP_REQUEST, 64, SECONDS)
        # CPU time includes the warm-up, whose requests have the same rate.
        cpu_us.append((server.cpu_s() - before) / (closed.requests * 1.1) * 1e6)
        return closed.rate

    rate, plain = benchmark.pedantic(
        alternate, args=(ROUNDS, lambda: drive(sluice, ours_us), lambda: drive(fastapi, theirs_us)), rounds=1
    )
    ours, theirs = (sorted(each)[ROUNDS // 2] for each in (ours_us, theirs_us))
    report("HTTP, concurrency 64, requests/s", f"{rate:,.0f}", "")
    report("plain FastAPI + onnxruntime, requests/s", f"{plain:,.0f}", "")
    report("HTTP against plain FastAPI", f"{rate / plain:.2f}x", ">= 2x")
    report("CPU time a request (gateway + worker), us", f"{ours:.1f}", "<= 60 where FastAPI takes 117")
    report("the same for plain FastAPI, us", f"{theirs:.1f}", "")
    report("CPU time against plain FastAPI", f"{ours / theirs:.2f}x", "<= 0.51x (60 / 117)")


@pytest.mark.parametrize("connections", [1, 4])
def test_grpc(
    benchmark: Any, sluice: ServerProcess, grpcio: ServerProcess, echo: ServerProcess, report: Report, connections: int
) -> None:
    """Calls a second at concurrency 64, interleaved with those of the server of grpcio and of an echo server."""
    cpu_us: dict[int, list[float]] = {sluice.grpc_port: [], grpcio.grpc_port: []}

    def drive(server: ServerProcess) -> float:
        before = server.cpu_s()
        closed = drive_grpc(server.grpc_port, GRPC_REQUEST, 64, SECONDS, connections)
        cpu_us[server.grpc_port].append((server.cpu_s() - before) / (closed.requests * 1.1) * 1e6)
        return closed.rate

    def bare() -> float:
        return drive_grpc(echo.grpc_port, GRPC_REQUEST, 64, SECONDS, connections).rate

    rate, before, plain = benchmark.pedantic(
        alternate, args=(ROUNDS, lambda: drive(sluice), lambda: drive(grpcio), bare), rounds=1
    )
    ours, theirs = (sorted(each)[ROUNDS // 2] for each in cpu_us.values())
    many = f"{connections} connection{'s' if connections > 1 else ''}"
    report(f"gRPC, concurrency 64, {many}, requests/s", f"{rate:,.0f}", "")
    report(f"grpc_server: grpcio, {many}, requests/s", f"{before:,.0f}", "")
    report(f"bare grpc.aio echo, {many}, requests/s", f"{plain:,.0f}", "")
    report(f"gRPC against the bare echo, {many}", f"{rate / plain:.0%}", ">= 100%")
    report(f"CPU time a call against grpc_server: grpcio, {many}", f"{ours / theirs:.2f}x", "<= 0.67x")


def test_lone_latency(
    benchmark: Any, sluice: ServerProcess, fastapi: ServerProcess, repository: Path, report: Report
) -> None:
    """Latency that the gateway adds at concurrency 1, against ONNX Runtime in the client's process."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = str(repository / "mlp" / "1" / "model.onnx")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    row = np.ones((1, 64), np.float32)
    tails: list[float] = []

    def ours() -> float:
        closed = drive_http(sluice.http_port, HTTP_REQUEST, 1, 1.0)
        tails.append(closed.p99_ms)
        return closed.p50_ms

    def plain() -> float:
        return drive_http(fastapi.http_port, HTTP_REQUEST, 1, 1.0).p50_ms

    def direct() -> float:
        times = []
        for _ in range(2000):
            began = time.perf_counter()
            session.run(None, {"x": row})
            times.append(time.perf_counter() - began)
        return float(np.median(times)) * 1e3

    latency, other, alone = benchmark.pedantic(alternate, args=(7, ours, plain, direct), rounds=1)
    report("concurrency 1, p50 added over in-process, ms", f"{latency - alone:.3f}", "<= 0.3")
    report("plain FastAPI, p50 added over in-process, ms", f"{other - alone:.3f}", "")
    report("concurrency 1, p99, ms", f"{sorted(tails)[len(tails) // 2]:.3f}", "")


def test_memory(benchmark: Any, sluice: ServerProcess, report: Report) -> None:
    """Memory after a million requests, and its growth over the last 900 000."""

    def million() -> tuple[float, float]:
        served, early = 0, 0.0
        while served < 1_000_000:
            served += drive_http(sluice.http_port, HTTP_REQUEST, 64, 4.0).requests
            if not early and served >= 100_000:
                early = sluice.pss_mb()
        return early, sluice.pss_mb()

    early, late = benchmark.pedantic(million, rounds=1)
    report("gateway + worker after a million requests, MB PSS", f"{late:.0f}", "<= 150")
    report("growth over the last 900 000 requests, MB", f"{late - early:+.1f}", "flat")
