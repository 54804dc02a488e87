"""Batches of images of 602 kB: a fully connected network on one core, gateway and clients on the other."""

import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.conftest import Report
from benchmarks.support.closed_loop import drive_grpc, drive_http, grpc_request, http_request
from benchmarks.support.processes import ROOT, ServerProcess, alternate, gateway, pinned, process_cpu_s
from sluice.models.tensors.spec import DataType
from tests.support.models.onnx_models import save_model, value

WORKER_CORE, OTHER_CORE = 0, 1
IMAGE = 3 * 224 * 224
WIDTH = 256
BATCH = 32
CONCURRENCY = 2 * BATCH
"""While one batch runs, the next one arrives."""
ROUNDS = 3
SECONDS = 4.0
CONFIG = f"partitions: [{{name: cpu0, cores: [{WORKER_CORE}]}}]\nmax_batch_size: {BATCH}\ndefault_slo_ms: 10000\n"
OFFLINE = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[2])})
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
rows, width = int(sys.argv[3]), int(sys.argv[4])
x = np.random.default_rng(0).random((rows, width), np.float32)
session.run(None, {"x": x})
count, began, before = 0, time.perf_counter(), time.process_time()
while time.perf_counter() - began < float(sys.argv[5]):
    session.run(None, {"x": x})
    count += rows
print(count / (time.perf_counter() - began), (time.process_time() - before) / count)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer of 256 neurons, and ten outputs."""
    source = np.random.default_rng(0)
    shapes = {"w": (IMAGE, WIDTH), "v": (WIDTH, 10)}
    weights = {name: source.standard_normal(shape, np.float32) / 400 for name, shape in shapes.items()}
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["z"]),
        onnx.helper.make_node("Relu", ["z"], ["h"]),
        onnx.helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    ends = value("x", DataType.FP32, ["N", IMAGE]), value("y", DataType.FP32, ["N", 10])
    return save_model(tmp_path_factory.mktemp("model") / "image.onnx", nodes, ends[:1], ends[1:], weights)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with gateway(tmp_path_factory.mktemp("sluice"), CONFIG, None, str(model)) as server:
        server.keep_on(OTHER_CORE)
        yield server


def batches(server: ServerProcess) -> tuple[float, float]:
    """The number of batches so far, and of their rows."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as response:
        lines = (line.rsplit(" ", 1) for line in response.read().decode().splitlines() if "_batch_rows_" in line)
        found = {name.split("{")[0].removeprefix("sluice_batch_rows_"): number for name, number in lines}
    return float(found.get("count", 0)), float(found.get("sum", 0))


def offline(model: Path, cpu_s: list[float]) -> float:
    """Images a second of ONNX Runtime alone on the worker's core, in batches of the same size.

    The processor time of an image is added to `cpu_s`.
    """
    arguments = [str(model), str(WORKER_CORE), str(BATCH), str(IMAGE), str(SECONDS)]
    command = [sys.executable, "-c", OFFLINE, *arguments]
    rate, image_s = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    cpu_s.append(float(image_s))
    return float(rate)


def worker_cpu_s(server: ServerProcess) -> float:
    """CPU time of the server's children, of which only the worker does much."""
    return sum(map(process_cpu_s, server.pids()[1:]))


DRIVES: dict[str, tuple[Callable[[ServerProcess], float], str]] = {
    "HTTP": (
        lambda server: (
            drive_http(
                server.http_port, http_request("/v2/models/image/infer", "x", (1, IMAGE)), CONCURRENCY, SECONDS
            ).rate
        ),
        ">= 90%",
    ),
    "gRPC": (
        lambda server: (
            drive_grpc(
                server.grpc_port, grpc_request("image", "x", (1, IMAGE)), CONCURRENCY, SECONDS, connections=4
            ).rate
        ),
        ">= 92%",
    ),
}


@pytest.mark.parametrize("protocol", DRIVES)
def test_batches_of_images(benchmark: Any, server: ServerProcess, model: Path, report: Report, protocol: str) -> None:
    """Images a second against ONNX Runtime offline, interleaved."""
    drive, goal = DRIVES[protocol]
    alone_s: list[float] = []
    before, used_s = batches(server), worker_cpu_s(server)
    with pinned(OTHER_CORE):
        measures = ROUNDS, partial(drive, server), partial(offline, model, alone_s)
        rate, best = benchmark.pedantic(alternate, args=measures, rounds=1)
    count, rows = (after - earlier for after, earlier in zip(batches(server), before, strict=True))
    image_s = (worker_cpu_s(server) - used_s) / rows
    report(f"fully connected network over images of 602 kB, {protocol}, images/s", f"{rate:,.0f}", "")
    report(f"ONNX Runtime offline in batches of {BATCH}, images/s", f"{best:,.0f}", "")
    report(f"{protocol} against ONNX Runtime offline", f"{rate / best:.0%}", goal)
    report(
        "processor time an image offline, against that in the worker",
        f"{sorted(alone_s)[ROUNDS // 2] / image_s:.0%}",
        goal,
    )
    report(f"images in a batch over {protocol}", f"{rows / count:.1f}", "")
