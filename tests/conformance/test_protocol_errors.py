"""Every bad request is refused with the same sentence over HTTP and gRPC, and the server lives on."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import grpc
import pytest
from onnx import helper
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity, save_model, save_variable, value

NONE: Mapping[str, Any] = MappingProxyType({})


class Tensor(NamedTuple):
    """Without `data`, it has none in the body."""

    name: str = "x"
    datatype: str = "FP32"
    shape: tuple[int, ...] = (1, 2)
    data: bytes | None = bytes(8)
    parameters: Mapping[str, Any] = NONE


class Output(NamedTuple):
    name: str = "y"
    parameters: Mapping[str, Any] = NONE


class Call(NamedTuple):
    inputs: tuple[Tensor, ...] = (Tensor(),)
    model: str = "identity"
    version: str = ""
    outputs: tuple[Output, ...] = ()
    parameters: Mapping[str, Any] = NONE


KEY = f"/test-conformance-{os.getpid()}"

STRICT = """
late: evict
stages:
  only: {model: identity, inputs: {x: request.x}}
outputs:
  y: {from: only.y}
"""

CHAINED = """
stages:
  a: {model: double, inputs: {x: request.x}}
  b: {model: double, inputs: {x: request.z}}
  vote: {combine: mean, of: [a.y, b.y]}
  again: {combine: mean, of: [vote.y, a.y]}
outputs:
  y: {from: again.y}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("errors")
    repository = directory / "models"
    save_identity(repository / "identity" / "1" / "model.onnx", DataType.FP32, [2])
    save_identity(repository / "text" / "1" / "model.onnx", DataType.BYTES, [1])
    save_identity(repository / "wide" / "1" / "model.onnx", DataType.INT32, ["W"])
    save_variable(repository / "double" / "1" / "model.onnx")
    inputs, outputs = ([value(name, DataType.INT32, ["N", 1]) for name in pair] for pair in ("ab", "cd"))
    nodes = [helper.make_node("Identity", [source], [target]) for source, target in (("a", "c"), ("b", "d"))]
    save_model(repository / "pair" / "1" / "model.onnx", nodes, inputs, outputs)
    for name, text in (("strict", STRICT), ("chained", CHAINED)):
        (repository / name).mkdir()
        (repository / name / "pipeline.yaml").write_text(text)
    kinds = {"decoupled": "model_transaction_policy { decoupled: true }", "sequence": "sequence_batching { }"}
    for name, text in kinds.items():
        save_identity(repository / name / "1" / "model.onnx", DataType.FP32, [2])
        (repository / name / "config.pbtxt").write_text(text)
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    config = {"max_batch_size": 8, "limits": {"memory_mb": 1}, "allow_client_shm": True}
    memory = Path(f"/dev/shm{KEY}")
    memory.write_bytes(bytes(64))
    try:
        with gateway_server(repository, directory, config) as running:
            region = json.dumps({"key": KEY, "byte_size": 64}).encode()
            assert running.request("POST", "/v2/systemsharedmemory/region/r/register", region)[0] == 200
            yield running
    finally:
        memory.unlink()


def _http_parameters(tensor: Tensor) -> dict[str, Any]:
    size = {} if tensor.data is None else {"binary_data_size": len(tensor.data)}
    return {**size, **tensor.parameters}


def over_http(server: GatewayServer, call: Call) -> tuple[int, str]:
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
            "parameters": _http_parameters(tensor),
        }
        for tensor in call.inputs
    ]
    outputs = [{"name": output.name, "parameters": dict(output.parameters)} for output in call.outputs]
    parameters = {"binary_data_output": True, **call.parameters}
    head = json.dumps({"inputs": inputs, "outputs": outputs, "parameters": parameters}).encode()
    version = f"/versions/{call.version}" if call.version else ""
    status, headers, body = server.request(
        "POST",
        f"/v2/models/{call.model}{version}/infer",
        head + b"".join(tensor.data or b"" for tensor in call.inputs),
        {"Inference-Header-Content-Length": str(len(head))},
    )
    if status == 200:
        return status, ""
    assert headers["content-type"] == "application/json"
    return status, json.loads(body)["error"]


def _set_parameters(message: Any, parameters: Mapping[str, Any]) -> None:
    fields = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    for name, each in parameters.items():
        setattr(message.parameters[name], fields[type(each)], each)


def over_grpc(server: GatewayServer, call: Call) -> tuple[grpc.StatusCode, str]:
    message = service_pb2.ModelInferRequest(
        model_name=call.model,
        model_version=call.version,
        inputs=[{"name": each.name, "datatype": each.datatype, "shape": each.shape} for each in call.inputs],
        outputs=[{"name": each.name} for each in call.outputs],
        raw_input_contents=[each.data for each in call.inputs if each.data is not None],
    )
    _set_parameters(message, call.parameters)
    for target, tensor in zip(message.inputs, call.inputs, strict=True):
        _set_parameters(target, tensor.parameters)
    for target, output in zip(message.outputs, call.outputs, strict=True):
        _set_parameters(target, output.parameters)
    with grpc.insecure_channel(server.grpc_url) as channel:
        try:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=60)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


INVALID = (400, grpc.StatusCode.INVALID_ARGUMENT)
NOT_FOUND = (404, grpc.StatusCode.NOT_FOUND)
UNAVAILABLE = (503, grpc.StatusCode.UNAVAILABLE)
FAILED = (500, grpc.StatusCode.INTERNAL)
UNSUPPORTED = (501, grpc.StatusCode.UNIMPLEMENTED)


def place(region: str = "r", byte_size: int = 8, offset: int = 0) -> dict[str, Any]:
    return {"shared_memory_region": region, "shared_memory_byte_size": byte_size, "shared_memory_offset": offset}


A, B = (Tensor(name, "INT32", (1, 1), bytes(4)) for name in ("a", "b"))

CASES: dict[str, tuple[Call, tuple[int, grpc.StatusCode], str]] = {
    "unknown model": (Call(model="other"), NOT_FOUND, "Request for unknown model: 'other' is not found"),
    "unknown version": (
        Call(version="3"),
        NOT_FOUND,
        "Request for unknown model: 'identity' version 3 is not found; it has 1",
    ),
    "broken model": (Call(model="broken"), UNAVAILABLE, "broken"),
    "decoupled model": (Call(model="decoupled"), UNSUPPORTED, "not supported with backend onnxruntime"),
    "no sequence": (Call(model="sequence"), INVALID, "must specify a non-zero or non-empty correlation ID"),
    "sequence not started": (
        Call(model="sequence", parameters={"sequence_id": 7}),
        INVALID,
        "inference request for sequence 7 to model 'sequence' must specify the START flag on the first request",
    ),
    "rows of a sequence": (
        Call(
            (Tensor(shape=(2, 2), data=bytes(16)),),
            "sequence",
            parameters={"sequence_id": 7, "sequence_start": True},
        ),
        INVALID,
        "inference request to model 'sequence' must specify batch-size 1 due to requirements of sequence batcher",
    ),
    "no inputs": (Call(()), INVALID, "expected 1 inputs but got 0 inputs"),
    "missing input": (Call((A,), "pair"), INVALID, "missing required input(s) 'b'"),
    "unknown input": (Call((Tensor("z"),)), INVALID, "unexpected inference input 'z'"),
    "extra input": (Call((Tensor(), Tensor("z"))), INVALID, "allowed inputs are 'x'"),
    "duplicate input": (Call((Tensor(), Tensor())), INVALID, "input 'x' already exists in request"),
    "unknown output": (Call(outputs=(Output("z"),)), INVALID, "unexpected inference output 'z'"),
    "duplicate output": (Call(outputs=(Output(), Output())), INVALID, "output 'y' already exists in request"),
    "wrong datatype": (
        Call((Tensor(datatype="INT32"),)),
        INVALID,
        "data-type is 'INT32', but model 'identity' expects",
    ),
    "no datatype": (Call((Tensor(datatype="FP31"),)), INVALID, "data-type is 'FP31', but model 'identity' expects"),
    "wrong dimension": (Call((Tensor(shape=(1, 3), data=bytes(12)),)), INVALID, "Expected [-1,2], got [1,3]"),
    "wrong rank": (Call((Tensor(shape=(2,)),)), INVALID, "unexpected shape for input 'x'"),
    "dimension of -1": (Call((Tensor("x", "INT32", (1, -1), b""),), "wide"), INVALID, "Expected [-1,-1], got [1,-1]"),
    "rows of -1": (Call((Tensor(shape=(-1, 2)),)), INVALID, "'x' has -1 rows"),
    "no rows": (Call((Tensor(shape=(0, 2), data=b""),)), INVALID, "zero-size batch"),
    "too many rows": (Call((Tensor(shape=(9, 2), data=bytes(72)),)), INVALID, "batch-size must be <= 8"),
    "rows disagree": (
        Call((A, Tensor("b", "INT32", (2, 1), bytes(8))), "pair"),
        INVALID,
        "input 'b' batch size does not match",
    ),
    "short data": (
        Call((Tensor(data=bytes(7)),)),
        INVALID,
        "'x' has 7 bytes of data, but its shape [1,2] of FP32 takes 8",
    ),
    "long data": (Call((Tensor(data=bytes(9)),)), INVALID, "'x' has 9 bytes of data"),
    "overflowing shape": (Call((Tensor("x", "INT32", (8, 2**62), b""),), "wide"), INVALID, "'x' has 0 bytes of data"),
    "short element": (Call((Tensor("x", "BYTES", (1, 1), b"\5\0\0\0a"),), "text"), INVALID, "'x'"),
    "endless element": (Call((Tensor("x", "BYTES", (1, 1), b"\xff\xff\xff\xff"),), "text"), INVALID, "'x'"),
    "surplus element": (Call((Tensor("x", "BYTES", (1, 1), bytes(8)),), "text"), INVALID, "'x'"),
    "element not UTF-8": (
        Call((Tensor("x", "BYTES", (1, 1), b"\1\0\0\0\xff"),), "text"),
        INVALID,
        "input 'x': element 0 is not UTF-8 text",
    ),
    "more than a pipeline's memory": (
        Call((Tensor("x", "INT32", (1, 200_000), bytes(800_000)),), "wide"),
        INVALID,
        "need 1600000 bytes, but the limit for all requests of a pipeline together is ",
    ),
    "answers that do not fit together": (
        Call((Tensor(), Tensor("z", "FP32", (1, 3), bytes(12))), "chained"),
        FAILED,
        "stage 'vote': answers of the shapes",
    ),
    "slo of 0": (Call(parameters={"slo_ms": 0}), INVALID, "'slo_ms'"),
    "slo as text": (Call(parameters={"slo_ms": "5"}), INVALID, "'slo_ms'"),
    "negative timeout": (Call(parameters={"timeout": -1}), INVALID, "'timeout'"),
    "reserved parameter": (Call(parameters={"triton_x": True}), INVALID, "'triton_x' is reserved"),
    "reserved name": (Call(parameters={"headers": "x"}), INVALID, "'headers' is reserved"),
    "sequence as a number of no type": (Call(parameters={"sequence_id": True}), INVALID, "'sequence_id'"),
    "negative priority": (Call(parameters={"priority": -1}), INVALID, "'priority'"),
    "priority as text": (Call(parameters={"priority": "1"}), INVALID, "'priority'"),
    "dimensions that overflow": (
        Call((Tensor("x", "INT32", (1, 2**63 - 1), b""),), "wide"),
        INVALID,
        "'x' has 0 bytes of data",
    ),
    "classes of strings": (
        Call((Tensor("x", "BYTES", (1, 1), bytes(4)),), "text", outputs=(Output(parameters={"classification": 1}),)),
        INVALID,
        "class result not available for output 'y' due to unsupported type 'BYTES'",
    ),
    "negative classes": (Call(outputs=(Output(parameters={"classification": -1}),)), INVALID, "classification"),
    "classes as text": (Call(outputs=(Output(parameters={"classification": "1"}),)), INVALID, "classification"),
    "classes in shared memory": (
        Call(outputs=(Output(parameters={"classification": 1, **place()}),)),
        INVALID,
        "output 'y': classification is not possible for an output in shared memory",
    ),
    "unknown input region": (
        Call((Tensor(data=None, parameters=place("other")),)),
        NOT_FOUND,
        "Unable to find shared memory region: 'other'",
    ),
    "unknown output region": (
        Call(outputs=(Output(parameters=place("other")),)),
        NOT_FOUND,
        "Unable to find shared memory region: 'other'",
    ),
    "offset beyond the region": (
        Call((Tensor(data=None, parameters=place(offset=65)),)),
        INVALID,
        "Invalid offset for shared memory region: 'r': expected 0 to 64, got 65",
    ),
    "more than the region": (
        Call((Tensor(data=None, parameters=place(offset=60)),)),
        INVALID,
        "Invalid offset + byte size for shared memory region: 'r' has 64 bytes, but 8 from 60 on were asked for",
    ),
    "output beyond the region": (
        Call(outputs=(Output(parameters=place(byte_size=2**62, offset=8)),)),
        INVALID,
        "Invalid offset + byte size",
    ),
    "negative size in a region": (Call((Tensor(data=None, parameters=place(byte_size=-1)),)), INVALID, "byte"),
    "region without a size": (
        Call((Tensor(data=None, parameters={"shared_memory_region": "r"}),)),
        INVALID,
        "shared_memory_byte_size",
    ),
    "size without a region": (
        Call(outputs=(Output(parameters={"shared_memory_byte_size": 8}),)),
        INVALID,
        "shared_memory_region",
    ),
    "shared data of the wrong size": (
        Call((Tensor(data=None, parameters=place(byte_size=4)),)),
        INVALID,
        "'x' has 4 bytes of data, but its shape [1,2] of FP32 takes 8",
    ),
    "output larger than its place": (
        Call(outputs=(Output(parameters=place(byte_size=4)),)),
        INVALID,
        "output 'y' (4 bytes) should be at least 8 bytes to hold the results",
    ),
    "hopeless objective": (Call(model="strict", parameters={"slo_ms": 1e-6}), UNAVAILABLE, "deadline"),
    "hopeless timeout": (Call(model="strict", parameters={"timeout": 1}), UNAVAILABLE, "deadline"),
}


SOURCES = {
    "L0_decoupled": ["decoupled model"],
    "L0_server_status": ["unknown model", "unknown version", "broken model"],
    "L0_input_validation": [
        *["no inputs", "missing input", "unknown input", "extra input", "unknown output", "wrong datatype"],
        *["no datatype", "wrong dimension", "wrong rank", "dimension of -1", "rows of -1", "no rows", "rows disagree"],
        *["too many rows", "short data", "long data"],
    ],
    "L0_http": ["duplicate input", "duplicate output", "overflowing shape", "dimensions that overflow"],
    "L0_string_io": ["short element", "endless element", "surplus element", "element not UTF-8"],
    "L0_parameters": ["reserved parameter", "reserved name", "negative timeout"],
    "L0_sequence_batcher": ["no sequence", "sequence not started", "rows of a sequence"],
    "L0_model_queue": ["negative priority", "priority as text"],
    "L0_infer": ["classes of strings", "negative classes", "classes as text", "classes in shared memory"],
    "L0_shared_memory": [
        *["unknown input region", "unknown output region", "offset beyond the region", "more than the region"],
        *["output beyond the region", "negative size in a region", "region without a size", "size without a region"],
        *["shared data of the wrong size"],
    ],
}
DIFFERENT = {
    "output larger than its place": ("L0_shared_memory", "500"),
}


def replayed(case: str) -> list[pytest.MarkDecorator]:
    """The behaviour of Triton that a case replays; some ask for a feature that Triton lacks."""
    (http, code), text = CASES[case][1], f"a bad request: {case}"
    text = f"{text} is refused with {http}, {code.name}"
    if case in DIFFERENT:
        source, triton = DIFFERENT[case]
        return [pytest.mark.behaviour(source, text, triton=triton, through="socket grpc")]
    return [
        pytest.mark.behaviour(source, text, through="socket grpc") for source, cases in SOURCES.items() if case in cases
    ]


@pytest.mark.parametrize("protocol", [over_http, over_grpc])
@pytest.mark.parametrize("case", [pytest.param(case, marks=replayed(case)) for case in CASES])
def test_a_bad_request_is_refused_with_status_and_sentence(
    server: GatewayServer, case: str, protocol: Callable[[GatewayServer, Call], tuple[object, str]]
) -> None:
    call, codes, sentence = CASES[case]
    status, message = protocol(server, call)
    assert status in codes
    assert sentence in message
    assert protocol(server, Call())[0] in (200, grpc.StatusCode.OK)


@pytest.mark.behaviour("L0_infer_zero", "a variable dimension may be 0", through="socket grpc")
@pytest.mark.parametrize("protocol", [over_http, over_grpc])
def test_variable_items_may_be_empty(
    server: GatewayServer, protocol: Callable[[GatewayServer, Call], tuple[object, str]]
) -> None:
    status, message = protocol(server, Call((Tensor("x", "INT32", (2, 0), b""),), "wide"))
    assert (status in (200, grpc.StatusCode.OK), message) == (True, "")
