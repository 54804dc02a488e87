"""Tensors travel in every encoding that clients of Triton use, through the real tritonclient and plain sockets."""

import json
import queue
import struct
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import helper
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_fixed_batch, save_identity, save_model, value

LIBRARIES = {"http": tritonclient.http, "grpc": tritonclient.grpc}
LABELS = """
output { name: "y" label_filename: "labels.txt" data_type: TYPE_FP32 dims: 3 }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("tensors")
    repository = directory / "models"
    for datatype in DataType:
        save_identity(repository / datatype.lower() / "1" / "model.onnx", datatype, [3])
    save_identity(repository / "wide" / "1" / "model.onnx", DataType.FP32, ["W"])
    save_identity(repository / "word" / "1" / "model.onnx", DataType.BYTES, [1])
    save_identity(repository / "scalar" / "1" / "model.onnx", DataType.FP32)
    save_identity(repository / "labelled" / "1" / "model.onnx", DataType.FP32, [3])
    (repository / "labelled" / "config.pbtxt").write_text(LABELS)
    (repository / "labelled" / "labels.txt").write_text("cat\ndog\nowl\n")
    save_fixed_batch(repository / "fixed" / "1" / "model.onnx")
    inputs, outputs = ([value(name, DataType.FP32, ["N", 2]) for name in pair] for pair in ("ab", "cd"))
    nodes = [helper.make_node("Identity", [source], [target]) for source, target in (("a", "c"), ("b", "d"))]
    save_model(repository / "pair" / "1" / "model.onnx", nodes, inputs, outputs)
    with gateway_server(repository, directory, {"partitions": 1, "max_batch_size": 4}) as running:
        yield running


@pytest.fixture(params=LIBRARIES)
def client(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def infer(
    server: GatewayServer, client: str, model: str, given: dict[str, npt.NDArray[Any]], **options: Any
) -> dict[str, Any]:
    """The outputs by name, in the order of the response."""
    library = LIBRARIES[client]
    inputs = [tensor(library, name, array) for name, array in given.items()]
    with library.InferenceServerClient(server.http_url if client == "http" else server.grpc_url) as connection:
        result = connection.infer(model, inputs, **options)
    response = result.get_response()
    outputs = response["outputs"] if client == "http" else response.outputs
    names = [each["name"] if client == "http" else each.name for each in outputs]
    return {name: result.as_numpy(name).tolist() for name in names}


def tensor(library: ModuleType, name: str, array: npt.NDArray[Any]) -> Any:
    datatype = "BYTES" if array.dtype == np.object_ else "FP32"
    given = library.InferInput(name, array.shape, datatype)
    given.set_data_from_numpy(array)
    return given


PAIR = {"a": np.array([[1, 2]], np.float32), "b": np.array([[3, 4]], np.float32)}


@pytest.mark.behaviour("L0_output_name", "all outputs, unless some are asked for, and then these in their order")
def test_outputs_are_selected(server: GatewayServer, client: str) -> None:
    wanted = [LIBRARIES[client].InferRequestedOutput(name) for name in "dc"]
    assert infer(server, client, "pair", PAIR) == {"c": [[1, 2]], "d": [[3, 4]]}
    assert infer(server, client, "pair", PAIR, outputs=wanted[:1]) == {"d": [[3, 4]]}
    assert list(infer(server, client, "pair", PAIR, outputs=wanted)) == ["d", "c"]


@pytest.mark.behaviour("L0_infer", "inputs may come in any order")
def test_inputs_in_any_order(server: GatewayServer, client: str) -> None:
    given = dict(reversed(PAIR.items()))
    assert infer(server, client, "pair", given) == {"c": [[1, 2]], "d": [[3, 4]]}


@pytest.mark.behaviour("L0_infer_variable", "a dimension of -1 takes any size")
@pytest.mark.parametrize("width", [1, 7, 1000])
def test_variable_dimensions(server: GatewayServer, client: str, width: int) -> None:
    values = np.arange(2 * width, dtype=np.float32).reshape(2, width)
    assert infer(server, client, "wide", {"x": values})["y"] == values.tolist()


@pytest.mark.behaviour("L0_infer_zero", "an empty tensor comes back empty")
def test_empty_tensors(server: GatewayServer, client: str) -> None:
    assert infer(server, client, "wide", {"x": np.zeros((2, 0), np.float32)})["y"] == [[], []]


@pytest.mark.behaviour("L0_scalar_io", "an item without dimensions: one number a row")
def test_scalars(server: GatewayServer, client: str) -> None:
    assert infer(server, client, "scalar", {"x": np.array([1.5, 2.5], np.float32)})["y"] == [1.5, 2.5]


@pytest.mark.behaviour("L0_infer", "a model with max_batch_size 0 takes its exact dimensions")
def test_a_model_without_a_batch_dimension(server: GatewayServer, client: str) -> None:
    assert infer(server, client, "fixed", {"x": np.array([[1, 2, 3, 4]], np.float32)})["y"] == [[2, 4, 6, 8]]


@pytest.mark.behaviour("L0_large_payload", "a tensor of 8 MB, both ways")
def test_a_large_tensor(server: GatewayServer, client: str) -> None:
    values = np.random.default_rng(0).random((1, 2_000_000), np.float32)
    assert infer(server, client, "wide", {"x": values})["y"] == values.tolist()


@pytest.mark.behaviour("L0_string_io", "strings: empty, long, and beyond ASCII")
def test_strings(server: GatewayServer, client: str) -> None:
    values = np.array([[b"", "ä€😀".encode(), b"x" * 100_000]], np.object_)
    assert infer(server, client, "bytes", {"x": values})["y"] == values.tolist()


@pytest.mark.behaviour("L0_nullchar_string", "a string with null characters")
def test_null_characters(server: GatewayServer, client: str) -> None:
    values = np.array([[b"\0", b"a\0b", b"\0\0"]], np.object_)
    assert infer(server, client, "bytes", {"x": values})["y"] == values.tolist()


@pytest.mark.behaviour("L0_infer", "class_count: with labels, and no more than there are")
def test_classes_have_labels(server: GatewayServer, client: str) -> None:
    wanted = [LIBRARIES[client].InferRequestedOutput("y", class_count=9)]
    given = {"x": np.array([[0.5, 3, 2]], np.float32)}
    answer = infer(server, client, "labelled", given, outputs=wanted)
    assert [element.decode().partition(":")[2] for element in answer["y"][0]] == ["1:dog", "2:owl", "0:cat"]


@pytest.mark.behaviour("L0_parameters", "custom parameters of every type are taken")
@pytest.mark.parametrize("given", ["text", True, 7, 0.5])
def test_custom_parameters(server: GatewayServer, client: str, given: object) -> None:
    values = {"x": np.array([[1, 2]], np.float32)}
    assert infer(server, client, "wide", values, parameters={"mine": given})["y"] == [[1, 2]]


@pytest.mark.behaviour("L0_grpc", "messages may be compressed with {algorithm}", through="grpc")
@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_messages(server: GatewayServer, algorithm: str) -> None:
    values = {"x": np.zeros((1, 5000), np.float32)}
    assert infer(server, "grpc", "wide", values, compression_algorithm=algorithm)["y"] == [[0] * 5000]


def post(
    server: GatewayServer, model: str, request: dict[str, Any], blobs: bytes = b"", length: int | None = None
) -> tuple[dict[str, Any], bytes, dict[str, str]]:
    """The JSON, the binary part and the headers of an answer; `length` stands for that of the JSON that is sent."""
    head = json.dumps(request).encode() if request else b""
    headers = {"Inference-Header-Content-Length": str(len(head) if length is None else length)}
    status, reported, body = server.request("POST", f"/v2/models/{model}/infer", head + blobs, headers)
    assert status == 200, body
    end = int(reported.get("inference-header-content-length", len(body)))
    return json.loads(body[:end]), body[end:], reported


@pytest.mark.behaviour(
    "L0_http", "one input in JSON and one binary in the same request, each output as it is asked for"
)
def test_json_and_binary_mix(server: GatewayServer) -> None:
    inputs = [
        {"name": "a", "shape": [1, 2], "datatype": "FP32", "data": [[1, 2]]},
        {"name": "b", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
    ]
    outputs = [{"name": "c", "parameters": {"binary_data": True}}, {"name": "d"}]
    answer, blob, headers = post(server, "pair", {"inputs": inputs, "outputs": outputs}, struct.pack("<2f", 3, 4))
    assert headers["content-type"] == "application/octet-stream"
    assert answer["outputs"] == [
        {"name": "c", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
        {"name": "d", "datatype": "FP32", "shape": [1, 2], "data": [3, 4]},
    ]
    assert blob == struct.pack("<2f", 1, 2)


@pytest.mark.behaviour("L0_http", "binary_data_output holds for all outputs but those that say otherwise")
def test_binary_output_by_default(server: GatewayServer) -> None:
    inputs = [{"name": name, "shape": [1, 2], "datatype": "FP32", "data": [1, 2]} for name in "ab"]
    outputs = [{"name": "c"}, {"name": "d", "parameters": {"binary_data": False}}]
    request = {"inputs": inputs, "outputs": outputs, "parameters": {"binary_data_output": True}}
    answer, blob, _ = post(server, "pair", request)
    assert [("data" in each) for each in answer["outputs"]] == [False, True]
    assert len(blob) == 8


@pytest.mark.behaviour("L0_http", "raw request: the body is the only input, all outputs are binary")
@pytest.mark.parametrize("numbers", [1, 5])
def test_a_raw_request(server: GatewayServer, numbers: int) -> None:
    body = np.arange(numbers, dtype=np.float32).tobytes()
    answer, blob, _ = post(server, "wide", {}, body, length=0)
    assert (answer["outputs"][0]["shape"], blob) == ([1, numbers], body)


@pytest.mark.behaviour("L0_http", "raw request of BYTES: the body is the one string")
def test_a_raw_request_of_bytes(server: GatewayServer) -> None:
    _, blob, _ = post(server, "word", {}, b"hello", length=0)
    assert blob == b"\5\0\0\0hello"


@pytest.mark.behaviour("L0_infer", "data in JSON may be nested in any way that has as many elements")
@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]], [[[1], [2]], [[3], [4]]], [[1, 2, 3, 4]]])
def test_nested_data(server: GatewayServer, data: list[Any]) -> None:
    request = {"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": data}]}
    assert post(server, "wide", request)[0]["outputs"][0]["data"] == [1, 2, 3, 4]


@pytest.mark.behaviour("L0_nan_inf", "NaN and Infinity are read and written in JSON")
def test_nan_and_infinity(server: GatewayServer) -> None:
    body = b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[NaN,Infinity,-Infinity]}]}'
    status, _, answer = server.request("POST", "/v2/models/wide/infer", body)
    assert (status, b"[NaN,Infinity,-Infinity]" in answer) == (200, True)


CONTENTS = {
    "BOOL": ("bool_contents", [True, False, True]),
    "INT8": ("int_contents", [-128, 0, 127]),
    "INT16": ("int_contents", [-32768, 0, 32767]),
    "INT32": ("int_contents", [-(2**31), 0, 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 0, 2**63 - 1]),
    "UINT8": ("uint_contents", [0, 1, 255]),
    "UINT16": ("uint_contents", [0, 1, 65535]),
    "UINT32": ("uint_contents", [0, 1, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 1, 2**64 - 1]),
    "FP32": ("fp32_contents", [0.5, -1, 2]),
    "FP64": ("fp64_contents", [0.1, -1, 2]),
    "BYTES": ("bytes_contents", [b"", b"a", b"bc"]),
}


@pytest.mark.behaviour("L0_grpc", "{datatype} in its typed contents; the answer is raw", through="grpc")
@pytest.mark.parametrize("datatype", CONTENTS)
def test_typed_contents(server: GatewayServer, datatype: str) -> None:
    field, values = CONTENTS[datatype]
    request = service_pb2.ModelInferRequest(
        model_name=datatype.lower(),
        inputs=[{"name": "x", "datatype": datatype, "shape": [1, 3], "contents": {field: values}}],
    )
    with grpc.insecure_channel(server.grpc_url) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=60)
    assert len(answer.raw_output_contents) == len(answer.outputs) == 1
    assert not answer.outputs[0].HasField("contents")
    assert tritonclient.grpc.InferResult(answer).as_numpy("y").tolist() == [values]


@pytest.mark.behaviour("L0_grpc", "triton_grpc_error: the first error ends the stream with its status", through="grpc")
def test_a_stream_may_end_with_its_first_error(server: GatewayServer) -> None:
    replies: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: replies.put(error), headers={"triton_grpc_error": "true"})
        client.async_stream_infer("other", [tensor(tritonclient.grpc, "x", np.zeros((1, 1), np.float32))])
        error = replies.get(timeout=60)
        client.stop_stream()
    assert error.status() == "StatusCode.NOT_FOUND"


@pytest.mark.behaviour("L0_http", "a body in chunks, and another request on the same connection")
def test_chunks(server: GatewayServer) -> None:
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        pool = client._client_stub
        for _ in range(2):
            chunks = iter((body[:9], body[9:]))
            answer = pool.request("POST", "/v2/models/wide/infer", chunks, {"Transfer-Encoding": "chunked"})
            assert answer.status_code == 200
            assert json.loads(answer.read())["outputs"][0]["data"] == [1, 2]
