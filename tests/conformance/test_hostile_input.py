"""Bodies, headers and messages that are wrong below the level of tensors are refused in bounded memory and time."""

import gzip
import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from onnx import helper
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity, save_model, value

MAX_BODY = 2_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("hostile")
    repository = directory / "models"
    save_identity(repository / "identity" / "1" / "model.onnx", DataType.FP32, [2])
    save_identity(repository / "matrix" / "1" / "model.onnx", DataType.INT32, ["H", "W"])
    inputs, outputs = ([value(name, DataType.INT32, ["N", 1]) for name in pair] for pair in ("ab", "cd"))
    nodes = [helper.make_node("Identity", [source], [target]) for source, target in (("a", "c"), ("b", "d"))]
    save_model(repository / "pair" / "1" / "model.onnx", nodes, inputs, outputs)
    with gateway_server(repository, directory, {"max_body_bytes": MAX_BODY}) as running:
        yield running


JSON_INPUT = b'{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}'
REQUEST = b'{"inputs":[%s]}' % JSON_INPUT


def with_data(data: bytes, datatype: bytes = b"FP32", shape: bytes = b"[1,2]") -> bytes:
    return b'{"inputs":[{"name":"x","shape":%s,"datatype":"%s","data":%s}]}' % (shape, datatype, data)


RANDOM = np.random.default_rng(7)
HOSTILE = {
    "nothing": b"",
    "no JSON": b"{",
    "no inputs": b"{}",
    "inputs of null": b'{"inputs":null}',
    "input without name": b'{"inputs":[{"shape":[1,2],"datatype":"FP32","data":[1,2]}]}',
    "input without shape": b'{"inputs":[{"name":"x","datatype":"FP32","data":[1,2]}]}',
    "input without datatype": b'{"inputs":[{"name":"x","shape":[1,2],"data":[1,2]}]}',
    "input without data": b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32"}]}',
    "shape as text": with_data(b"[1,2]", shape=b'"1,2"'),
    "shape of floats": with_data(b"[1,2]", shape=b"[1,2.5]"),
    "negative dimension": with_data(b"[1,2]", shape=b"[1,-2]"),
    "too few elements": with_data(b"[1]"),
    "too many elements": with_data(b"[1,2,3]"),
    "elements of another type": with_data(b'["a","b"]'),
    "data that is no list": with_data(b"1"),
    "FP16 in JSON": with_data(b"[1,2]", b"FP16"),
    "BF16 in JSON": with_data(b"[1,2]", b"BF16"),
    "duplicate input": b'{"inputs":[%s,%s]}' % (JSON_INPUT, JSON_INPUT),
    "deep lists": b"[" * 250_000,
    "deep data": b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":' + b"[" * 250_000,
    "deep data that ends": with_data(b"[" * 101 + b"1,2" + b"]" * 101),
    "deep unknown field": b'{"a":' + b"[" * 250_000 + b"]" * 250_000 + b"," + REQUEST[1:],
    "deep NaN": with_data(b"[" * 101 + b"NaN" + b"]" * 101),
    "huge dimension": b'{"inputs":[{"name":"x","shape":[%s,2],"datatype":"FP32","data":[]}]}' % (b"9" * 10_000),
    "many dimensions": with_data(b"[]", shape=b"[" + b"1," * 10_000 + b"1]"),
    "nan objective": b'{"parameters":{"slo_ms":NaN},"inputs":[%s]}' % JSON_INPUT,
    "not UTF-8": b'{"id":"\xff","inputs":[%s]}' % JSON_INPUT,
    "half a character": with_data(b'["\\ud800","a"]', b"BYTES"),
    **{f"noise {index}": RANDOM.bytes(200) for index in range(20)},
}


WRONG = [
    *["nothing", "no JSON", "no inputs", "inputs of null", "input without name", "input without shape"],
    *["input without datatype", "shape as text", "shape of floats", "negative dimension", "too few elements"],
    *["too many elements", "elements of another type", "data that is no list", "not UTF-8", "huge dimension"],
]
"""Failures that Triton reports as its own."""


def replayed(name: str) -> pytest.MarkDecorator:
    """The behaviour of Triton that a body replays."""
    if name.startswith("noise"):
        return pytest.mark.behaviour("L0_http_fuzz", "a body of random bytes is refused with 400")
    return pytest.mark.behaviour("L0_http", "a body with {name} is refused with 400", triton="500" * (name in WRONG))


@pytest.mark.parametrize("name", [pytest.param(name, marks=replayed(name)) for name in HOSTILE])
def test_hostile_bodies_are_400_and_harm_nobody(server: GatewayServer, name: str) -> None:
    status, headers, body = server.request("POST", "/v2/models/identity/infer", HOSTILE[name])
    assert (status, headers["content-type"]) == (400, "application/json")
    assert json.loads(body)["error"]
    assert server.request("GET", "/v2/health/ready")[0] == 200


BOMB = gzip.compress(bytes(100 * MAX_BODY), 1)
HEADERS: dict[str, tuple[dict[str, str], bytes, int, str]] = {
    "length that is no number": ({"Inference-Header-Content-Length": "x"}, REQUEST, 400, "must be a number of bytes"),
    "negative length": ({"Inference-Header-Content-Length": "-1"}, REQUEST, 400, "must be a number of bytes"),
    "length beyond the body": ({"Inference-Header-Content-Length": "999"}, REQUEST, 400, "but the body has only"),
    "length beyond all bodies": ({"Inference-Header-Content-Length": str(2**31)}, REQUEST, 400, "is 2147483648, but"),
    "length of too many digits": ({"Inference-Header-Content-Length": "9" * 99}, REQUEST, 400, "must be a number of"),
    "length within the JSON": ({"Inference-Header-Content-Length": "9"}, REQUEST, 400, "in JSON"),
    "raw data of the wrong size": ({"Inference-Header-Content-Length": "0"}, bytes(7), 400, "'x' has 7 bytes of data"),
    "more than the limit": ({}, bytes(MAX_BODY + 1), 400, f"the limit is {MAX_BODY}"),
    "unknown encoding": ({"Content-Encoding": "br"}, REQUEST, 501, "Content-Encoding 'br' is not supported"),
    "no gzip": ({"Content-Encoding": "gzip"}, REQUEST, 400, "cannot be decompressed"),
    "half a gzip": ({"Content-Encoding": "gzip"}, gzip.compress(REQUEST)[:-9], 400, "it is truncated"),
    "gzip bomb": (
        {"Content-Encoding": "gzip"},
        BOMB,
        400,
        f"the decompressed body exceeds the limit of {MAX_BODY} bytes",
    ),
}


@pytest.mark.behaviour("L0_http", "a request with {case} is refused, the next one answered")
@pytest.mark.parametrize("case", HEADERS)
def test_headers_that_do_not_fit_the_body_are_refused(server: GatewayServer, case: str) -> None:
    given, body, status, sentence = HEADERS[case]
    answered, headers, reply = server.request("POST", "/v2/models/identity/infer", body, given)
    assert (answered, sentence in json.loads(reply)["error"]) == (status, True)
    assert (headers.get("accept-encoding") == "gzip, deflate") == (status == 501)
    assert server.request("POST", "/v2/models/identity/infer", REQUEST)[0] == 200


@pytest.mark.behaviour("L0_http", "an ambiguous raw request, to model {model}, is refused with 400")
@pytest.mark.parametrize(
    ("model", "sentence"),
    [("pair", "Raw request must only have 1 input"), ("matrix", "more than one variable-sized dimension")],
)
def test_a_raw_body_that_could_mean_several_things_is_refused(server: GatewayServer, model: str, sentence: str) -> None:
    headers = {"Inference-Header-Content-Length": "0"}
    status, _, body = server.request("POST", f"/v2/models/{model}/infer", bytes(16), headers)
    assert (status, sentence in json.loads(body)["error"]) == (400, True)


def conversation(server: GatewayServer, *parts: bytes) -> bytes:
    """The bytes that come back on a new connection until the server closes it."""
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=60) as connection:
        for part in parts:
            connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.behaviour("L0_http", "request_many_chunks: a body in very many chunks is refused with 400")
def test_a_body_in_very_many_chunks_is_bounded(server: GatewayServer) -> None:
    head = b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = conversation(server, head, b"1\r\nA\r\n" * (MAX_BODY + 2), b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"the body exceeds the limit of %d bytes" % MAX_BODY in answer


@pytest.mark.behaviour("L0_http", "input_size_limit: a body that is declared too large is refused with 400")
def test_much_that_is_declared_and_little_that_is_sent_takes_no_memory(server: GatewayServer) -> None:
    head = b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    answer = conversation(server, head % (1 << 30), bytes(1000))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"closed before the request was complete" in conversation(server, head % MAX_BODY, bytes(1000))
    assert server.request("GET", "/v2/health/ready")[0] == 200


def typed(tensor: dict[str, Any], **fields: Any) -> Any:
    return service_pb2.ModelInferRequest(
        model_name="identity", inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 2], **tensor}], **fields
    )


TYPED = {
    "raw and typed": (
        typed({"contents": {"fp32_contents": [1, 2]}}, raw_input_contents=[bytes(8)]),
        "typed contents, but the request has raw_input_contents",
    ),
    "raw for no input": (typed({}, raw_input_contents=[bytes(8), bytes(8)]), "raw_input_contents has 2 entries"),
    "field of another type": (typed({"contents": {"int_contents": [1, 2]}}), "expected fp32_contents"),
    "two fields": (typed({"contents": {"fp32_contents": [1, 2], "int_contents": [1]}}), "expected fp32_contents"),
    "too few elements": (typed({"contents": {"fp32_contents": [1]}}), "'x' has 1 elements"),
    "no data": (typed({}), "'x' has 0 elements"),
    "FP16 in a field": (typed({"datatype": "FP16", "contents": {"fp32_contents": [1, 2]}}), "must be sent raw"),
    "BF16 in a field": (typed({"datatype": "BF16", "contents": {"fp32_contents": [1, 2]}}), "must be sent raw"),
    "no datatype": (typed({"datatype": ""}), "datatype ''"),
    "version that is no number": (typed({}, model_version="abc"), "model version 'abc' must be a number"),
    "negative version": (typed({}, model_version="-1"), "model version '-1' must be a number"),
}


@pytest.mark.behaviour("L0_grpc", "a message with {case} is refused with INVALID_ARGUMENT", through="grpc")
@pytest.mark.parametrize("case", TYPED)
def test_messages_that_make_no_sense_are_refused(server: GatewayServer, case: str) -> None:
    message, sentence = TYPED[case]
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(message, timeout=60)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert sentence in (caught.value.details() or "")
        good = typed({}, raw_input_contents=[struct.pack("<2f", 1, 2)])
        assert stub.ModelInfer(good, timeout=60).raw_output_contents[0] == struct.pack("<2f", 1, 2)


@pytest.mark.behaviour("L0_http", "what is not HTTP is refused with 400 and an error in JSON")
def test_what_is_not_http_gets_an_error_in_json(server: GatewayServer) -> None:
    status, headers, body = server.request("GET", "/v2/health/live", headers={"Content-Length": "x"})
    assert (status, headers["content-type"]) == (400, "application/json")
    assert json.loads(body) == {"error": "Invalid HTTP request received."}
