"""ModelInfer messages to requests and back, and the service on a real channel."""

import asyncio
import socket
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.front_door import GrpcServerKind
from sluice.gateway.grpc.codec import decode_request
from sluice.gateway.grpc.service import grpc_server
from sluice.gateway.protocol.answer import Answer
from sluice.models.errors import ConfigError, RequestError
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.grpc.grpc_channel import converse, refusal
from tests.unit.gateway.instant_gateway import ARRIVED_NS, TIMEOUT_S, InstantGateway, identity, instant_gateway

PB = service_pb2
Input = PB.ModelInferRequest.InferInputTensor
Contents = PB.InferTensorContents


def message(*inputs: Any, raw: tuple[bytes, ...] = (), **fields: Any) -> Any:
    return PB.ModelInferRequest(model_name="m", inputs=inputs, raw_input_contents=raw, **fields)


@pytest.mark.parametrize(
    ("datatype", "contents", "dtype", "values"),
    [
        ("BOOL", Contents(bool_contents=[True, False]), np.bool_, [True, False]),
        ("INT8", Contents(int_contents=[-128, 127]), np.int8, [-128, 127]),
        ("INT16", Contents(int_contents=[-32768]), np.int16, [-32768]),
        ("INT32", Contents(int_contents=[-(2**31)]), np.int32, [-(2**31)]),
        ("INT64", Contents(int64_contents=[-(2**63)]), np.int64, [-(2**63)]),
        ("UINT8", Contents(uint_contents=[255]), np.uint8, [255]),
        ("UINT16", Contents(uint_contents=[65535]), np.uint16, [65535]),
        ("UINT32", Contents(uint_contents=[2**32 - 1]), np.uint32, [2**32 - 1]),
        ("UINT64", Contents(uint64_contents=[2**64 - 1]), np.uint64, [2**64 - 1]),
        ("FP32", Contents(fp32_contents=[0.5]), np.float32, [0.5]),
        ("FP64", Contents(fp64_contents=[0.1]), np.float64, [0.1]),
    ],
)
def test_typed_contents_become_arrays(datatype: str, contents: Any, dtype: type, values: list[float]) -> None:
    request = decode_request(message(Input(name="x", datatype=datatype, shape=[1, len(values)], contents=contents)))
    (tensor,) = request.inputs
    assert tensor.shape == (1, len(values))
    assert isinstance(tensor.data, np.ndarray)
    assert tensor.data.dtype == dtype
    assert tensor.data.tolist() == values


def test_bytes_come_as_a_list_and_raw_contents_as_they_are() -> None:
    typed = decode_request(message(Input(name="x", datatype="BYTES", contents=Contents(bytes_contents=[b"a", b""]))))
    assert typed.inputs[0].data == [b"a", b""]
    raw = decode_request(message(Input(name="x", datatype="FP32", shape=[1]), raw=(b"1234",), id="7"))
    assert (raw.inputs[0].data, raw.id) == (b"1234", "7")


def test_parameters_keep_their_types() -> None:
    request = message()
    request.parameters["slo_ms"].double_param = 1.5
    request.parameters["timeout"].int64_param = 3
    request.parameters["priority"].uint64_param = 1
    request.parameters["mine"].string_param = "s"
    assert decode_request(request).parameters == {"slo_ms": 1.5, "timeout": 3, "priority": 1, "mine": "s"}


SHARED = Input(name="x", datatype="FP32")
SHARED.parameters["shared_memory_region"].string_param = "r"


@pytest.mark.parametrize(
    ("request_message", "kind", "problem"),
    [
        (
            message(Input(name="x"), raw=(b"", b"")),
            RequestError,
            "raw_input_contents has 2 entries, but the request has 1",
        ),
        (
            message(Input(name="x", contents=Contents(fp32_contents=[1])), raw=(b"",)),
            RequestError,
            "input 'x' has typed contents, but the request has raw_input_contents",
        ),
        (
            message(Input(name="x", datatype="FP32", contents=Contents(int_contents=[1]))),
            RequestError,
            "input 'x' of FP32 has its data in int_contents: expected fp32_contents",
        ),
        (
            message(Input(name="x", datatype="UINT8", contents=Contents(uint_contents=[256]))),
            RequestError,
            "input 'x' has a value that is out of range of UINT8",
        ),
        (message(Input(name="x", datatype="FP16")), RequestError, "datatype 'FP16', which must be sent raw"),
        (message(Input(name="x", datatype="FP31")), RequestError, "datatype 'FP31', which is none of BOOL"),
        (
            message(SHARED),
            RequestError,
            "input 'x' must have the parameter 'shared_memory_byte_size' as well",
        ),
    ],
)
def test_bad_messages_are_refused_by_name(request_message: Any, kind: type[Exception], problem: str) -> None:
    with pytest.raises(kind) as caught:
        decode_request(request_message)
    assert problem in str(caught.value)


@pytest.fixture
def served() -> InstantGateway:
    return instant_gateway(identity("m", ("x", DataType.FP32, (2,))))


REQUEST = message(Input(name="x", datatype="FP32", shape=[1, 2]), raw=(np.array([1, 2], np.float32).tobytes(),), id="7")


def test_inference_answers_raw_and_honours_the_clients_deadline(served: InstantGateway, kind: GrpcServerKind) -> None:
    async def talk(stub: Any) -> None:
        reply = await stub.ModelInfer(REQUEST, timeout=100)
        assert (reply.model_name, reply.model_version, reply.id) == ("m", "1", "7")
        assert [(each.name, each.datatype, list(each.shape)) for each in reply.outputs] == [("x", "FP32", [1, 2])]
        assert np.frombuffer(reply.raw_output_contents[0], np.float32).tolist() == [1, 2]

    converse(served, talk, kind)
    due_ns = served.runtime.submitted[0]["deadline_ns"]
    assert ARRIVED_NS < due_ns <= ARRIVED_NS + 100_000_000_000
    assert served.runtime.released == 1


def test_health_and_metadata(served: InstantGateway, kind: GrpcServerKind) -> None:
    async def talk(stub: Any) -> None:
        assert (await stub.ServerLive(PB.ServerLiveRequest())).live
        assert (await stub.ServerReady(PB.ServerReadyRequest())).ready
        assert (await stub.ModelReady(PB.ModelReadyRequest(name="m", version="1"))).ready
        for name, version in (("other", ""), ("m", "2"), ("m", "x"), ("broken", "")):
            assert not (await stub.ModelReady(PB.ModelReadyRequest(name=name, version=version))).ready
        server = await stub.ServerMetadata(PB.ServerMetadataRequest())
        assert (server.name, server.version) == ("sluice", "1.2.3")
        assert list(server.extensions)[-3:] == ["parameters", "statistics", "logging"]
        model = await stub.ModelMetadata(PB.ModelMetadataRequest(name="m"))
        assert (model.name, list(model.versions), model.platform) == ("m", ["1"], "sluice_pipeline")
        assert [(each.name, each.datatype, list(each.shape)) for each in model.inputs] == [("x", "FP32", [-1, 2])]
        code, details, _ = await refusal(stub.ModelMetadata(PB.ModelMetadataRequest(name="broken")))
        assert (code, "model.onnx is empty" in details) == (grpc.StatusCode.UNAVAILABLE, True)

    converse(served, talk, kind)


def test_errors_have_their_status_and_sentence(served: InstantGateway, kind: GrpcServerKind) -> None:
    async def talk(stub: Any) -> None:
        code, details, _ = await refusal(stub.ModelInfer(PB.ModelInferRequest(model_name="other")))
        assert (code, "other" in details) == (grpc.StatusCode.NOT_FOUND, True)
        code, details, _ = await refusal(stub.ModelInfer(PB.ModelInferRequest(model_name="m", model_version="x")))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details == "model version 'x' must be a number, or empty for the latest"
        code, details, metadata = await refusal(stub.ModelInfer(PB.ModelInferRequest(model_name="m")))
        assert (code, "retry-after" in metadata) == (grpc.StatusCode.INVALID_ARGUMENT, False)
        assert "missing required input(s) 'x'" in details
        served.runtime.answer = Answer(Outcome.REJECTED_QUEUE_FULL, "8 requests wait", 5)
        code, details, metadata = await refusal(stub.ModelInfer(REQUEST))
        assert (code, details) == (grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size: 8 requests wait")
        assert metadata["retry-after"] == "5"
        code, details, _ = await refusal(stub.CudaSharedMemoryStatus(PB.CudaSharedMemoryStatusRequest()))
        assert (code, details[:38]) == (grpc.StatusCode.UNIMPLEMENTED, "CUDA shared memory is not supported; u")

    converse(served, talk, kind)


def test_cancelling_the_call_cancels_the_request(served: InstantGateway, kind: GrpcServerKind) -> None:
    served.runtime.hold = True

    async def talk(stub: Any) -> None:
        call = stub.ModelInfer(REQUEST)
        await served.runtime.arrived.wait()
        call.cancel()
        await asyncio.wait_for(served.runtime.gone.wait(), TIMEOUT_S)
        assert served.runtime.cancelled == [1]

    converse(served, talk, kind)


def test_a_port_that_is_taken_is_named() -> None:
    async def bind(port: int) -> None:
        grpc_server(instant_gateway().dataplane, instant_gateway().control, "127.0.0.1", port, 1 << 20)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^gRPC port 127.0.0.1:{port} cannot be bound: Address already in use"):
            asyncio.run(bind(port))
