"""Adaptive batching of a wide network: peak rate within the objective, and latency at concurrency 1."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.conftest import Report
from benchmarks.support.closed_loop import drive_http, http_request
from benchmarks.support.processes import ROOT, ServerProcess, alternate, gateway, pinned

MODEL = "rf2048x2048x2048"
SLO_MS = 100
CLIENT_LIMITED = 4
"""Exit status of `find-max` when the client was the limit."""
WORKER_CORE, OTHER_CORE = 0, 1
CONFIG = f"partitions: [{{name: cpu0, cores: [{WORKER_CORE}]}}]\nmax_batch_size: 64\n"
REQUEST = http_request(f"/v2/models/{MODEL}/infer", "x", (1, 1, 8, 8))

OFFLINE = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[2])})
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
def median(rows):
    x = np.random.default_rng(0).random((rows, 1, 8, 8), dtype=np.float32)
    times = []
    for _ in range(120):
        began = time.perf_counter()
        session.run(None, {"x": x})
        times.append(time.perf_counter() - began)
    return sorted(times[20:])[50]
print(max(rows / median(rows) for rows in (16, 32, 64)), median(1) * 1e3)
"""


@pytest.fixture(scope="module")
def model(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("wide") / f"{MODEL}.onnx"
    file.write_bytes((repository / MODEL / "1" / "model.onnx").read_bytes())
    return file


@pytest.fixture(scope="module")
def adaptive(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with gateway(tmp_path_factory.mktemp("adaptive"), CONFIG, None, str(model)) as server:
        server.keep_on(OTHER_CORE)
        yield server


@pytest.fixture(scope="module")
def unbatched(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with gateway(tmp_path_factory.mktemp("unbatched"), CONFIG, None, str(model), "--policy", "none") as server:
        server.keep_on(OTHER_CORE)
        yield server


def offline(model: Path) -> tuple[float, float]:
    """The best rate of ONNX Runtime alone on the worker's core, in rows/s, and its latency for one row in ms."""
    command = [sys.executable, "-c", OFFLINE, str(model), str(WORKER_CORE)]
    rate, lone_ms = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return float(rate), float(lone_ms)


def peak(server: ServerProcess, start: float, directory: Path) -> float:
    """The highest rate that meets the objective, by `loadgen find-max`.

    Where the client on its shared core gives up first, the server is at least as good.
    """
    report = directory / "peak.json"
    target = f"http://127.0.0.1:{server.http_port}"
    command = [sys.executable, "-m", "sluice.loadgen.cli.main", "find-max", "--target", target, "--model", MODEL]
    options = ["--slo-ms", str(SLO_MS), "--start", str(start), "--duration", "4", "--precision", "4"]
    options += ["--connections", "2048", "--json", str(report)]
    status = subprocess.run([*command, *options], cwd=ROOT, check=False).returncode
    assert status in (0, CLIENT_LIMITED), f"find-max ended with status {status}"
    return float(orjson.loads(report.read_bytes())["rate"])


def test_peak_rate(
    benchmark: Any, adaptive: ServerProcess, unbatched: ServerProcess, model: Path, report: Report, tmp_path: Path
) -> None:
    """Peak rate with the deadline policy against policy none, and against ONNX Runtime offline."""

    def measure() -> tuple[float, float, float]:
        with pinned(OTHER_CORE):
            none = peak(unbatched, 200, tmp_path)
            before, _ = offline(model)
            deadline = peak(adaptive, 1000, tmp_path)
            after, _ = offline(model)
        return none, deadline, (before + after) / 2

    none, deadline, best = benchmark.pedantic(measure, rounds=1)
    report(f"peak rate within {SLO_MS} ms, policy none, requests/s", f"{none:,.0f}", "")
    report(f"peak rate within {SLO_MS} ms, policy deadline, requests/s", f"{deadline:,.0f}", "")
    report("policy deadline against none", f"{deadline / none:.1f}x", ">= 5x")
    report("policy deadline against ONNX Runtime offline", f"{deadline / best:.0%}", ">= 80%")


def test_lone_request(benchmark: Any, adaptive: ServerProcess, model: Path, report: Report) -> None:
    """Latency at concurrency 1: batching must not delay a single request."""

    def ours() -> float:
        return drive_http(adaptive.http_port, REQUEST, 1, 1.0).p50_ms

    def measure() -> list[float]:
        with pinned(OTHER_CORE):
            return alternate(7, ours, lambda: offline(model)[1])

    latency, direct = benchmark.pedantic(measure, rounds=1)
    goal = f"<= {1.1 * direct + 0.3:.2f} (1.1 x direct + 0.3)"
    report("wide network at concurrency 1, p50 ms", f"{latency:.2f}", goal)
