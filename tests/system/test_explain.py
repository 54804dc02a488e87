"""A real server explains its requests: on the response, by `sluice why`, and in its metrics."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.gateway.processes import children, until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_spin

ROOT = Path(__file__).parents[2]
CASCADE = """
stages:
  first: {model: quick, inputs: {x: request.x}}
  second: {model: slow, inputs: {x: request.x}, when: {stage: first, output: y, below: 1.0}}
outputs:
  y: {from: [second.y, first.y]}
"""
EXPLAIN = {"x-sluice-explain": "1"}
STAGE = re.compile(
    r"(\w+);batch=\d+;size=1;rows=1;partition=cpu0;"
    r"queue=([\d.]+);batch-wait=[\d.]+;hand-off=([\d.]+);compute=([\d.]+);return=([\d.]+);cost=([\d.e-]+)"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("explain")
    repository = directory / "models"
    save_spin(repository / "quick" / "1" / "model.onnx", 100, 0)
    save_spin(repository / "slow" / "1" / "model.onnx", 120_000, 0)  # some 200 ms
    (repository / "cascade").mkdir()
    (repository / "cascade" / "pipeline.yaml").write_text(CASCADE)
    config: dict[str, object] = {
        "max_batch_size": 1,
        "partitions": 1,
        "default_slo_ms": 60_000,
        "prices": {"core_hour": 3.6 / len(os.sched_getaffinity(0))},  # 1e-6 a millisecond of all cores
        "trace_requests": 20,
    }
    with gateway_server(repository, directory, config) as running:
        yield running


def infer(
    server: GatewayServer, name: str, *, id: str = "", headers: dict[str, str] | None = None, **parameters: object
) -> tuple[int, dict[str, str], dict[str, Any]]:
    values = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [0.01] * 64}
    body = json.dumps({"id": id, "inputs": [values], "parameters": parameters}).encode()
    status, replied, text = server.request("POST", f"/v2/models/{name}/infer", body, headers)
    return status, {key: value for key, value in replied.items() if key.startswith("x-sluice-")}, json.loads(text)


def metrics(server: GatewayServer) -> dict[str, float]:
    lines = server.request("GET", "/metrics")[2].decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith("sluice_"))}


def why(server: GatewayServer, id: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "sluice.gateway.cli.main",
        "why",
        id,
        "--url",
        f"http://{server.http_url}",
        *options,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def check_cascade(explained: dict[str, str]) -> None:
    assert explained["x-sluice-outcome"] == "completed"
    assert explained["x-sluice-plan"] == "first=quick:1*1@cpu0, second=slow:1*1@cpu0"
    stages = [match.groups() for text in explained["x-sluice-stages"].split(", ") if (match := STAGE.fullmatch(text))]
    assert [name for name, *_ in stages] == ["first", "second"]
    figures = [[float(figure) for figure in stage[1:]] for stage in stages]
    for _, _, compute_ms, _, cost in figures:
        assert cost == pytest.approx(compute_ms * 1e-6, rel=0.01)
    assert float(explained["x-sluice-cost"]) == pytest.approx(sum(cost for *_, cost in figures), rel=0.01)
    # Nothing of the time is left out.
    parts_ms = sum(sum(times) for *times, _ in figures)
    assert float(explained["x-sluice-total-ms"]) == pytest.approx(parts_ms, abs=0.1)


def test_http_headers_tell_stages_times_and_costs(server: GatewayServer) -> None:
    status, explained, _ = infer(server, "cascade", headers=EXPLAIN)
    assert status == 200
    check_cascade(explained)
    status, explained, _ = infer(server, "cascade", id="mine", sluice_explain=True)
    assert (status, "x-sluice-request" in explained) == (200, False)
    check_cascade(explained)
    assert infer(server, "quick", id="mine")[:2] == (200, {})


def test_trailing_metadata_tells_the_same(server: GatewayServer) -> None:
    request = service_pb2.ModelInferRequest(model_name="cascade")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 64])
    request.raw_input_contents.append(np.full((1, 64), 0.01, np.float32).tobytes())
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        _, call = stub.ModelInfer.with_call(request, metadata=[("x-sluice-explain", "1")])
        explained = {each.key: each.value for each in call.trailing_metadata()}
        check_cascade(explained)
        assert json.loads(why(server, explained["x-sluice-request"], "--json").stdout)["pipeline"] == "cascade:1"


def test_why_names_what_made_a_request_late(server: GatewayServer) -> None:
    """A quick request behind a slow one, for so long that whatever else holds it up is less."""

    def waited_ms() -> float:
        status, _, text = server.request("GET", "/v2/sluice/requests/r-late")
        return float(json.loads(text)["total_ms"]) if status == 200 else 0

    (worker,) = children(server.process.pid)
    os.kill(worker, signal.SIGSTOP)
    with ThreadPoolExecutor(2) as pool:
        until(lambda: metrics(server)["sluice_arena_used_bytes"] == 0)
        slow = pool.submit(infer, server, "slow", id="r-slow")
        until(lambda: server.is_sent("r-slow", "slow"))
        assert metrics(server)["sluice_arena_used_bytes"] > 0
        quick = pool.submit(infer, server, "quick", id="r-late", headers=EXPLAIN, slo_ms=2000)
        until(lambda: waited_ms() > 3000)
        os.kill(worker, signal.SIGCONT)
        assert slow.result()[0] == 200
        status, explained, _ = quick.result()
    assert (status, explained["x-sluice-outcome"], explained["x-sluice-cause"]) == (200, "completed_late", "queue")
    result = why(server, "r-late")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("request r-late: quick:1, 1 row, completed_late in ")
    assert lines[1].split()[:3] == ["stage", "model", "partition"]
    assert lines[2].split()[:3] == ["quick", "quick:1", "cpu0"]
    assert re.fullmatch(
        r"It was [\d.]+ ms late; the largest cause was waiting behind other requests: [\d.]+ ms, "
        r"all of it for stage 'quick' on cpu0\.",
        lines[-1],
    )
    explanation = json.loads(why(server, "r-late", "--json").stdout)
    assert explanation["cause"] == "queue"
    assert explanation["stages"][0]["queue_ms"] > 2000


def test_what_is_not_remembered_is_said_to_be_so(server: GatewayServer) -> None:
    for number in range(21):
        infer(server, "quick", id=f"r-{number}")
    assert json.loads(why(server, "r-1", "--json").stdout)["outcome"] == "completed"
    result = why(server, "r-0")
    assert (result.returncode, result.stderr) == (
        2,
        f"sluice: http://{server.http_url}: request 'r-0' is not remembered: expected one of the last 20, or of as "
        "many that were not answered in time\n",
    )
    result = subprocess.run(
        [sys.executable, "-m", "sluice.gateway.cli.main", "why", "r-0", "--url", "http://127.0.0.1:1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr == "sluice: http://127.0.0.1:1: cannot be reached: [Errno 111] Connection refused\n"


def test_metrics_count_cost_and_busy_time(server: GatewayServer) -> None:
    infer(server, "slow")
    found = metrics(server)
    costs = sum(value for name, value in found.items() if name.startswith("sluice_cost_total"))
    assert costs == pytest.approx(found['sluice_partition_busy_seconds_total{partition="cpu0"}'] * 1e-3)
    assert found['sluice_cost_per_1000_good_requests{pipeline="slow:1"}'] > 0.1
