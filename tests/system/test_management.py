"""The real tritonclient asks a real server of all that is beside inference, over both protocols, plain and TLS."""

import asyncio
import json
import multiprocessing.shared_memory
import queue
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.utils import InferenceServerException

from sluice.models.tensors.spec import DataType
from tests.support.certificates import certificate
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity

SYNC = {"http": tritonclient.http, "grpc": tritonclient.grpc}
AIO = {"http": tritonclient.http.aio, "grpc": tritonclient.grpc.aio}
KEY = {"http": {"admin-key": "s3cret"}, "grpc": {"triton-grpc-protocol-admin-key": "s3cret"}}
ROW = np.array([[1, 2, 3]], np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("management")
    repository = directory / "models"
    for name in ("first", "second"):
        save_identity(repository / name / "1" / "model.onnx", DataType.FP32, [3])
    (repository / "bad" / "1").mkdir(parents=True)
    (repository / "bad" / "1" / "model.onnx").write_bytes(b"no model")
    config: dict[str, object] = {
        "max_batch_size": 4,
        "partitions": 1,
        "allow_client_shm": True,
        "restricted": [{"groups": ["logging"], "header": "admin-key", "value": "s3cret"}],
        "trace": {"file": str(directory / "trace.json"), "rate": 1},
    }
    with gateway_server(repository, directory, config) as running:
        yield running


def url(server: GatewayServer, protocol: str) -> str:
    return server.http_url if protocol == "http" else server.grpc_url


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def client(server: GatewayServer, protocol: str) -> Iterator[Any]:
    with SYNC[protocol].InferenceServerClient(url(server, protocol)) as connected:
        yield connected


def as_json(protocol: str) -> dict[str, bool]:
    return {"as_json": True} if protocol == "grpc" else {}


def given(library: ModuleType, values: Any = ROW) -> list[Any]:
    tensor = library.InferInput("x", values.shape, "FP32")
    tensor.set_data_from_numpy(values)
    return [tensor]


def refused(protocol: str, http: str, grpc_name: str) -> str:
    return http if protocol == "http" else f"StatusCode.{grpc_name}"


@pytest.mark.behaviour("L0_model_config", "the configuration of a model; NOT_FOUND for others")
def test_configuration(client: Any, protocol: str) -> None:
    answer = client.get_model_config("first", **as_json(protocol))
    config = answer if protocol == "http" else answer["config"]
    assert (config["name"], config["max_batch_size"]) == ("first", 4)
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert [int(size) for size in config["input"][0]["dims"]] == [3]
    with pytest.raises(InferenceServerException, match="other") as caught:
        client.get_model_config("other")
    assert caught.value.status() == refused(protocol, "404", "NOT_FOUND")


@pytest.mark.behaviour("L0_server_status", "statistics count requests, rows and batches, and their times add up")
def test_statistics_count_every_request_and_row(client: Any, protocol: str) -> None:
    def counts() -> tuple[int, int, int, int]:
        (entry,) = client.get_inference_statistics("second", **as_json(protocol))["model_stats"]
        rows = int(entry.get("inference_count", 0))
        phases = entry["inference_stats"]
        ns = {name: int(each.get("ns", 0)) for name, each in phases.items()}
        assert ns["success"] == sum(ns[name] for name in ("queue", "compute_input", "compute_infer", "compute_output"))
        executed = sum(
            int(each["batch_size"]) * int(each["compute_infer"]["count"]) for each in entry.get("batch_stats", ())
        )
        succeeded = int(phases["success"].get("count", 0))
        return rows, succeeded, executed, int(entry.get("execution_count", 0))

    before = counts()
    for rows in (1, 2, 4):
        client.infer("second", given(SYNC[protocol], np.zeros((rows, 3), np.float32)))
    after = counts()
    assert [new - old for new, old in zip(after, before, strict=True)] == [7, 3, 7, 3]
    every = client.get_inference_statistics(**as_json(protocol))["model_stats"]
    assert [entry["name"] for entry in every] == ["first", "second"]
    assert all(usage["type"] == "CPU" and int(usage["byte_size"]) > 0 for usage in every[0]["memory_usage"])
    assert len(every[0]["memory_usage"]) == 1


@pytest.mark.behaviour("L0_metrics", "nv_inference_request_success and nv_inference_compute_infer_duration_us")
def test_the_counts_are_exposed_as_metrics(server: GatewayServer) -> None:
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        client.infer("first", given(tritonclient.http))
    text = server.request("GET", "/metrics")[2].decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("nv_inference"))
    assert int(values['nv_inference_request_success{model="first",version="1"}']) >= 1
    assert int(values['nv_inference_compute_infer_duration_us{model="first",version="1"}']) >= 1


@pytest.mark.behaviour("L0_lifecycle", "the index with states and reasons; load and unload are refused in mode none")
def test_the_repository_index_and_its_control_mode(client: Any, protocol: str) -> None:
    def index() -> list[dict[str, str]]:
        answer = client.get_model_repository_index(**as_json(protocol))
        return list(answer if protocol == "http" else answer["models"])

    states = {entry["name"]: (entry.get("version"), entry.get("state")) for entry in index()}
    assert states["first"] == ("1", "READY")
    assert states["bad"][1] == "UNAVAILABLE"
    assert next(entry for entry in index() if entry["name"] == "bad")["reason"]
    for change in (client.load_model, client.unload_model):
        with pytest.raises(
            InferenceServerException, match="explicit model load / unload is not allowed if polling is enabled"
        ) as caught:
            change("first")
        assert caught.value.status() == refused(protocol, "503", "UNAVAILABLE")


@pytest.mark.behaviour("L0_shared_memory", "register, status, register twice, unregister, unregister all")
@pytest.mark.behaviour("L0_cuda_shared_memory", "CUDA shared memory is 501, UNIMPLEMENTED", triton="served")
def test_system_shared_memory_and_none_of_cuda(client: Any, protocol: str) -> None:
    block = multiprocessing.shared_memory.SharedMemory(create=True, size=64)
    try:
        client.register_system_shared_memory("region", f"/{block.name.lstrip('/')}", 32, offset=16)
        answer = client.get_system_shared_memory_status(**as_json(protocol))
        (region,) = answer if protocol == "http" else answer["regions"].values()
        assert (region["name"], int(region["offset"]), int(region["byte_size"])) == ("region", 16, 32)
        with pytest.raises(InferenceServerException, match="already in manager") as caught:
            client.register_system_shared_memory("region", f"/{block.name.lstrip('/')}", 32)
        assert caught.value.status() == refused(protocol, "400", "ALREADY_EXISTS")
        client.unregister_system_shared_memory("region")
        with pytest.raises(InferenceServerException, match="Unable to find"):
            client.get_system_shared_memory_status("region")
        client.unregister_system_shared_memory()
    finally:
        block.close()
        block.unlink()
    with pytest.raises(InferenceServerException, match="CUDA shared memory is not supported") as caught:
        client.get_cuda_shared_memory_status()
    assert caught.value.status() == refused(protocol, "501", "UNIMPLEMENTED")


@pytest.mark.behaviour("L0_trace", "settings of a model trace that many requests; a trace_file is 501, UNIMPLEMENTED")
def test_trace_settings_trace_requests_to_the_file(client: Any, protocol: str, server: GatewayServer) -> None:
    def settings(**changes: Any) -> dict[str, Any]:
        answer = client.update_trace_settings("first", changes, **as_json(protocol))
        if protocol == "http":
            return dict(answer)
        return {
            name: each["value"] if name == "trace_level" else "".join(each.get("value", ()))
            for name, each in answer["settings"].items()
        }

    assert settings(trace_level=["TIMESTAMPS"], trace_count="1")["trace_level"] == ["TIMESTAMPS"]
    for id in (f"{protocol}-1", f"{protocol}-2"):
        client.infer("first", given(SYNC[protocol]), request_id=id)
    assert settings(trace_level=None, trace_count=None)["trace_level"] == ["OFF"]
    traces = json.loads((server.log.parent / "trace.json").read_text())
    assert [each["request_id"] for each in traces if each["request_id"].startswith(protocol)] == [f"{protocol}-1"]
    with pytest.raises(InferenceServerException, match="trace file location can not be updated") as caught:
        settings(trace_file="/tmp/elsewhere")
    assert caught.value.status() == refused(protocol, "501", "UNIMPLEMENTED")


@pytest.mark.behaviour("L0_logging", "log settings are read and changed")
@pytest.mark.behaviour("L0_http", "restricted_api: without the key 403, UNAVAILABLE")
def test_log_settings_are_for_those_with_the_key(client: Any, protocol: str) -> None:
    with pytest.raises(InferenceServerException, match="This protocol is restricted") as caught:
        client.get_log_settings()
    assert caught.value.status() == refused(protocol, "403", "UNAVAILABLE")
    answer = client.update_log_settings({"log_verbose_level": 1}, headers=KEY[protocol], **as_json(protocol))
    level = (
        answer["log_verbose_level"] if protocol == "http" else answer["settings"]["log_verbose_level"]["uint32_param"]
    )
    assert level == 1
    client.update_log_settings({"log_verbose_level": 0}, headers=KEY[protocol])


@pytest.mark.behaviour("L0_grpc", "a stream answers each request by its id; a bad one does not end it", through="grpc")
@pytest.mark.behaviour("L0_decoupled", "triton_enable_empty_final_response marks the final response", through="grpc")
def test_a_stream_answers_each_request_and_survives_a_bad_one(server: GatewayServer) -> None:
    replies: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: replies.put((result, error)))
        for number in range(20):
            client.async_stream_infer(
                "other" if number == 7 else "first",
                given(tritonclient.grpc, ROW + number),
                request_id=str(number),
                enable_empty_final_response=number == 3,
            )
        answers, errors = {}, []
        for _ in range(20):
            result, error = replies.get(timeout=60)
            if error is None:
                response = result.get_response()
                answers[response.id] = result.as_numpy("y").tolist()
                assert ("triton_final_response" in response.parameters) == (response.id == "3")
            else:
                errors.append(error.message())
        client.stop_stream()
    assert answers == {str(number): (ROW + number).tolist() for number in range(20) if number != 7}
    assert errors == ["Request for unknown model: 'other' is not found"]


@pytest.mark.behaviour(
    "L0_server_status", "the asyncio clients ask for statistics, index and shared memory", through="http.aio grpc.aio"
)
def test_the_asyncio_clients_manage_as_well(server: GatewayServer, protocol: str) -> None:
    async def run() -> None:
        async with AIO[protocol].InferenceServerClient(url(server, protocol)) as client:
            statistics = await client.get_inference_statistics("first", **as_json(protocol))
            assert statistics["model_stats"][0]["name"] == "first"
            index = await client.get_model_repository_index(**as_json(protocol))
            assert len(index if protocol == "http" else index["models"]) == 3
            with pytest.raises(InferenceServerException, match="CUDA shared memory is not supported"):
                await client.unregister_cuda_shared_memory("r")

    asyncio.run(run())


@pytest.mark.behaviour("L0_grpc", "grpc.health.v1 says SERVING when ready", through="grpc")
def test_health_is_served_to_orchestrators(server: GatewayServer) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.behaviour("L0_https", "TLS with certificates of clients; strangers are turned away", through="https grpc")
def test_tls_over_both_protocols_with_certificates_of_clients(tmp_path: Path) -> None:
    for name, signer in (("authority", None), ("server", "authority"), ("client", "authority"), ("stranger", None)):
        certificate(tmp_path, name, signer)
    file = save_identity(tmp_path / "first.onnx", DataType.FP32, [3])
    authority = str(tmp_path / "authority.pem")
    config: dict[str, object] = {
        "partitions": 1,
        "tls": {
            "certificate": str(tmp_path / "server.pem"),
            "key": str(tmp_path / "server.key"),
            "client_ca": authority,
        },
    }
    with gateway_server(file, tmp_path, config) as running:
        for name, welcome in (("client", True), ("stranger", False)):
            pem, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
            context = ssl.create_default_context(cafile=authority)
            context.load_cert_chain(pem, key)
            assert _reached(lambda: _over_http(running, context), OSError) == welcome  # noqa: B023
            secure = tritonclient.grpc.InferenceServerClient(
                running.grpc_url,
                ssl=True,
                root_certificates=authority,
                private_key=str(key),
                certificate_chain=str(pem),
            )
            assert _reached(lambda: _over_grpc(secure), InferenceServerException) == welcome  # noqa: B023
            secure.close()


def _reached(call: Any, trouble: type[Exception]) -> bool:
    try:
        call()
    except trouble:
        return False
    return True


def _over_http(server: GatewayServer, context: ssl.SSLContext) -> None:
    body = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
    address = f"https://{server.http_url}/v2/models/first/infer"
    request = urllib.request.Request(address, json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60, context=context) as reply:
        assert json.load(reply)["outputs"][0]["data"] == [1, 2, 3]


def _over_grpc(client: Any) -> None:
    result = client.infer("first", given(tritonclient.grpc), client_timeout=60)
    assert result.as_numpy("y").tolist() == ROW.tolist()
