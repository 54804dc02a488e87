"""Requests that are sent ahead of their time on a real server, over both protocols."""

import json
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.timed_models import save_timed

AHEAD_MS = 150


@pytest.fixture(scope="module", params=[0, 1], ids=["without front ends", "with a front end"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("ahead")
    save_timed(directory / "models", "pooled", {1: 1})
    save_timed(directory / "models", "plain", {1: 1})
    settings = {
        "partitions": 1,
        "front_ends": request.param,
        "models": {"pooled": {"instances": {"name": "balance", "lookahead": True}}},
    }
    with gateway_server(directory / "models", directory, settings) as running:
        yield running


def ask(server: GatewayServer, model: str, start_after_ms: object, id: str) -> tuple[int, dict[str, str], object]:
    values = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [2.0]}
    document = {"id": id, "inputs": [values], "parameters": {"start_after_ms": start_after_ms, "sluice_explain": True}}
    status, headers, answer = server.request("POST", f"/v2/models/{model}/infer", json.dumps(document).encode())
    return status, headers, json.loads(answer)


def explained(server: GatewayServer, id: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(server.request("GET", f"/v2/sluice/requests/{id}")[2])
    return found


def test_over_http_it_begins_at_its_time_from_which_its_times_count(server: GatewayServer) -> None:
    status, headers, _ = ask(server, "pooled", AHEAD_MS, "http")
    assert (status, headers["x-sluice-start-after-ms"]) == (200, "150.000")
    explanation = explained(server, "http")
    assert explanation["start_after_ms"] == AHEAD_MS
    assert explanation["deadline_ms"] == 10_000, "the objective counts from the start"
    assert explanation["stages"][0]["queue_ms"] >= 0  # type: ignore[index]  # it did not begin before


def test_over_grpc_it_is_the_same(server: GatewayServer) -> None:
    message = service_pb2.ModelInferRequest(model_name="pooled", id="grpc")
    message.parameters["start_after_ms"].int64_param = AHEAD_MS
    tensor = message.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    tensor.contents.fp32_contents.append(2.0)
    with grpc.insecure_channel(server.grpc_url) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message)
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [2.0]
    assert explained(server, "grpc")["start_after_ms"] == AHEAD_MS


@pytest.mark.parametrize(
    ("model", "value", "problem"),
    [
        ("pooled", 60_001, "parameter 'start_after_ms': expected a number of milliseconds from 0 to 60000, got 60001"),
        (
            "plain",
            1,
            "parameter 'start_after_ms': expected a model with an instance policy, and plain:1 has none",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(server: GatewayServer, model: str, value: int, problem: str) -> None:
    status, _, answer = ask(server, model, value, "refused")
    assert (status, answer) == (400, {"error": problem})
