"""The landing line of a server that is ready: every address in it answers."""

import json
import socket
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.models.tensors.spec import DataType
from tests.support.certificates import certificate
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity

ADDRESSES = ("page", "docs", "http", "metrics")
PIPELINE = """
stages:
  first: {model: m, inputs: {x: request.x}}
outputs:
  y: first.y
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    save_identity(models / "m" / "1" / "model.onnx", DataType.FP32, [2])
    (models / "broken" / "1").mkdir(parents=True)
    (models / "broken" / "1" / "model.onnx").write_text("no model")
    (models / "p").mkdir()
    (models / "p" / "pipeline.yaml").write_text(PIPELINE)
    return models


def landing(server: GatewayServer) -> dict[str, Any]:
    """The line of a server that logs JSON, that it is ready."""
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    (found,) = (line for line in lines if line["event"] == "server ready")
    return found  # type: ignore[no-any-return]


def status(url: str, context: ssl.SSLContext | None = None) -> int:
    with urllib.request.urlopen(url, timeout=60, context=context) as answer:
        return int(answer.status)


def test_every_address_answers_on_all_addresses(repository: Path, tmp_path: Path) -> None:
    host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    config = {"host": host, "metrics_port": 0, "partitions": 1}
    with gateway_server(repository, tmp_path, config, ["--log-format", "json"]) as server:
        line = landing(server)
        assert line["http"] == f"http://localhost:{server.http_port}"
        assert line["grpc"] == f"localhost:{server.grpc_port}"
        assert line["metrics"] != f"{line['http']}/metrics"
        assert [status(line[name]) for name in ADDRESSES] == [200, 200, 200, 200]
        browser = urllib.request.Request(line["page"], headers={"accept": "text/html"})
        with urllib.request.urlopen(browser, timeout=60) as page:
            assert page.headers["content-type"] == "text/html; charset=utf-8"
        with grpc.insecure_channel(line["grpc"]) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=60).live
        assert [line[name] for name in ("models", "pipelines", "not_served", "partitions")] == [1, 1, 1, 1]


def test_with_certificates_it_is_https(repository: Path, tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    files = {"certificate": str(tmp_path / "server.pem"), "key": str(tmp_path / "server.key")}
    with gateway_server(repository, tmp_path, {"tls": files, "partitions": 1}, ["--log-format", "json"]) as server:
        line = landing(server)
        context = ssl.create_default_context(cafile=files["certificate"])
        assert line["http"] == f"https://127.0.0.1:{server.http_port}"
        assert [status(line[name], context) for name in ADDRESSES] == [200, 200, 200, 200]
