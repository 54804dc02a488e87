"""A stage competes on a real server: the quicker of two partitions answers, and the journal replays."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from sluice.batcher.drivers.journal import replay
from sluice.batcher.planner.live import LivePlanner
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server

CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
"""
MODEL = """
import os
import time

def infer(inputs):
    x = inputs["x"]
    if x[0, 0] > 0:  # of two runs of the same row, the one that comes first is slow
        try:
            os.close(os.open(f"%s/{x[0, 0]:.0f}", os.O_CREAT | os.O_EXCL))
            time.sleep(2)
        except FileExistsError:
            pass
    return {"y": x + 1}
"""
PIPELINE = """
stages:
  only: {model: slow, inputs: {x: request.x}, compete: {copies: %d, after: %s}}
outputs: {y: only.y}
"""
SLOW_MS = 2000


def serve(directory: Path, partitions: object = 2) -> AbstractContextManager[GatewayServer]:
    """A server with two competing pipelines, which writes `journal`."""
    repository = directory / "models"
    (repository / "slow" / "1").mkdir(parents=True)
    (repository / "slow" / "config.pbtxt").write_text(CONFIG)
    (repository / "slow" / "1" / "model.py").write_text(MODEL % (directory / "ran"))
    for name, after in (("atonce", "0"), ("hedged", "50")):
        (repository / name).mkdir()
        (repository / name / "pipeline.yaml").write_text(PIPELINE % (2, after))
    (directory / "ran").mkdir()
    config = {"partitions": partitions, "default_slo_ms": 60_000, "control": "explicit", "load_models": ["*"]}
    return gateway_server(repository, directory, config, ["--journal", str(directory / "journal")])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("competing")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[GatewayServer]:
    with serve(directory) as running:
        yield running
    # The journal is complete once the server has stopped: it leads to the same decisions again.
    assert replay((directory / "journal").read_bytes().splitlines(), LivePlanner()) is None
    assert "Traceback" not in running.log.read_text()


def closed_by(server: GatewayServer, id: str) -> list[str]:
    """Why the batches of a request were closed, for those that have ended."""
    body = server.request("GET", f"/v2/sluice/requests/{id}")[2]
    return [stage["closed"] for stage in json.loads(body)["stages"]]


@pytest.mark.parametrize(("pipeline", "x"), [("atonce", 1.0), ("hedged", 2.0)])
def test_the_quicker_partition_answers_over_http(server: GatewayServer, pipeline: str, x: float) -> None:
    id = f"request-{pipeline}"
    values = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}
    body = json.dumps({"id": id, "inputs": [values]}).encode()
    status, headers, answer = server.request("POST", f"/v2/models/{pipeline}/infer", body, {"x-sluice-explain": "1"})
    assert status == 200, answer
    assert json.loads(answer)["outputs"][0]["data"] == [x + 1]
    assert float(headers["x-sluice-total-ms"]) < SLOW_MS
    until(lambda: len(closed_by(server, id)) == 2)
    reasons = closed_by(server, id)
    assert "compete" in reasons
    assert len(set(reasons)) == 2


def test_the_quicker_partition_answers_over_grpc(server: GatewayServer) -> None:
    tensor = tritonclient.grpc.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[3]], np.float32))
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        answer = client.infer("atonce", [tensor], client_timeout=SLOW_MS / 1000)
    assert answer.as_numpy("y").tolist() == [[4]]


def test_a_stage_with_more_copies_than_partitions_is_refused_at_load(server: GatewayServer, directory: Path) -> None:
    (directory / "models" / "three").mkdir()
    (directory / "models" / "three" / "pipeline.yaml").write_text(PIPELINE % (3, "p90"))
    status, _, body = server.request("POST", "/v2/repository/models/three/load", b"{}")
    reason = "stages.only.compete: 2 partitions may hold model slow:1; expected at least 3, one for each copy"
    assert status == 400, body
    assert reason in json.loads(body)["error"]
