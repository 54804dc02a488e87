"""JSON objects of the generate extension as requests, and responses as JSON objects."""

import json
from typing import Any

import numpy as np
import pytest

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.json_rules import JsonRules
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.generate import decode_generate, encode_generated
from sluice.gateway.protocol.request import InferResponse, SharedMemoryOutput
from sluice.gateway.protocol.signature import Signature
from sluice.models.errors import RequestError
from sluice.models.pipelines.check import single_model
from sluice.models.spec import ModelSpec
from sluice.models.tensors.arrays import WireBytes, encode_bytes
from sluice.models.tensors.spec import DataType, TensorSpec


def signature(*inputs: TensorSpec, rows: int = 0, output: DataType = DataType.INT32) -> Signature:
    given = inputs or (TensorSpec("text_input", DataType.BYTES, (1,)), TensorSpec("ids", DataType.INT32, (-1,)))
    return Signature(single_model(ModelSpec("m", 1, given, (TensorSpec("out", output, (-1,)),), rows)))


def decoded(fields: object, of: Signature | None = None) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The shapes and values of inputs, the parameters, and the id."""
    request = decode_generate(json.dumps(fields).encode(), of or signature())
    inputs = {tensor.name: (tensor.shape, list(tensor.data)) for tensor in request.inputs}  # type: ignore[arg-type]
    return inputs, dict(request.parameters), request.id


def test_fields_are_inputs_by_name_and_parameters_otherwise() -> None:
    fields = {"text_input": "hello", "ids": [1, 2], "temperature": 0.5, "stream": False, "top": 3, "stop": "."}
    assert decoded(fields) == (
        {"text_input": ((1,), ["hello"]), "ids": ((2,), [1, 2])},
        {"temperature": 0.5, "stream": False, "top": 3, "stop": "."},
        "",
    )


def test_the_object_of_parameters_may_have_inputs_as_well() -> None:
    assert decoded({"id": "7", "parameters": {"ids": 4, "top": 3}}) == ({"ids": ((1,), [4])}, {"top": 3}, "7")


@pytest.mark.parametrize(
    ("shape", "rows", "count", "expected"),
    [
        ((-1,), 4, 3, (1, 3)),
        ((2, -1), 0, 6, (2, 3)),
        ((-1, -1), 0, 3, (1, 3)),
        ((2,), 4, 6, (3, 2)),
        ((1,), 0, 1, (1,)),
        ((-1,), 0, 0, (0,)),
    ],
)
def test_elements_fill_the_last_variable_dimension(
    shape: tuple[int, ...], rows: int, count: int, expected: tuple[int, ...]
) -> None:
    of = signature(TensorSpec("x", DataType.INT32, shape), rows=rows)
    assert decoded({"x": list(range(count))}, of)[0] == {"x": (expected, list(range(count)))}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "failed to parse the request JSON buffer"),
        ("[1]", "expected a JSON object, got list"),
        ('{"text_input": ["a", "b"]}', r"The schema can not convert input 'text_input' .* 2 elements, expected \[1\]"),
        ('{"text_input": 3}', "input 'text_input' has datatype BYTES, but its data does not fit"),
        ('{"ids": {"a": 1}}', "input 'ids': expected one value or a flat list of values"),
        ('{"ids": [[1]]}', "input 'ids': expected one value or a flat list of values"),
        ('{"ids": 1, "ids": 2}', "input 'ids' already exists in request"),
        ('{"ids": 1, "parameters": {"ids": 2}}', "input 'ids' already exists in request"),
        ('{"other": [1]}', "parameter 'other' has invalid type"),
        ('{"parameters": 3}', "'parameters': expected a JSON object, got int"),
        ('{"id": 3}', "'id': expected a string, got int"),
        ("[" * 100_000, "failed to parse"),
        ('{"top": NaN}', "failed to parse the request JSON buffer: NaN is not JSON"),
        (r'{"text_input": "\ud800"}', "failed to parse the request JSON buffer: .* surrogates not allowed"),
    ],
)
def test_bad_bodies_are_refused_with_the_reason(body: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        decode_generate(body.encode(), signature())


def test_a_field_that_is_null_counts_as_absent() -> None:
    fields = {"id": None, "text_input": None, "ids": 1, "top": None, "parameters": {"ids": None, "stop": None}}
    assert decoded(fields) == ({"ids": ((1,), [1])}, {}, "")
    assert decoded({"ids": 1, "parameters": None}) == ({"ids": ((1,), [1])}, {}, "")


def test_an_empty_body_has_no_fields() -> None:
    assert decode_generate(b" ", signature()).inputs == []


def test_outputs_that_json_cannot_carry_are_refused() -> None:
    with pytest.raises(RequestError, match="output 'out' is FP16, which JSON cannot carry"):
        decode_generate(b"{}", signature(output=DataType.FP16))


def test_outputs_are_fields_and_one_element_is_no_list() -> None:
    wire, offsets = encode_bytes(np.array([b"yes"], np.object_))
    outputs: list[tuple[str, Tensor | SharedMemoryOutput]] = [
        ("text", WireBytes(memoryview(wire), (1,), offsets)),
        ("one", np.array([[7]], np.int32)),
        ("two", np.array([[1.5], [np.nan]], np.float32)),
    ]
    response = InferResponse("a", outputs, Answer(Outcome.COMPLETED))
    text = encode_generated(response, signature(), JsonRules())
    assert text == b'{"id":"a","model_name":"m","model_version":"1","text":"yes","one":7,"two":[1.5,NaN]}'
