"""HTTP bodies to requests, responses to HTTP bodies."""

import json
import math
from typing import Any, cast

import numpy as np
import pytest

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.json_rules import JsonRules
from sluice.gateway.http.codec import decode_request, encode_response
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.request import InferResponse, SharedMemoryOutput
from sluice.gateway.protocol.shared_memory import SharedMemoryRef
from sluice.gateway.protocol.signature import Signature
from sluice.models.errors import BadTensor, RequestError
from sluice.models.tensors.arrays import WireBytes, encode_bytes
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import identity

SIGNATURE = Signature(
    identity("m", ("x", DataType.FP32, (2,)), ("s", DataType.BYTES, (1,)), ("h", DataType.FP16, (1,)))
)
BINARY = {"binary_data_output": True}
RULES = JsonRules()
"""Bytes of tensors that an answer may have as JSON."""


def encode(message: dict[str, Any], blobs: bytes = b"") -> tuple[bytes, int]:
    head = json.dumps(message).encode()
    return head + blobs, len(head)


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2], **changes}


def test_json_and_binary_tensors_mix_and_binary_ones_are_views() -> None:
    inputs = [
        tensor(name="a", data=None, parameters={"binary_data_size": 8}),
        tensor(),
        tensor(name="b", data=None, parameters={"binary_data_size": 4}),
    ]
    for each in inputs:
        if each["data"] is None:
            del each["data"]
    body, length = encode(
        {"id": "7", "inputs": inputs, "parameters": {**BINARY, "slo_ms": 5, "mine": "kept"}}, b"12345678abcd"
    )
    request, flags = decode_request(body, length, SIGNATURE)
    assert request.id == "7"
    assert request.parameters == {"slo_ms": 5, "mine": "kept"}
    first, second, third = request.inputs
    assert isinstance(first.data, memoryview)
    assert first.data.obj is body
    assert bytes(first.data) == b"12345678"
    assert isinstance(second.data, np.ndarray)
    assert second.data.tolist() == [1, 2]
    assert isinstance(third.data, memoryview)
    assert bytes(third.data) == b"abcd"
    assert flags == (True, True, True)


def test_outputs_say_each_for_themselves_whether_they_are_binary() -> None:
    outputs = [{"name": "s"}, {"name": "x", "parameters": {"binary_data": False}}]
    body, _ = encode({"inputs": [tensor()], "outputs": outputs, "parameters": BINARY})
    request, flags = decode_request(body, None, SIGNATURE)
    assert request.outputs == ["s", "x"]
    assert flags == (True, False)


@pytest.mark.parametrize("literal", ["1", "NaN"])  # the second is read by another parser
def test_members_that_are_null_count_as_absent(literal: str) -> None:
    signature = Signature(identity("m", ("x", DataType.FP32, (2,))))
    nothing = {"binary_data_size": None, "shared_memory_region": None, "shared_memory_offset": None}
    inputs = [
        tensor(parameters=nothing),
        tensor(parameters=None, name="b"),
        tensor(data=None, parameters={**nothing, "binary_data_size": 8}),
    ]
    output = {"binary_data": None, "classification": None, "shared_memory_byte_size": None}
    for outputs, parameters in (None, None), ([{"name": "x", "parameters": output}], {"slo_ms": None, "mine": 1}):
        message = {"id": None, "inputs": inputs, "outputs": outputs, "parameters": parameters}
        text = json.dumps(message).replace('"data": [1', f'"data": [{literal}').encode()
        request, flags = decode_request(text + bytes(8), len(text), signature)
        assert (request.id, request.parameters) == ("", {} if parameters is None else {"mine": 1})
        assert request.outputs == (() if outputs is None else ["x"])
        assert flags == (False,)
        assert isinstance(request.inputs[2].data, memoryview)


def test_data_that_is_null_is_not_there() -> None:
    with pytest.raises(RequestError, match="must have exactly one of 'data' and the parameters"):
        decode_request(encode({"inputs": [tensor(data=None)]})[0], None, SIGNATURE)


def test_nan_and_infinity_are_read_though_json_lacks_them() -> None:
    text = '{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [[NaN, Infinity, -Infinity]]}]}'
    outputs = Signature(identity("m", ("x", DataType.FP32, (3,))))
    request, _ = decode_request(text.encode(), None, outputs)
    data = request.inputs[0].data
    assert isinstance(data, np.ndarray)
    assert math.isnan(data[0])
    assert data[1:].tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not an inference request in JSON"),
        ("{", "not an inference request in JSON"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `inputs`"),
        ('{"inputs": [{"shape": [1], "datatype": "FP32"}]}', "missing required field `name` - at `$.inputs[0]`"),
        ('{"inputs": [{"name": "x", "shape": [1.5], "datatype": "FP32"}]}', "at `$.inputs[0].shape[0]`"),
        ('{"inputs": [{"name": 1, "shape": [1], "datatype": "FP32"}]}', "at `$.inputs[0].name`"),
        ('{"inputs": [], "parameters": {"a": {}}}', "at `$.parameters[...]`"),
        ('{"inputs": [], "id": 3}', "at `$.id`"),
        ('{"inputs": [NaN]}', "at `$.inputs[0]`"),
        ('{"inputs": ' + "[" * 250_000, "not an inference request"),
        ('{"inputs": NaN ' + "[" * 250_000, "not an inference request"),
        ('{"inputs": [], "parameters": {"binary_data_output": 1}}', "'binary_data_output' must be true or false"),
    ],
)
def test_malformed_bodies_are_refused_with_the_place(text: str, problem: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_request(text.encode(), None, SIGNATURE)
    assert problem in str(caught.value)


def test_a_body_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(RequestError, match="not an inference request in JSON"):
        decode_request(b'{"id": "\xff", "inputs": []}', None, SIGNATURE)


@pytest.mark.parametrize(
    ("parameters", "blobs", "problem"),
    [
        ({"binary_data_size": 9}, b"12345678", "input 'x' has binary_data_size 9, but the body has only 8 bytes left"),
        ({"binary_data_size": 8}, b"12345678extra", "5 bytes more than its tensors take"),
        ({"binary_data_size": -1}, b"", ">= 0 - at `$.inputs[0].parameters.binary_data_size`"),
        ({"binary_data_size": "8"}, b"", "Expected `int | null`, got `str`"),
        ({}, b"", "input 'x' must have exactly one of 'data' and the parameters 'binary_data_size'"),
    ],
)
def test_binary_sizes_must_add_up(parameters: dict[str, Any], blobs: bytes, problem: str) -> None:
    body, length = encode(
        {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": parameters}]}, blobs
    )
    with pytest.raises(RequestError) as caught:
        decode_request(body, length, SIGNATURE)
    assert problem in str(caught.value)


def test_the_json_part_cannot_be_longer_than_the_body() -> None:
    body, length = encode({"inputs": [tensor()]})
    with pytest.raises(RequestError, match="but the body has only"):
        decode_request(body, length + 1, SIGNATURE)
    with pytest.raises(RequestError, match="must have exactly one of"):
        decode_request(encode({"inputs": [tensor(parameters={"binary_data_size": 8})]})[0], None, SIGNATURE)
    del (wire := tensor(parameters={"binary_data_size": 0}))["data"]
    with pytest.raises(RequestError, match="no Inference-Header-Content-Length"):
        decode_request(encode({"inputs": [wire]})[0], None, SIGNATURE)


PLACE = {"shared_memory_region": "r", "shared_memory_byte_size": 8}


def test_tensors_may_lie_in_shared_memory_and_take_no_bytes_of_the_body() -> None:
    shared = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {**PLACE, "shared_memory_offset": 16}}
    binary = {"name": "h", "shape": [1, 1], "datatype": "FP16", "parameters": {"binary_data_size": 2}}
    outputs = [
        {"name": "s", "parameters": {"classification": 3}},
        {"name": "x", "parameters": PLACE},
        {"name": "h"},
    ]
    body, length = encode({"inputs": [shared, binary], "outputs": outputs, "parameters": BINARY}, b"ab")
    request, flags = decode_request(body, length, SIGNATURE)
    assert request.inputs[0].data == SharedMemoryRef("r", 8, 16)
    assert bytes(cast(memoryview, request.inputs[1].data)) == b"ab"
    assert request.shared
    assert request.outputs == ["s", "x", "h"]
    assert request.deliveries == {"s": 3, "x": SharedMemoryRef("r", 8, 0)}
    assert flags == (True, True, True)


@pytest.mark.parametrize(
    ("inputs", "outputs", "problem"),
    [
        ([tensor(parameters=PLACE)], [], "input 'x' must have exactly one of"),
        ([], [{"name": "x", "parameters": {"shared_memory_region": "r"}}], "output 'x' must have both 'shared_mem"),
        ([], [{"name": "x", "parameters": {"shared_memory_byte_size": 8}}], "output 'x' must have both 'shared_mem"),
        ([], [{"name": "x", "parameters": {**PLACE, "shared_memory_offset": -1}}], "shared_memory_offset"),
        ([], [{"name": "x", "parameters": {**PLACE, "classification": 1}}], "classification is not possible for an"),
        ([], [{"name": "x", "parameters": {"classification": -1}}], "classification"),
        ([], [{"name": "x", "parameters": {"classification": "3"}}], "classification"),
    ],
)
def test_what_cannot_be_delivered_so_is_refused(inputs: list[Any], outputs: list[Any], problem: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_request(encode({"inputs": inputs, "outputs": outputs})[0], None, SIGNATURE)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("datatype", "shape", "body", "wire_shape", "data"),
    [
        (DataType.FP32, (2,), b"12345678", (1, 2), b"12345678"),
        (DataType.FP32, (-1,), b"12345678", (1, 2), b"12345678"),
        (DataType.FP32, (-1,), b"", (1, 0), b""),
        (DataType.INT16, (3, -1, 2), b"x" * 24, (1, 3, 2, 2), b"x" * 24),
        (DataType.BYTES, (1,), b"raw", (1, 1), b"\3\0\0\0raw"),
        (DataType.BYTES, (1,), b"", (1, 1), b"\0\0\0\0"),
    ],
)
def test_a_raw_body_is_the_one_input_of_one_row(
    datatype: DataType, shape: tuple[int, ...], body: bytes, wire_shape: tuple[int, ...], data: bytes
) -> None:
    request, flags = decode_request(body, 0, Signature(identity("m", ("x", datatype, shape))))
    (given,) = request.inputs
    assert (given.name, given.datatype, given.shape) == ("x", datatype, wire_shape)
    assert bytes(cast(memoryview, given.data)) == data
    assert flags == (True,)


def test_a_raw_body_has_no_rows_where_the_model_has_none() -> None:
    signature = Signature(identity("m", ("x", DataType.FP32, (2, -1)), max_batch_size=0))
    assert decode_request(bytes(24), 0, signature)[0].inputs[0].shape == (2, 3)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ([("a", DataType.FP32, (1,)), ("b", DataType.FP32, (1,))], "Raw request must only have 1 input (found 1)"),
        ([("a", DataType.FP32, (-1, -1))], "there are more than one variable-sized dimension"),
        ([("a", DataType.BYTES, (2,))], "the model must have input shape [1]"),
        ([("a", DataType.BYTES, (-1,))], "the model must have input shape [1]"),
    ],
)
def test_a_raw_body_that_could_mean_several_things_is_refused(tensors: list[Any], problem: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_request(bytes(8), 0, Signature(identity("m", *tensors)))
    assert problem in str(caught.value)


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16])
def test_half_floats_cannot_be_asked_for_in_json(datatype: DataType) -> None:
    signature = Signature(identity("m", ("x", DataType.FP32, (2,)), ("h", datatype, (1,))))
    with pytest.raises(RequestError, match=f"output 'h' is {datatype}, which JSON cannot carry"):
        decode_request(encode({"inputs": [tensor()]})[0], None, signature)
    request, flags = decode_request(encode({"inputs": [tensor()], "outputs": [{"name": "x"}]})[0], None, signature)
    assert (request.outputs, flags) == (["x"], (False,))


def respond(*outputs: tuple[str, Tensor | SharedMemoryOutput], id: str = "") -> InferResponse:
    return InferResponse(id, list(outputs), Answer(Outcome.COMPLETED))


def encoded(
    response: InferResponse, binary_flags: tuple[bool, ...], signature: Signature
) -> tuple[bytes, list[Any], int]:
    body = encode_response(response, binary_flags, signature, RULES)
    return body.head, body.blobs, body.length


def test_a_binary_response_is_json_then_the_tensors() -> None:
    x = np.array([[1, 2]], np.float32)
    buffer, offsets = encode_bytes(np.array([[b"skipped"], [b"\xff"]], np.object_))
    head, blobs, length = encoded(
        respond(("x", x), ("s", WireBytes(buffer, (1, 1), offsets[1:])), id="9"), (True, True), SIGNATURE
    )
    assert json.loads(head) == {
        "model_name": "m",
        "model_version": "1",
        "id": "9",
        "outputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
            {"name": "s", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": 5}},
        ],
    }
    assert [bytes(blob) for blob in blobs] == [x.tobytes(), b"\x01\x00\x00\x00\xff"]
    assert length == len(head) + 8 + 5
    assert np.shares_memory(blobs[0], x)


def test_a_json_response_has_no_id_unless_the_request_had_one() -> None:
    head, blobs, length = encoded(respond(("x", np.array([[1, 2]], np.float32))), (False,), SIGNATURE)
    assert (blobs, length) == ([], len(head))
    assert json.loads(head) == {
        "model_name": "m",
        "model_version": "1",
        "outputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}],
    }


def test_an_answer_with_more_json_than_it_may_have_is_refused_by_the_name_of_the_output() -> None:
    x = np.zeros((100, 2), np.float32)
    assert encode_response(respond(("x", x)), (True,), SIGNATURE, JsonRules(answer_bytes=10)).length > 800
    response = respond(("x", x), ("x", x))
    size = 2 * len("[" + "0.0," * 199 + "0.0]")
    assert encode_response(response, (False, False), SIGNATURE, JsonRules(answer_bytes=size)).length > size
    with pytest.raises(BadTensor) as refused:
        encode_response(response, (False, False), SIGNATURE, JsonRules(answer_bytes=size - 1))
    assert str(refused.value) == (
        f"output 'x': the JSON of the answer exceeds {size - 1} bytes; ask for large tensors as binary data or over "
        "gRPC"
    )


def test_outputs_that_are_not_contiguous_are_written_in_row_order() -> None:
    turned = np.array([[1, 2], [3, 4]], np.float32).T
    (blob,) = encode_response(respond(("x", turned)), (True,), SIGNATURE, RULES).blobs
    assert bytes(blob) == np.array([1, 3, 2, 4], np.float32).tobytes()
    head = encode_response(respond(("x", turned)), (False,), SIGNATURE, RULES).head
    assert json.loads(head)["outputs"][0]["data"] == [1, 3, 2, 4]


def test_outputs_that_are_elsewhere_or_classes_are_reported_as_such() -> None:
    buffer, offsets = encode_bytes(np.array([["0.5:1"]], np.object_))
    head, blobs, _ = encoded(
        respond(
            ("h", SharedMemoryOutput(SharedMemoryRef("r", 2, 4), (1, 1))), ("x", WireBytes(buffer, (1, 1), offsets))
        ),
        (False, False),
        SIGNATURE,
    )
    assert blobs == []
    assert json.loads(head)["outputs"] == [
        {"name": "h", "datatype": "FP16", "shape": [1, 1]},
        {"name": "x", "datatype": "BYTES", "shape": [1, 1], "data": ["0.5:1"]},
    ]
