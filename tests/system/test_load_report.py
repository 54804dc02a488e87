"""Load reports on responses, as Triton's clients ask for them."""

import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.http
from tritonclient.grpc import service_pb2

from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_mlp

ASKED = "endpoint-load-metrics-format"


@pytest.fixture(scope="module", params=[0, 1], ids=["one-process", "front-end"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory: Path = tmp_path_factory.mktemp("load")
    save_mlp(directory / "models" / "m" / "1" / "model.onnx", [4, 2])
    with gateway_server(directory / "models", directory, {"partitions": 1, "front_ends": request.param}) as running:
        yield running


def body(slo_ms: float = 60_000) -> bytes:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0.0] * 4}
    return json.dumps({"inputs": [tensor], "parameters": {"slo_ms": slo_ms}}).encode()


def test_a_client_over_http_gets_the_report_in_its_format_and_others_get_none(server: GatewayServer) -> None:
    for asked, begin in (("text", "TEXT application_utilization="), ("json", "JSON {"), ("JSON", "JSON {")):
        status, headers, _ = server.request("POST", "/v2/models/m/infer", body(), {ASKED: asked})
        assert (status, headers["endpoint-load-metrics"][: len(begin)]) == (200, begin)
    status, headers, _ = server.request("POST", "/v2/models/m/infer", body(), {ASKED: "bin"})
    assert (status, "endpoint-load-metrics-bin" in headers) == (200, True)
    for without in ({}, {ASKED: "xml"}):
        status, headers, _ = server.request("POST", "/v2/models/m/infer", body(), without)
        assert (status, [name for name in headers if name.startswith("endpoint")]) == (200, [])


def test_refused_requests_have_the_report_as_well(server: GatewayServer) -> None:
    status, headers, _ = server.request("POST", "/v2/models/m/infer", body(slo_ms=1e-6), {ASKED: "text"})
    assert status in (503, 504)
    assert "named_metrics.queue_requests=" in headers["endpoint-load-metrics"]


def test_tritons_client_passes_the_header_on(server: GatewayServer) -> None:
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        x = tritonclient.http.InferInput("x", [1, 4], "FP32")
        x.set_data_from_numpy(np.zeros((1, 4), np.float32))
        answer = client.infer("m", [x], headers={ASKED: "json"})
        assert answer.as_numpy("y").shape == (1, 2)


@contextmanager
def recorded(port: int) -> Iterator[tuple[int, bytearray]]:
    """A port that leads to another one, and the bytes that have come back from there."""
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def relay() -> None:
            client, _ = listener.accept()
            with client, socket.create_connection(("127.0.0.1", port)) as server:
                ways = {client: server, server: client}
                while True:
                    for end in select.select(list(ways), [], [])[0]:
                        data = end.recv(1 << 16)
                        if not data:
                            return
                        if end is server:
                            seen.extend(data)
                        ways[end].sendall(data)

        thread = threading.Thread(target=relay)
        thread.start()
        yield listener.getsockname()[1], seen
        thread.join(60)


def test_calls_over_grpc_end_with_the_message_in_their_metadata(server: GatewayServer) -> None:
    """The core of grpcio keeps the message for its balancers, so it is looked for on the wire."""
    request = service_pb2.ModelInferRequest(model_name="m")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4]).contents.fp32_contents.extend([0.0] * 4)
    for asked, has_text, has_message in (("text", True, True), ("bin", False, True), ("", False, False)):
        with (
            recorded(server.grpc_port) as (port, seen),
            grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel,
        ):
            infer = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=service_pb2.ModelInferRequest.SerializeToString,
                response_deserializer=service_pb2.ModelInferResponse.FromString,
            )
            _, call = infer.with_call(request, metadata=((ASKED, asked),) if asked else (), timeout=60)
            trailing = dict(call.trailing_metadata())
            assert str(trailing.get("endpoint-load-metrics", "")).startswith("TEXT ") is has_text
        assert (b"endpoint-load-metrics-bin" in seen) is has_message
