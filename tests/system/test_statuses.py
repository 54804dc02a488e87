"""A server with configured statuses, through the real tritonclient."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.gateway.server import gateway_server
from tests.support.models.timed_models import Sent, replay, save_timed

EXPIRES = """dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 600000000
    default_queue_policy { default_timeout_microseconds: 50000 } }"""


@pytest.mark.behaviour("L0_model_queue", "statuses: 429 and 504 where clients expect them", triton="503 only")
@pytest.mark.behaviour("L0_lifecycle", "strict readiness: not ready while a model is broken", through="http grpc")
def test_overload_expiry_and_readiness_are_reported_as_configured(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_timed(repository, "expires", {1: 1}, EXPIRES)
    save_timed(repository, "slow", {1: 50})
    (repository / "torn" / "1").mkdir(parents=True)
    (repository / "torn" / "1" / "model.onnx").write_bytes(b"no model")
    config = {"partitions": 1, "statuses": {"overload": 429, "expired": 504}, "strict_readiness": True}
    with gateway_server(repository, tmp_path, config) as server:
        for client, expired, overload in (
            ("http", "504", "429"),
            ("grpc", "StatusCode.DEADLINE_EXCEEDED", "StatusCode.RESOURCE_EXHAUSTED"),
        ):
            (given_up,) = replay(server, client, [Sent(0, 1, "expires")])
            assert given_up.error == f"{expired} Request timeout expired"
            (hopeless,) = replay(server, client, [Sent(0, 1, "slow", timeout_ms=1)])
            assert hopeless.error.startswith(f"{overload} the request cannot be answered by its deadline")
        row = '{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}'
        body = f'{{"inputs": [{row}], "parameters": {{"timeout": 1}}}}'.encode()
        assert server.request("POST", "/v2/models/slow/infer", body)[0] == 429
        with tritonclient.http.InferenceServerClient(server.http_url) as http:
            assert not http.is_server_ready()
            assert http.is_server_live()
            assert http.is_model_ready("slow")
            assert not http.is_model_ready("torn")
            with pytest.raises(InferenceServerException, match="not an ONNX model"):
                http.get_model_metadata("torn")
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as grpc:
            assert not grpc.is_server_ready()


@pytest.mark.behaviour("L0_metrics", "metrics on a port of their own", through="socket")
def test_metrics_have_a_port_of_their_own_if_one_is_given(tmp_path: Path) -> None:
    save_timed(tmp_path / "models", "m", {1: 1})
    with gateway_server(tmp_path / "models", tmp_path, {"partitions": 1, "metrics_port": 0}) as server:
        (answer,) = replay(server, "http", [Sent()])
        assert answer.error == ""
        port = json.loads((tmp_path / "ready.json").read_text())["metrics_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
            assert b'nv_inference_request_success{model="m",version="1"} 1\n' in response.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2", timeout=60)
