"""Every endpoint over plain sockets and every call over gRPC, with their statuses, as clients of Triton expect them."""

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_fixed_batch, save_identity

ONE = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("endpoints")
    repository = directory / "models"
    for version in (1, 3):
        save_identity(repository / "m" / str(version) / "model.onnx", DataType.FP32, [2])
    save_fixed_batch(repository / "fixed" / "1" / "model.onnx")
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    for ignored in ("notes", "02"):
        (repository / "m" / ignored).mkdir()
    config = {"partitions": 1, "trace": {"file": str(directory / "trace.json")}}
    with gateway_server(repository, directory, config) as running:
        yield running


class Route(NamedTuple):
    """A request and its answer: `has` are the keys of the object, or of the first one of the list."""

    method: str
    path: str
    status: int = 200
    has: str = ""
    body: Any = None
    triton: str = ""


ROUTES = [
    Route("GET", "/v2/health/live"),
    Route("GET", "/v2/health/ready", triton="400 while a model is broken, unless readiness is not strict"),
    Route("GET", "/v2/models/m/ready"),
    Route("GET", "/v2/models/m/versions/3/ready"),
    Route("GET", "/v2", has="name version extensions"),
    Route("GET", "/v2/models/m", has="name versions platform inputs outputs"),
    Route("GET", "/v2/models/m/versions/1", has="name versions platform inputs outputs"),
    Route("GET", "/v2/models/m/config", has="name max_batch_size input output"),
    Route("GET", "/v2/models/m/versions/1/config", has="name max_batch_size input output"),
    Route("GET", "/v2/models/stats", has="model_stats"),
    Route("GET", "/v2/models/m/stats", has="model_stats"),
    Route("GET", "/v2/models/m/versions/1/stats", has="model_stats"),
    Route("POST", "/v2/models/m/infer", has="model_name model_version outputs", body=ONE),
    Route("POST", "/v2/models/m/versions/1/infer", has="model_name model_version outputs", body=ONE),
    Route("POST", "/v2/repository/index", has="name"),
    Route("POST", "/v2/repository/index", has="name version state", body={"ready": True}),
    Route("GET", "/v2/trace/setting", has="trace_level trace_rate trace_count log_frequency trace_file trace_mode"),
    Route("POST", "/v2/trace/setting", has="trace_level", body={"trace_rate": "10"}),
    Route("GET", "/v2/models/m/trace/setting", has="trace_level trace_rate"),
    Route("POST", "/v2/models/m/trace/setting", has="trace_level", body={"trace_count": None}),
    Route("GET", "/v2/logging", has="log_file log_info log_warning log_error log_verbose_level log_format"),
    Route("POST", "/v2/logging", has="log_info", body={"log_info": True}),
    Route("GET", "/metrics"),
    Route("GET", "/v2/models/m/versions/2/ready", 404),
    Route("GET", "/v2/models/m/versions/2", 404),
    Route("GET", "/v2/models/other", 404),
    Route("GET", "/v2/models/other/config", 404),
    Route("GET", "/v2/models/other/stats", 404),
    Route("GET", "/v2/models/other/ready", 404),
    Route("GET", "/v2/models/broken/ready", 503),
    Route("GET", "/v2/models/m/versions/one", 404),
    Route("GET", "/v2/models/m/versions/-1", 404),
    Route("GET", "/v2/models/m/versions/1/trace/setting", 404),
    Route("GET", "/v2/nothing", 404),
    Route("GET", "/v1/nothing", 404),
    Route("GET", "/v2/models/m/infer", 405),
    Route("POST", "/v2/models/m/config", 405),
    Route("DELETE", "/v2/health/live", 405),
    Route("GET", "/v2/models/m/generate", 405),
    Route("POST", "/v2/models/m/generate", 400, body={"text_input": "a"}),
    Route("POST", "/v2/models/m/generate_stream", 400, body={"text_input": "a"}),
    Route("POST", "/v2/repository/elsewhere/index", 501),
    Route("POST", "/v2/repository/elsewhere/models/m/load", 501),
    Route("POST", "/v2/repository/elsewhere/models/m/unload", 501),
    Route("POST", "/v2/repository/models/m/load", 503, body={}),
    Route("POST", "/v2/repository/models/m/unload", 503, body={"parameters": {"unload_dependents": True}}),
    Route("GET", "/v2/systemsharedmemory/status", 501),
    Route("POST", "/v2/systemsharedmemory/region/r/register", 501, body={"key": "/k", "byte_size": 8}),
    Route("POST", "/v2/systemsharedmemory/unregister", 501),
    Route("GET", "/v2/cudasharedmemory/status", 501, triton="served"),
    Route("POST", "/v2/cudasharedmemory/region/r/register", 501, body={}, triton="served"),
    Route("POST", "/v2/trace/setting", 501, body={"trace_file": "/tmp/x"}),
    Route("POST", "/v2/trace/setting", 400, body={"trace_level": ["OFF", "TIMESTAMPS"]}),
    Route("POST", "/v2/trace/setting", 400, body={"trace_rate": "often"}),
    Route("POST", "/v2/trace/setting", 400, body={"trace_count": "-2"}),
    Route("POST", "/v2/trace/setting", 501, body={"trace_level": ["TENSORS"]}, triton="200"),
    Route("POST", "/v2/logging", 501, body={"log_file": "/tmp/x"}),
    Route("POST", "/v2/logging", 400, body={"log_format": "colourful"}, triton="503"),
    Route("POST", "/v2/logging", 400, body={"log_info": "yes"}),
    Route("POST", "/v2/logging", 400, body={"log_everything": True}),
    Route("POST", "/v2/repository/index", 400, body=[1]),
]


def routes() -> Iterator[Any]:
    for number, route in enumerate(ROUTES):
        given = "" if route.body in (None, ONE) else f" {json.dumps(route.body)}"
        text = f"{route.method} {route.path}{given}: {route.status}".replace("{", "{{").replace("}", "}}")
        mark = pytest.mark.behaviour("L0_http", text, triton=route.triton)
        yield pytest.param(route, marks=mark, id=str(number))


@pytest.mark.parametrize("route", list(routes()))
def test_an_endpoint_answers_with_its_status_and_in_json(server: GatewayServer, route: Route) -> None:
    body = None if route.body is None else json.dumps(route.body).encode()
    status, headers, answer = server.request(route.method, route.path, body)
    assert status == route.status, answer
    if route.path.startswith("/v2/health") or (route.path.endswith("/ready") and status == 200):
        return
    if route.path == "/metrics":
        assert headers["content-type"].startswith("text/plain")
        return
    assert headers["content-type"] == "application/json"
    content = json.loads(answer)
    if status != 200:
        assert list(content) == ["error"]
        assert content["error"]
        return
    (content, *_) = content if isinstance(content, list) else [content]
    assert set(route.has.split()) <= set(content)


@pytest.mark.behaviour("L0_lifecycle", "directories that are no versions are ignored, all others are listed")
def test_only_versions_are_listed(server: GatewayServer) -> None:
    assert json.loads(server.request("GET", "/v2/models/m")[2])["versions"] == ["1", "3"]


@pytest.mark.behaviour("L0_server_status", "metadata: -1 in front of the shape where a model has a batch dimension")
def test_shapes_in_metadata(server: GatewayServer) -> None:
    def shape(model: str) -> list[int]:
        metadata = json.loads(server.request("GET", f"/v2/models/{model}")[2])
        return list(metadata["inputs"][0]["shape"])

    assert (shape("m"), shape("fixed")) == ([-1, 2], [1, 4])


@pytest.mark.behaviour("L0_server_status", "metadata: the extensions that are served, and no others")
def test_extensions(server: GatewayServer) -> None:
    assert json.loads(server.request("GET", "/v2")[2])["extensions"] == [
        *["classification", "sequence", "sequence(string_id)", "schedule_policy", "model_configuration"],
        *["binary_tensor_data", "parameters", "statistics", "trace", "logging"],
    ]


@pytest.mark.behaviour("L0_model_config", "numbers of 64 bits are numbers, and defaults are shown")
def test_the_configuration_has_numbers_and_defaults(server: GatewayServer) -> None:
    config = json.loads(server.request("GET", "/v2/models/m/config")[2])
    assert config["input"][0] | {"dims": [2], "data_type": "TYPE_FP32", "name": "x"} == config["input"][0]
    assert isinstance(config["max_batch_size"], int)
    assert {"platform", "backend", "version_policy", "instance_group"} <= set(config)


@pytest.mark.behaviour("L0_http", "names in paths may be percent-encoded")
def test_names_may_be_quoted(server: GatewayServer) -> None:
    assert server.request("GET", "/v2/models/%6d/ready")[0] == 200
    assert server.request("POST", "/v2/models/%6D/infer", json.dumps(ONE).encode())[0] == 200


@pytest.mark.behaviour("L0_http", "an index without a body, as tritonclient asks for it")
def test_an_index_without_a_body(server: GatewayServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.putrequest("POST", "/v2/repository/index")
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        response = connection.getresponse()
        names = [entry["name"] for entry in json.loads(response.read())]
    finally:
        connection.close()
    assert (response.status, sorted(set(names))) == (200, ["broken", "fixed", "m"])


OK, NOT_FOUND, INVALID = grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
UNAVAILABLE, UNIMPLEMENTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED


class Rpc(NamedTuple):
    """A call with its fields, and what it ends with."""

    name: str
    fields: Mapping[str, Any] = {}
    code: grpc.StatusCode = OK
    triton: str = ""


TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 2]}
CALLS = [
    Rpc("ServerLive"),
    Rpc("ServerReady"),
    Rpc("ModelReady", {"name": "m", "version": "1"}),
    Rpc("ModelReady", {"name": "other"}, triton="an error in new versions"),
    Rpc("ServerMetadata"),
    Rpc("ModelMetadata", {"name": "m"}),
    Rpc("ModelMetadata", {"name": "m", "version": "2"}, NOT_FOUND),
    Rpc("ModelMetadata", {"name": "m", "version": "one"}, INVALID),
    Rpc("ModelInfer", {"model_name": "m", "inputs": [TENSOR], "raw_input_contents": [bytes(8)]}),
    Rpc("ModelInfer", {"model_name": "other", "inputs": [TENSOR]}, NOT_FOUND),
    Rpc("ModelInfer", {"model_name": "broken", "inputs": [TENSOR]}, UNAVAILABLE),
    Rpc("ModelConfig", {"name": "m"}),
    Rpc("ModelConfig", {"name": "other"}, NOT_FOUND),
    Rpc("ModelStatistics", {"name": "m", "version": "1"}),
    Rpc("ModelStatistics"),
    Rpc("ModelStatistics", {"name": "other"}, NOT_FOUND),
    Rpc("RepositoryIndex"),
    Rpc("RepositoryIndex", {"repository_name": "elsewhere"}, UNIMPLEMENTED),
    Rpc("RepositoryModelLoad", {"model_name": "m"}, UNAVAILABLE),
    Rpc("RepositoryModelUnload", {"model_name": "m"}, UNAVAILABLE),
    Rpc("SystemSharedMemoryStatus", {}, UNIMPLEMENTED),
    Rpc("SystemSharedMemoryRegister", {"name": "r", "key": "/k", "byte_size": 8}, UNIMPLEMENTED),
    Rpc("SystemSharedMemoryUnregister", {}, UNIMPLEMENTED),
    Rpc("CudaSharedMemoryStatus", {}, UNIMPLEMENTED, triton="served"),
    Rpc("CudaSharedMemoryRegister", {"name": "r"}, UNIMPLEMENTED, triton="served"),
    Rpc("CudaSharedMemoryUnregister", {}, UNIMPLEMENTED, triton="served"),
    Rpc("TraceSetting"),
    Rpc("TraceSetting", {"model_name": "other"}, INVALID),
    Rpc("LogSettings"),
]


def calls() -> Iterator[Any]:
    for number, call in enumerate(CALLS):
        given = " ".join(f"{key}={value}" for key, value in call.fields.items() if isinstance(value, str))
        mark = pytest.mark.behaviour(
            "L0_grpc", f"{call.name}({given}): {call.code.name}", triton=call.triton, through="grpc"
        )
        yield pytest.param(call, marks=mark, id=f"{number}-{call.name}")


@pytest.mark.parametrize("call", list(calls()))
def test_a_call_ends_with_its_status(server: GatewayServer, call: Rpc) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = getattr(service_pb2, f"{call.name}Request")(**call.fields)
        code = OK
        try:
            getattr(stub, call.name)(request, timeout=60)
        except grpc.RpcError as error:
            code = error.code()
    assert code is call.code
