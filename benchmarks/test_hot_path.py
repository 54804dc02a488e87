"""The hot path: a small network (64 floats in) with gateway and worker on one core, the client on another."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks.conftest import Report
from benchmarks.support.closed_loop import drive_calls, drive_http, grpc_request, http_request
from benchmarks.support.processes import ServerProcess, alternate, gateway, pinned, process_cpu_s, running
from sluice.models.tensors.spec import DataType
from tests.support.models.onnx_models import save_model, value
from tests.support.triton.models import add_model
from tests.support.triton.server import TritonServer, triton_server
from tests.support.triton.setup import TritonUnavailable, set_up

SERVER_CORE, CLIENT_CORE = 0, 1
ROUNDS = 5
SECONDS = 2.0
CONFIG = f"partitions: [{{name: cpu0, cores: [{SERVER_CORE}]}}]\nmax_batch_size: 64\n"
HTTP_REQUEST = http_request("/v2/models/mlp/infer", "x", (1, 64))
GRPC_REQUEST = grpc_request("mlp", "x", (1, 64))
IMAGE = 3 * 224 * 224
IMAGE_REQUEST = http_request("/v2/models/image/infer", "x", (1, IMAGE))


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
def triton(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    try:
        directory = set_up()
    except TritonUnavailable as reason:
        pytest.skip(str(reason))
    scratch = tmp_path_factory.mktemp("triton")
    model = repository / "mlp" / "1" / "model.onnx"
    add_model(scratch / "models", "mlp", model, 64, "dynamic_batching { }")
    with pinned(SERVER_CORE), triton_server(directory, scratch / "models", scratch) as server, pinned(CLIENT_CORE):
        yield server


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    ready = tmp_path_factory.mktemp("echo") / "ready.json"
    with running(["-m", "benchmarks.support.grpc_echo", str(ready)], ready, SERVER_CORE) as server:
        yield server


def test_http(
    benchmark: Any, sluice: ServerProcess, fastapi: ServerProcess, triton: TritonServer, report: Report
) -> None:
    """Requests a second at concurrency 64, interleaved with those of a plain FastAPI server and of Triton."""
    ours_us: list[float] = []
    theirs_us: list[float] = []

    def drive(server: ServerProcess, cpu_us: list[float]) -> float:
        before = server.cpu_s()
        closed = drive_http(server.http_port, HTTP_REQUEST, 64, SECONDS)
        # CPU time includes the warm-up, whose requests have the same rate.
        cpu_us.append((server.cpu_s() - before) / (closed.requests * 1.1) * 1e6)
        return closed.rate

    def drive_triton() -> float:
        return drive_http(triton.http_port, HTTP_REQUEST, 64, SECONDS).rate

    measures = ROUNDS, lambda: drive(sluice, ours_us), lambda: drive(fastapi, theirs_us), drive_triton
    rate, plain, other = benchmark.pedantic(alternate, args=measures, rounds=1)
    ours, theirs = (sorted(each)[ROUNDS // 2] for each in (ours_us, theirs_us))
    report("HTTP, concurrency 64, requests/s", f"{rate:,.0f}", "")
    report("plain FastAPI + onnxruntime, requests/s", f"{plain:,.0f}", "")
    report("HTTP against plain FastAPI", f"{rate / plain:.2f}x", ">= 6x")
    report("Triton, HTTP, concurrency 64, requests/s", f"{other:,.0f}", "")
    report("HTTP against Triton", f"{rate / other:.2f}x", ">= 2.5x")
    report("CPU time a request (gateway + worker), us", f"{ours:.1f}", "<= 60 where FastAPI takes 117")
    report("the same for plain FastAPI, us", f"{theirs:.1f}", "")
    report("CPU time against plain FastAPI", f"{ours / theirs:.2f}x", "<= 0.51x (60 / 117)")


def test_large_bodies(benchmark: Any, tmp_path: Path, report: Report) -> None:
    """Requests of 602 kB a second, interleaved with a server that only reads them; the model takes ten of the numbers.

    So nearly all of the time is the way of the tensor from the client to the worker.
    """
    numbers = {name: np.array([value], np.int64) for name, value in {"begin": 0, "end": 10, "axis": 1}.items()}
    take = onnx.helper.make_node("Slice", ["x", *numbers], ["y"])
    ends = value("x", DataType.FP32, ["N", IMAGE]), value("y", DataType.FP32, ["N", 10])
    model = save_model(tmp_path / "image.onnx", [take], ends[:1], ends[1:], numbers)
    ready = tmp_path / "echo.json"
    with (
        gateway(tmp_path, CONFIG, SERVER_CORE, str(model)) as ours,
        running(["-m", "benchmarks.support.buffered_echo", str(ready)], ready, SERVER_CORE) as bare,
        pinned(CLIENT_CORE),
    ):
        drives = [
            partial(lambda server: drive_http(server.http_port, IMAGE_REQUEST, 32, SECONDS).rate, server)
            for server in (ours, bare)
        ]
        rate, most = benchmark.pedantic(alternate, args=(ROUNDS, *drives), rounds=1)
    report("bodies of 602 kB at concurrency 32, requests/s", f"{rate:,.0f}", "")
    report("bare server that only reads them, requests/s", f"{most:,.0f}", "")
    report("bodies of 602 kB against the bare server", f"{rate / most:.2f}x", ">= 0.5x")


@pytest.mark.parametrize("connections", [1, 4])
def test_grpc(
    benchmark: Any, sluice: ServerProcess, grpcio: ServerProcess, echo: ServerProcess, report: Report, connections: int
) -> None:
    """Calls a second at concurrency 64, interleaved with those of the server of grpcio and of an echo server."""
    cpu_us: dict[int, list[float]] = {sluice.grpc_port: [], grpcio.grpc_port: []}

    def drive(server: ServerProcess) -> float:
        before = server.cpu_s()
        closed = drive_calls(server.grpc_port, GRPC_REQUEST, 64, SECONDS, connections)
        cpu_us[server.grpc_port].append((server.cpu_s() - before) / (closed.requests * 1.1) * 1e6)
        return closed.rate

    def bare() -> float:
        return drive_calls(echo.grpc_port, GRPC_REQUEST, 64, SECONDS, connections).rate

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


@pytest.mark.parametrize("connections", [1, 4])
def test_grpc_beside_triton(
    benchmark: Any, sluice: ServerProcess, triton: TritonServer, report: Report, connections: int
) -> None:
    """Calls a second at concurrency 64, interleaved with those of Triton."""
    cpu_us: dict[int, list[float]] = {sluice.grpc_port: [], triton.grpc_port: []}

    def drive(port: int, cpu_s: Callable[[], float]) -> float:
        before = cpu_s()
        closed = drive_calls(port, GRPC_REQUEST, 64, SECONDS, connections)
        cpu_us[port].append((cpu_s() - before) / (closed.requests * 1.1) * 1e6)
        return closed.rate

    rate, other = benchmark.pedantic(
        alternate,
        args=(
            ROUNDS,
            lambda: drive(sluice.grpc_port, sluice.cpu_s),
            lambda: drive(triton.grpc_port, lambda: process_cpu_s(triton.process.pid)),
        ),
        rounds=1,
    )
    ours, theirs = (sorted(each)[ROUNDS // 2] for each in cpu_us.values())
    many = f"{connections} connection{'s' if connections > 1 else ''}"
    report(f"gRPC beside Triton, {many}, requests/s", f"{rate:,.0f} and {other:,.0f}", "")
    report(f"gRPC against Triton, {many}", f"{rate / other:.2f}x", ">= 2x")
    report(f"CPU time a call against Triton's, {many}", f"{ours / theirs:.2f}x", "<= 0.5x")


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
