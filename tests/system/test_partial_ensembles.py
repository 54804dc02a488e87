"""An ensemble answers on time with the members that are there, and says so, on a real server."""

import json
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server

CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
"""
MODEL = """
import time

def infer(inputs):
    x = inputs["x"]
    if %r and x[0, 0] > 0:
        time.sleep(4)
    return {"y": x + %d}
"""
PIPELINE = """
slo_ms: 3000
stages:
  quick: {model: quick, inputs: {x: request.x}}
  slow: {model: slow, inputs: {x: request.x}}
  both: {combine: mean, of: [quick.y, slow.y], on_late: partial}
outputs: {y: both.y}
"""
NOTE = "both;members=1/2;confidence=0.500"


@pytest.fixture(scope="module", params=[0, 1], ids=["without front ends", "with a front end"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("partial")
    repository = directory / "models"
    for name, sleeps, added in (("quick", False, 1), ("slow", True, 3)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CONFIG)
        (repository / name / "1" / "model.py").write_text(MODEL % (sleeps, added))
    (repository / "pair").mkdir()
    (repository / "pair" / "pipeline.yaml").write_text(PIPELINE)
    config: dict[str, object] = {"partitions": 1, "front_ends": request.param}
    with gateway_server(repository, directory, config) as running:
        yield running


def infer(server: GatewayServer, x: float, id: str, **parameters: float) -> tuple[float, dict[str, str]]:
    values = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}
    body = json.dumps({"id": id, "inputs": [values], "parameters": parameters}).encode()
    status, headers, answer = server.request("POST", "/v2/models/pair/infer", body)
    assert status == 200, answer
    return json.loads(answer)["outputs"][0]["data"][0], headers


def test_an_ensemble_waits_for_members_that_are_on_time(server: GatewayServer) -> None:
    y, headers = infer(server, -1.0, "whole", slo_ms=60_000)
    assert y == 1.0
    assert "x-sluice-partial" not in headers


def test_an_ensemble_joins_what_is_there_and_says_so(server: GatewayServer) -> None:
    y, headers = infer(server, 1.0, "partial")
    assert (y, headers["x-sluice-partial"]) == (2.0, NOTE)
    _, _, body = server.request("GET", "/v2/sluice/requests/partial")
    explanation = json.loads(body)
    assert explanation["outcome"] in ("completed", "completed_late")  # late where the machine is busy
    assert explanation["reason"] == "stage 'both' joined 1 of 2 members"
    assert b'sluice_partial_joins_total{pipeline="pair:1"} 1' in server.request("GET", "/metrics")[2]
    # The slow member is not stopped.
    until(lambda: len(json.loads(server.request("GET", "/v2/sluice/requests/partial")[2])["stages"]) == 2)


def test_grpc_has_it_in_the_trailing_metadata(server: GatewayServer) -> None:
    infer(server, -2.0, "before", slo_ms=60_000)
    message = service_pb2.ModelInferRequest(model_name="pair")
    tensor = message.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    tensor.contents.fp32_contents.append(2.0)
    with grpc.insecure_channel(server.grpc_url) as channel:
        answer, call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.with_call(message)
    assert dict(call.trailing_metadata())["x-sluice-partial"] == NOTE
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [3.0]
