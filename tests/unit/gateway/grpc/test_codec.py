"""Inputs and outputs in messages that are not there as they are: in shared memory, or as classes."""

from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.grpc.codec import decode_request, encode_response
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.request import InferResponse, SharedMemoryOutput
from sluice.gateway.protocol.shared_memory import SharedMemoryRef
from sluice.gateway.protocol.signature import Signature
from sluice.models.errors import RequestError
from sluice.models.tensors.arrays import WireBytes, encode_bytes
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import identity

SIGNATURE = Signature(identity("m", ("x", DataType.FP32, (2,)), ("h", DataType.BF16, (1,))))


def with_parameters(message: Any, **parameters: str | int | float) -> Any:
    fields = {str: "string_param", int: "int64_param", float: "double_param"}
    for name, value in parameters.items():
        setattr(message.parameters[name], fields[type(value)], value)
    return message


def given(name: str, **parameters: str | int | float) -> Any:
    return with_parameters(
        pb.ModelInferRequest.InferInputTensor(name=name, datatype="FP32", shape=[1, 2]), **parameters
    )


def wanted(name: str, **parameters: str | int | float) -> Any:
    return with_parameters(pb.ModelInferRequest.InferRequestedOutputTensor(name=name), **parameters)


def place(offset: int = 0) -> dict[str, str | int | float]:
    return {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": offset}


def test_raw_contents_are_of_the_inputs_that_are_not_in_shared_memory() -> None:
    inputs = [given("a"), given("x", **place(4)), given("b")]
    request = decode_request(pb.ModelInferRequest(inputs=inputs, raw_input_contents=[b"12345678", b"abcdefgh"]))
    assert [tensor.data for tensor in request.inputs] == [b"12345678", SharedMemoryRef("r", 8, 4), b"abcdefgh"]
    assert request.shared
    alone = decode_request(pb.ModelInferRequest(inputs=[given("x", **place())]))
    assert [tensor.data for tensor in alone.inputs] == [SharedMemoryRef("r", 8, 0)]


def test_outputs_say_where_they_go() -> None:
    unsigned = wanted("y", shared_memory_region="r")
    unsigned.parameters["shared_memory_byte_size"].uint64_param = 9
    outputs = [wanted("x", **place(2)), wanted("h", classification=3), unsigned, wanted("z")]
    request = decode_request(pb.ModelInferRequest(outputs=outputs))
    assert request.outputs == ["x", "h", "y", "z"]
    assert request.deliveries == {"x": SharedMemoryRef("r", 8, 2), "h": 3, "y": SharedMemoryRef("r", 9, 0)}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (
            pb.ModelInferRequest(inputs=[given("x", **place()), given("b")], raw_input_contents=[b"", b""]),
            "raw_input_contents has 2 entries, but the request has 1 inputs that are not in shared memory",
        ),
        (
            pb.ModelInferRequest(inputs=[given("a"), given("b")], raw_input_contents=[b""]),
            "raw_input_contents has 1 entries, but the request has 2 inputs",
        ),
        (pb.ModelInferRequest(inputs=[{"name": "x", "datatype": "BF16"}]), "datatype 'BF16', which must be sent raw"),
        (
            pb.ModelInferRequest(outputs=[wanted("x", shared_memory_byte_size=8)]),
            "output 'x' must have the parameter 'shared_memory_region' as well",
        ),
        (
            pb.ModelInferRequest(outputs=[wanted("x", shared_memory_region=1, shared_memory_byte_size=8)]),
            "output 'x': parameter 'shared_memory_region' must be a string",
        ),
        (
            pb.ModelInferRequest(outputs=[wanted("x", shared_memory_region="r", shared_memory_byte_size=8.0)]),
            "output 'x': parameter 'shared_memory_byte_size' must be an integer",
        ),
        (pb.ModelInferRequest(outputs=[wanted("x", classification="3")]), "'classification' must be an integer"),
        (pb.ModelInferRequest(outputs=[wanted("x", classification=0)]), "classification must be at least 1, got 0"),
        (
            pb.ModelInferRequest(outputs=[wanted("x", classification=1, **place())]),
            "output 'x': classification is not possible for an output in shared memory",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(message: Any, problem: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_request(message)
    assert problem in str(caught.value)


def test_an_input_has_its_data_in_one_place() -> None:
    both = given("x", **place())
    both.contents.fp32_contents[:] = [1, 2]
    with pytest.raises(RequestError, match="input 'x' has both contents and the parameter 'shared_memory_region'"):
        decode_request(pb.ModelInferRequest(inputs=[both]))


def test_every_output_has_raw_contents_even_one_in_shared_memory() -> None:
    buffer, offsets = encode_bytes(np.array([["0.5:1"]], np.object_))
    outputs: list[tuple[str, Tensor | SharedMemoryOutput]] = [
        ("h", SharedMemoryOutput(SharedMemoryRef("r", 2, 4), (1, 1))),
        ("x", WireBytes(buffer, (1, 1), offsets)),
    ]
    message = encode_response(InferResponse("", outputs, Answer(Outcome.COMPLETED)), SIGNATURE)
    assert [(each.name, each.datatype) for each in message.outputs] == [("h", "BF16"), ("x", "BYTES")]
    assert list(message.raw_output_contents) == [b"", b"\x05\0\0\x000.5:1"]
    parameters = message.outputs[0].parameters
    assert parameters["shared_memory_region"].string_param == "r"
    assert parameters["shared_memory_byte_size"].int64_param == 2
    assert parameters["shared_memory_offset"].int64_param == 4
