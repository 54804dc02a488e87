"""A worker behind a worker server over TCP on this machine, against one of the gateway's own: hand-off and rate."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

from benchmarks.conftest import Report
from benchmarks.support.closed_loop import drive_http, http_request
from benchmarks.support.processes import ServerProcess, alternate, gateway, pinned, process_cpu_s, running
from sluice.models.tensors.spec import DataType
from tests.support.models.onnx_models import save_model, value
from tests.support.triton.server import free_ports

WORKER_CORE, OTHER_CORE = 0, 1
SMALL, LARGE = 4_096, 150_000
"""Items of FP32 in a row: 16 kB and 600 kB."""
ROUNDS = 5
SECONDS = 2.0
CONCURRENCY = 16
NEURONS = 256
COMMON = "max_batch_size: 8\ndefault_slo_ms: 10000\n"


class Servers(NamedTuple):
    """Two gateways with the same models: over a worker of its own, and over a worker server."""

    local: ServerProcess
    remote: ServerProcess


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of a layer, and models that do next to nothing: one answers with a number, the others with the row."""
    repository = tmp_path_factory.mktemp("models")
    weights = np.random.default_rng(0).standard_normal((LARGE, NEURONS), np.float32) / 400
    for name, width, operation, outputs in (
        ("small", SMALL, onnx.helper.make_node("Identity", ["x"], ["y"]), SMALL),
        ("large", LARGE, onnx.helper.make_node("Identity", ["x"], ["y"]), LARGE),
        ("read", LARGE, onnx.helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=1), 1),
        ("network", LARGE, onnx.helper.make_node("MatMul", ["x", "w"], ["y"]), NEURONS),
    ):
        ends = value("x", DataType.FP32, ["N", width]), value("y", DataType.FP32, ["N", outputs])
        (repository / name / "1").mkdir(parents=True)
        file = repository / name / "1" / "model.onnx"
        save_model(file, [operation], ends[:1], ends[1:], {"w": weights} if name == "network" else {})
    return repository


@contextmanager
def worker_server(directory: Path, port: int) -> Iterator[None]:
    """A worker server whose process shares the core of its worker."""
    command = ["-m", "sluice.gateway.cli.main", "worker", "--cores", str(WORKER_CORE), "--log-level", "warning"]
    ready = directory / "worker.json"
    with running([*command, "--listen", f"127.0.0.1:{port}", "--ready-file", str(ready)], ready, None) as server:
        server.keep_on(WORKER_CORE)
        yield


@pytest.fixture(scope="module")
def servers(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    (port,) = free_ports(1)
    local = f"partitions: [{{name: cpu0, cores: [{WORKER_CORE}]}}]\n"
    remote = f"partitions: {{remote: [{{name: edge, kind: cpu1, urls: ['127.0.0.1:{port}']}}]}}\n"
    directories = [tmp_path_factory.mktemp(name) for name in ("local", "remote", "worker")]
    with (
        worker_server(directories[2], port),
        gateway(directories[0], local + COMMON, None, "--repository", str(models)) as one,
        gateway(directories[1], remote + COMMON, None, "--repository", str(models)) as other,
    ):
        for server in (one, other):
            server.keep_on(OTHER_CORE)
        yield Servers(one, other)


def core_s(server: ServerProcess) -> float:
    """Processor time of the gateway's own process and of this one, its client."""
    return process_cpu_s(server.pids()[0]) + time.process_time()


def drives(
    servers: Servers, model: str, width: int, concurrency: int, figure: str, request_s: dict[ServerProcess, list[float]]
) -> list[Callable[[], float]]:
    """The measures of a figure, one for each server, which add the processor time of a request to `request_s`."""
    request = http_request(f"/v2/models/{model}/infer", "x", (1, width))

    def drive(server: ServerProcess) -> float:
        before = core_s(server)
        measured = drive_http(server.http_port, request, concurrency, SECONDS)
        # The warm-up is a tenth of the time, and does not count as requests.
        request_s.setdefault(server, []).append((core_s(server) - before) / (1.1 * measured.requests))
        value: float = getattr(measured, figure)
        return value

    return [partial(drive, server) for server in servers]


def test_hand_off(benchmark: Any, servers: Servers, report: Report) -> None:
    """The median latency of single requests."""
    measures = drives(servers, "small", SMALL, 1, "p50_ms", {})
    with pinned(OTHER_CORE):
        local_ms, remote_ms = benchmark.pedantic(alternate, args=(ROUNDS, *measures), rounds=1)
    report("16 kB there and back, own worker, ms at the median", f"{local_ms:.2f}", "")
    report("16 kB there and back, worker server, ms more", f"{remote_ms - local_ms:.2f}", "<= 0.5")


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ("network", "a layer of 256 neurons over 600 kB"),
        ("read", "600 kB there"),
        ("large", "600 kB there and back"),
    ],
)
def test_rate(benchmark: Any, servers: Servers, report: Report, model: str, what: str) -> None:
    """Requests a second in batches of up to eight. The last two models leave nothing but the way to be measured."""
    request_s: dict[ServerProcess, list[float]] = {}
    measures = drives(servers, model, LARGE, CONCURRENCY, "rate", request_s)
    with pinned(OTHER_CORE):
        local, remote = benchmark.pedantic(alternate, args=(ROUNDS, *measures), rounds=1)
    report(f"{what}, own worker, requests/s", f"{local:,.0f}", "")
    report(f"{what}, worker server, against that", f"{remote / local:.0%}", ">= 70%")
    own_s, other_s = (sorted(request_s[each])[ROUNDS // 2] for each in servers)
    text = f"{own_s / other_s:.0%} ({own_s * 1e3:.2f} and {other_s * 1e3:.2f} ms)"
    report(f"{what}, the same by processor time of gateway and clients", text, "")
