"""Who may do what at the ports of a running server: on the loopback and on a network, over HTTP and gRPC."""

import http.client
import json
import os
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc
import tritonclient.http
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from sluice.gateway.config.front_door import GrpcServerKind
from sluice.models.tensors.spec import DataType
from tests.support.certificates import certificate
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity

CODE = b"open('ran', 'w').close()\ndef infer(inputs):\n    return {'y': inputs['x']}\n"
CONFIG = {
    "backend": "python",
    "max_batch_size": 4,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3]}],
}
KEY = {"groups": ["model-repository"], "header": "admin-key", "value": "s3cret"}
WITH_KEY = {"admin-key": "s3cret"}
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}).encode()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("access") / "models"
    save_identity(repository / "first" / "1" / "model.onnx", DataType.FP32, [3])
    return repository


@pytest.fixture(scope="module")
def loopback(repository: Path) -> Iterator[GatewayServer]:
    config: dict[str, object] = {"partitions": 1, "control": "explicit", "load_models": ["first"]}
    config |= {"allow_client_shm": True, "client_shm_prefix": "mine_", "cors": {"origins": ["https://app.example"]}}
    with gateway_server(repository, repository.parent, config) as running:
        yield running


def uploads(server: GatewayServer, name: str, file: str, content: bytes, config: dict[str, object]) -> list[str]:
    """The errors of a load with a file over HTTP and over gRPC; "" for a load."""
    errors = []
    for library, url in ((tritonclient.http, server.http_url), (tritonclient.grpc, server.grpc_url)):
        with library.InferenceServerClient(url) as client:
            try:
                client.load_model(name, config=json.dumps(config), files={f"file:{file}": content}, headers=WITH_KEY)
            except InferenceServerException as error:
                errors.append(str(error))
            else:
                errors.append("")
    return errors


@pytest.mark.parametrize(
    ("file", "config"),
    [
        ("1/model.py", CONFIG),
        ("1/MODEL.PY", CONFIG),
        ("1/weights.bin", CONFIG | {"default_model_filename": "weights.bin"}),
        ("1/model.onnx", CONFIG | {"default_model_filename": "model.onnx"}),
        ("1/library.so", {"backend": "onnxruntime"}),
    ],
)
def test_code_is_not_taken_from_clients(loopback: GatewayServer, file: str, config: dict[str, object]) -> None:
    for error in uploads(loopback, "given", file, CODE, config):
        assert "--allow-upload" in error
    assert not (Path.cwd() / "ran").exists()


def test_data_is_taken_from_clients_as_before(loopback: GatewayServer, repository: Path) -> None:
    content = (repository / "first" / "1" / "model.onnx").read_bytes()
    assert uploads(loopback, "data", "1/model.onnx", content, {"backend": "onnxruntime"}) == ["", ""]
    assert loopback.request("POST", "/v2/models/data/infer", BODY)[0] == 200


def test_code_is_taken_with_the_option(repository: Path, tmp_path: Path) -> None:
    config: dict[str, object] = {"partitions": 1, "control": "explicit"}
    code = CODE.replace(b"'ran'", repr(str(tmp_path / "ran")).encode())
    with gateway_server(repository, tmp_path, config, ["--allow-upload"]) as running:
        assert uploads(running, "given", "1/model.py", code, CONFIG) == ["", ""]
        assert (tmp_path / "ran").exists()


def test_a_page_of_another_site_is_refused_over_sockets(loopback: GatewayServer) -> None:
    given = {"parameters": {"config": json.dumps(CONFIG), "file:1/model.py": ""}}
    load, body = "/v2/repository/models/evil/load", json.dumps(given).encode()
    page = {"Origin": "https://evil.example"}
    assert loopback.request("POST", load, body, page | {"Content-Type": "application/json"})[0] == 403
    assert loopback.request("POST", load, body, {"Content-Type": "text/plain"})[0] == 415
    assert loopback.request("POST", load, body, {"Host": "evil.example"})[0] == 421
    assert loopback.request("POST", "/v2/models/first/infer", BODY, page)[0] == 403
    assert loopback.request("POST", "/v2/models/first/infer", BODY, {"Host": "evil.example"})[0] == 421
    status, headers, _ = loopback.request("POST", "/v2/models/first/infer", BODY, {"Origin": "https://app.example"})
    assert (status, headers["access-control-allow-origin"]) == (200, "https://app.example")


def test_a_refused_request_leaves_its_connection_in_order(loopback: GatewayServer) -> None:
    infer = b"POST /v2/models/first/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n"
    foreign = infer % (len(BODY), b"Origin: https://evil.example\r\n") + BODY
    with socket.create_connection(("127.0.0.1", loopback.http_port), timeout=60) as client:
        client.sendall(foreign + infer % (len(BODY), b"Connection: close\r\n") + BODY)
        answers = b"".join(iter(lambda: client.recv(65536), b""))
    assert re.findall(rb"HTTP/1\.1 (\d+)", answers) == [b"403", b"200"]


def test_load_balancers_ask_with_head(loopback: GatewayServer) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/first/ready", "/v2", "/metrics"):
        got, asked = (loopback.request(method, path) for method in ("GET", "HEAD"))
        assert (asked[0], asked[2]) == (got[0], b"") == (200, b"")
        if path != "/metrics":
            assert asked[1]["content-length"] == got[1]["content-length"]
    assert loopback.request("HEAD", "/v2/models/none/ready")[0] == 404
    assert loopback.request("OPTIONS", "/v2/health/ready")[1]["allow"] == "GET, HEAD, OPTIONS"


def test_only_shared_memory_with_the_prefix_is_registered(loopback: GatewayServer) -> None:
    keys = [f"/mine_{os.getpid()}", f"/other_{os.getpid()}"]
    for key in keys:
        Path(f"/dev/shm{key}").write_bytes(bytes(64))
    try:
        for library, url in ((tritonclient.http, loopback.http_url), (tritonclient.grpc, loopback.grpc_url)):
            with library.InferenceServerClient(url) as client:
                client.register_system_shared_memory("mine", keys[0], 64)
                with pytest.raises(InferenceServerException, match="--client-shm-prefix, which is 'mine_'"):
                    client.register_system_shared_memory("other", keys[1], 64)
                client.unregister_system_shared_memory()
    finally:
        for key in keys:
            Path(f"/dev/shm{key}").unlink()


def test_management_is_closed_on_a_network_and_inference_is_not(repository: Path, tmp_path: Path) -> None:
    config: dict[str, object] = {"partitions": 1, "control": "explicit", "load_models": ["first"], "host": "0.0.0.0"}
    config |= {"allow_client_shm": True, "restricted": [KEY]}
    with gateway_server(repository, tmp_path, config, ["--open-group", "logging"]) as running:
        for method, path in (
            ("POST", "/v2/trace/setting"),
            ("GET", "/v2/systemsharedmemory/status"),
            ("POST", "/v2/sluice/partitions/cpu0/resize"),
            ("GET", "/v2/sluice/requests/1"),
        ):
            status, _, body = running.request(method, path)
            assert (status, b"--open-group" in body) == (403, True)
        assert running.request("POST", "/v2/repository/index")[0] == 403
        assert running.request("POST", "/v2/repository/index", headers=WITH_KEY)[0] == 200
        for path in ("/v2/logging", "/metrics", "/v2/health/ready", "/v2/models/first", "/v2/models/stats"):
            assert running.request("GET", path, headers={"Host": "gateway.example"})[0] == 200
        assert running.request("POST", "/v2/models/first/infer", BODY, {"Host": "gateway.example"})[0] == 200
        for error in uploads(running, "given", "1/model.py", CODE, CONFIG):
            assert "--allow-upload" in error or "restricted" in error
        with tritonclient.grpc.InferenceServerClient(running.grpc_url) as client:
            assert client.is_server_ready()
            with pytest.raises(InferenceServerException, match="--open-group trace") as caught:
                client.get_trace_settings()
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
        log = running.log.read_text()
    assert "groups open to everyone who reaches the ports groups=health,metadata,inference,model-config," in log
    assert "groups open with a key groups=model-repository" in log
    assert "groups closed groups=shared-memory,trace,partitions,explain" in log


def test_metrics_and_reflection_can_have_a_key(repository: Path, tmp_path: Path) -> None:
    config: dict[str, object] = {"partitions": 1, "metrics_port": 0}
    config["restricted"] = [{**KEY, "groups": ["metrics", "reflection"]}]
    with gateway_server(repository, tmp_path, config) as running:
        ports = [running.http_port, json.loads((tmp_path / "ready.json").read_text())["metrics_port"]]
        for port in ports:
            asked: list[dict[str, str]] = [{}, WITH_KEY, WITH_KEY | {"Host": "evil.example"}]
            assert [_metrics(port, headers) for headers in asked] == [403, 200, 421]
        with grpc.insecure_channel(running.grpc_url) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            question = reflection_pb2.ServerReflectionRequest(list_services="")
            with pytest.raises(grpc.RpcError):
                next(stub.ServerReflectionInfo(iter([question])))
            key = (("triton-grpc-protocol-admin-key", "s3cret"),)
            assert next(stub.ServerReflectionInfo(iter([question]), metadata=key)).list_services_response.service


def _metrics(port: int, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics", headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize("kind", list(GrpcServerKind))
def test_certificates_are_read_again_when_they_change(repository: Path, tmp_path: Path, kind: GrpcServerKind) -> None:
    for name in ("old", "new"):
        certificate(tmp_path, name, None)
    _replace(tmp_path, "old")
    config: dict[str, object] = {"partitions": 1, "grpc_server": kind}
    config["tls"] = {"certificate": str(tmp_path / "used.pem"), "key": str(tmp_path / "used.key")}
    with gateway_server(repository, tmp_path, config) as running:
        assert _welcomes(tmp_path, running) == {"old": True, "new": False}
        kept = http.client.HTTPSConnection(
            "127.0.0.1", running.http_port, context=ssl.create_default_context(cafile=tmp_path / "old.pem"), timeout=60
        )
        kept.request("GET", "/v2/health/ready")
        assert kept.getresponse().read() == b'{"ready":true}'
        (tmp_path / "used.pem").write_bytes((tmp_path / "new.pem").read_bytes())
        assert _welcomes(tmp_path, running) == {"old": True, "new": False}  # the key does not fit yet
        _replace(tmp_path, "new")
        assert _welcomes(tmp_path, running) == {"old": False, "new": True}
        kept.request("GET", "/v2/health/ready")
        assert kept.getresponse().status == 200
        kept.close()
        assert "the old certificate stays" in running.log.read_text()


def _replace(directory: Path, name: str) -> None:
    for kind in ("pem", "key"):
        scratch = directory / f"scratch.{kind}"
        scratch.write_bytes((directory / f"{name}.{kind}").read_bytes())
        scratch.rename(directory / f"used.{kind}")


def _welcomes(directory: Path, server: GatewayServer) -> dict[str, bool]:
    """For each certificate, if clients that trust it reach the server; over HTTP and gRPC alike."""
    found = {}
    for name in ("old", "new"):
        context = ssl.create_default_context(cafile=directory / f"{name}.pem")
        connection = http.client.HTTPSConnection("127.0.0.1", server.http_port, context=context, timeout=60)
        try:
            connection.request("GET", "/v2/health/live")
            found[name] = connection.getresponse().status == 200
        except ssl.SSLError:
            found[name] = False
        finally:
            connection.close()
        credentials = grpc.ssl_channel_credentials((directory / f"{name}.pem").read_bytes())
        with grpc.secure_channel(server.grpc_url, credentials) as channel:
            ask: Any = channel.unary_unary(
                "/inference.GRPCInferenceService/ServerLive",
                service_pb2.ServerLiveRequest.SerializeToString,
                service_pb2.ServerLiveResponse.FromString,
            )
            try:
                live = ask(service_pb2.ServerLiveRequest(), timeout=20).live
            except grpc.RpcError:
                live = False
        assert live == found[name]
    return found


def test_a_server_that_would_take_code_from_everyone_does_not_start(repository: Path, tmp_path: Path) -> None:
    reason = "allow_upload: expected a key in restricted for the group model-repository"
    serving = gateway_server(repository, tmp_path, {"host": "0.0.0.0"}, ["--allow-upload"])
    with pytest.raises(RuntimeError, match=reason), serving:
        pass
