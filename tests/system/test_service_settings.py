"""`late`, `percentile` and `client_key` on their way from a user's files to the scheduler of a live server."""

import json
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.batcher.drivers.journal import decode_spec, decode_step, replay
from sluice.batcher.interface.events import RequestArrived, ServingChanged
from sluice.batcher.planner.live import LivePlanner
from sluice.models.pipelines.pipeline import Late
from tests.support.gateway.server import GatewayServer, gateway_server, stop
from tests.support.models.onnx_models import save_mlp

PIPELINE = """
stages:
  only: {model: small, inputs: {x: request.x}}
outputs:
  y: only.y
"""
OWN = PIPELINE + "late: serve\npercentile: 90\nclient_key: x-user\n"
CONFIG = {
    "partitions": 1,
    "max_batch_size": 4,
    "default_slo_ms": 60_000,
    "late": "evict",
    "percentile": 99.9,
    "client_key": "x-tenant",
    "models": {"small": {"late": "serve"}},
}
ROW = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "models"
    save_mlp(directory / "small" / "1" / "model.onnx", [4, 3])
    for name, text in (("plain", PIPELINE), ("own", OWN)):
        (directory / name).mkdir()
        (directory / name / "pipeline.yaml").write_text(text)
    return directory


def ask_over_http(server: GatewayServer, name: str, headers: dict[str, str]) -> None:
    assert server.request("POST", f"/v2/models/{name}/infer", ROW, headers)[0] == 200


def ask_over_grpc(server: GatewayServer, name: str, headers: dict[str, str]) -> None:
    request = service_pb2.ModelInferRequest(model_name=name)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4]).contents.fp32_contents[:] = [1, 2, 3, 4]
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stub.ModelInfer(request, metadata=tuple(headers.items()), timeout=60)


def test_the_scheduler_gets_what_the_files_and_the_clients_say(repository: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    both = {"x-tenant": "acme", "x-user": "ann"}
    with gateway_server(repository, tmp_path, CONFIG, ["--journal", str(journal)]) as server:
        for ask in (ask_over_http, ask_over_grpc):
            ask(server, "plain", both)
            ask(server, "own", both)
            ask(server, "small", {})
        assert stop(server.process) == 0
    first, *steps = journal.read_bytes().splitlines()
    served = {each.name: (each.late, each.percentile) for each in decode_spec(first).pipelines}
    assert served == {
        "small:1": (Late.SERVE, 99.9),
        "plain:1": (Late.EVICT, 99.9),
        "own:1": (Late.SERVE, 90.0),
    }
    events = [decode_step(line).event for line in steps]
    arrived = [(each.pipeline, each.client) for each in events if isinstance(each, RequestArrived)]
    assert arrived == [("plain:1", "acme"), ("own:1", "ann"), ("small:1", "")] * 2


def test_a_pipeline_that_is_loaded_later_has_the_settings_of_the_server(repository: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    config = {**CONFIG, "control": "explicit", "load_models": ["small"]}
    with gateway_server(repository, tmp_path, config, ["--journal", str(journal)]) as server:
        assert server.request("POST", "/v2/repository/models/plain/load", b"{}")[0] == 200
        ask_over_http(server, "plain", {"X-Tenant": "acme"})
        assert stop(server.process) == 0
    lines = journal.read_bytes().splitlines()
    events = [decode_step(line).event for line in lines[1:]]
    (added,) = [each for event in events if isinstance(event, ServingChanged) for each in event.pipelines]
    assert (added.name, added.late, added.percentile) == ("plain:1@1", Late.EVICT, 99.9)
    assert [each.client for each in events if isinstance(each, RequestArrived)] == ["acme"]
    assert replay(lines, LivePlanner()) is None
