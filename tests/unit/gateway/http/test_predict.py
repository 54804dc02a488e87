"""Bodies of V1 to requests, responses to bodies of V1."""

import json
import math
from typing import Any

import numpy as np
import pytest

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.json_rules import JsonNan, JsonRules
from sluice.gateway.http.predict import PredictRequest, decode_invocation, decode_predict, encode_predictions
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.request import InferRequest, InferResponse
from sluice.gateway.protocol.signature import Signature
from sluice.models.errors import BadTensor, RequestError
from sluice.models.tensors.arrays import WireBytes, decode_bytes, encode_bytes
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import identity

ONE = Signature(identity("one", ("x", DataType.FP32, (2,))))
SCALAR = Signature(identity("scalar", ("x", DataType.FP32, (1,))))
TEXT = Signature(identity("text", ("s", DataType.BYTES, (1,))))
TWO = Signature(identity("two", ("x", DataType.FP32, (2,)), ("n", DataType.INT64, (1,))))
HALF = Signature(identity("half", ("h", DataType.FP16, (1,))))


def decode(message: object, signature: Signature = ONE) -> InferRequest:
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    return decode_predict(text, None, signature)[0]


def values(request: InferRequest, signature: Signature = ONE) -> dict[str, Any]:
    """The checked inputs of a request."""
    inputs = signature.check_inputs(request.inputs).inputs
    return {
        name: decode_bytes(tensor.buffer, tensor.shape).tolist()
        if isinstance(tensor, WireBytes)
        else (tensor.dtype.name, tensor.tolist())
        for name, tensor in inputs.items()
    }


def columnar(request: InferRequest) -> bool:
    assert isinstance(request, PredictRequest)
    return request.columnar


def encode(
    outputs: dict[str, Tensor],
    signature: Signature,
    nan: JsonNan = JsonNan.LITERAL,
    *,
    columnar: bool = False,
    json_bytes: int = 1000,
) -> bytes:
    answer = Answer(Outcome.COMPLETED, outputs=outputs)
    response = InferResponse("", list(outputs.items()), answer)
    body = encode_predictions(response, signature, JsonRules(answer_bytes=json_bytes, nan=nan), columnar=columnar)
    assert (body.blobs, body.length) == ([], len(body.head))
    return body.head


def test_instances_are_the_rows_of_an_only_input() -> None:
    request = decode({"instances": [[1, 2.5], [3, 4]]})
    assert values(request) == {"x": ("float32", [[1, 2.5], [3, 4]])}
    assert not columnar(request)


def test_inputs_are_a_whole_tensor() -> None:
    request = decode({"inputs": [[1, 2]], "instances": None})
    assert values(request) == {"x": ("float32", [[1, 2]])}
    assert columnar(request)


def test_tensors_are_named_where_there_are_several() -> None:
    expected = {"x": ("float32", [[1, 2], [3, 4]]), "n": ("int64", [[7], [8]])}
    by_row = decode({"instances": [{"x": [1, 2], "n": [7]}, {"x": [3, 4], "n": [8]}]}, TWO)
    by_tensor = decode({"inputs": {"x": [[1, 2], [3, 4]], "n": [[7], [8]]}}, TWO)
    assert values(by_row, TWO) == values(by_tensor, TWO) == expected


def test_an_instance_of_one_element_may_stand_without_its_list() -> None:
    assert values(decode({"instances": [1, 2, 3]}, SCALAR), SCALAR) == {"x": ("float32", [[1], [2], [3]])}
    assert values(decode({"instances": [{"x": 1}]}, SCALAR), SCALAR) == {"x": ("float32", [[1]])}


def test_strings_may_be_in_base_64() -> None:
    assert values(decode({"instances": ["ä", {"b64": "YWI="}]}, TEXT), TEXT) == {"s": [["ä".encode()], [b"ab"]]}
    assert values(decode({"inputs": [["a"], ["b"]]}, TEXT), TEXT) == {"s": [[b"a"], [b"b"]]}


def test_nan_and_infinities_are_read_as_literals() -> None:
    (_, (row,)) = values(decode(b'{"instances": [[NaN, -Infinity]]}'))["x"]
    assert math.isnan(row[0])
    assert row[1] == -math.inf


def test_parameters_are_those_of_v2_and_unknown_members_are_ignored() -> None:
    request = decode(
        {"instances": [[1, 2]], "parameters": {"slo_ms": 5, "no": None}, "signature_name": "serving_default", "id": 3}
    )
    assert request.parameters == {"slo_ms": 5}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"x", "not a V1 request in JSON"),
        ([], "not a V1 request: Expected `object`, got `array`"),
        ({}, "either 'instances' or 'inputs'"),
        ({"instances": [[1, 2]], "inputs": [[1, 2]]}, "either 'instances' or 'inputs'"),
        ({"inputs": [{"name": "x"}]}, "the 'inputs' are those of V2, which is served at /v2/models/NAME/infer"),
        ({"instances": 3}, "'instances' must be a list of at least one instance"),
        ({"instances": []}, "'instances' must be a list of at least one instance"),
        ({"instances": [[1, 2], [3]]}, "on level 2 the first one has 2 elements, and another one has not"),
        ({"instances": [[1, 2], 3]}, "on level 2 the first one has 2 elements"),
        ({"instances": [[1, "2"]]}, "'x' has datatype FP32, but its data does not fit: Expected `float`, got `str`"),
        ({"instances": [[1, "NaN"]]}, "Expected `float`, got `str`"),
        ({"instances": [[1, None]]}, "Expected `float`, got `null`"),
        ({"instances": [[1, 1e39]]}, "out of range of FP32"),
        ({"instances": [{"x": [1, 2]}, [3, 4]]}, "instance 1 must be an object with the inputs of the first one: 'x'"),
        ({"instances": [[1, 2]], "signature_name": "other"}, "must be 'serving_default', got 'other'"),
        ({"instances": [[1, 2]], "parameters": {"a": [1]}}, "at `$.parameters[...]`"),
        (b'{"instances": [[1, 2]], "parameters": {"\\ud800": NaN}}', "surrogates"),
    ],
)
def test_what_is_not_a_request_is_refused(message: object, problem: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode(message)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("message", "signature", "problem"),
    [
        ({"instances": [[1, 2]]}, TWO, "each of 'instances' must be an object of the inputs of model 'two', which are"),
        ({"inputs": [[1, 2]]}, TWO, "'inputs' must be an object of the inputs of model 'two', which are 'x', 'n'"),
        ({"instances": [{"b64": "?"}]}, TEXT, 'an element must be a string, or {"b64": "..."} with base 64'),
        ({"instances": [{"b64": "YQ=="}, 3]}, TEXT, 'an element must be a string, or {"b64": "..."} with base 64'),
        ({"instances": [[1]]}, HALF, "output 'h' is FP16, which JSON cannot carry; ask for it as binary data over V2"),
    ],
)
def test_what_a_model_does_not_take_is_refused(message: object, signature: Signature, problem: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode(message, signature)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"instances": [{"y": 1}]}, "unexpected inference input 'y' for model 'one': allowed inputs are 'x'"),
        ({"instances": [[1, 2, 3]]}, r"unexpected shape for input 'x' for model 'one'. Expected [-1,2], got [1,3]"),
        ({"inputs": 3}, "unexpected shape for input 'x'"),
        ({"inputs": {}}, "missing required input(s) 'x'"),
    ],
)
def test_the_check_of_v2_finds_what_is_wrong_with_tensors(message: object, problem: str) -> None:
    with pytest.raises(RequestError) as caught:
        values(decode(message))
    assert problem in str(caught.value)


def test_deep_lists_are_refused() -> None:
    with pytest.raises(BadTensor, match="input 'x' must be lists of at most 100 levels"):
        decode(b'{"instances": ' + b"[" * 200 + b"1" + b"]" * 200 + b"}")
    with pytest.raises(RequestError, match="not a V1 request in JSON"):
        decode(b'{"instances": ' + b"[" * 100_000)


def test_an_only_output_has_no_name() -> None:
    outputs: dict[str, Tensor] = {"x": np.array([[0.1, 2], [3, 4]], np.float32)}
    assert encode(outputs, ONE) == b'{"predictions":[[0.1,2.0],[3.0,4.0]]}'
    assert encode(outputs, ONE, columnar=True) == b'{"outputs":[[0.1,2.0],[3.0,4.0]]}'


def test_several_outputs_have_their_names_in_each_row() -> None:
    outputs: dict[str, Tensor] = {"x": np.array([[1, 2], [3, 4]], np.float32), "n": np.array([[7], [8]], np.int64)}
    assert encode(outputs, TWO) == b'{"predictions":[{"x":[1.0,2.0],"n":[7]},{"x":[3.0,4.0],"n":[8]}]}'
    assert encode(outputs, TWO, columnar=True) == b'{"outputs":{"x":[[1.0,2.0],[3.0,4.0]],"n":[[7],[8]]}}'
    flat: dict[str, Tensor] = {"x": np.array([1, 3], np.float64), "n": np.array([True, False])}
    assert encode(flat, TWO) == b'{"predictions":[{"x":1.0,"n":true},{"x":3.0,"n":false}]}'


def test_outputs_without_rows_in_common_cannot_be_given_by_row() -> None:
    outputs: dict[str, Tensor] = {"x": np.zeros((2, 2), np.float32), "n": np.array(7)}
    with pytest.raises(BadTensor, match=r"no rows in common: 'x' \[2, 2\], 'n' \[\]; ask with 'inputs' instead"):
        encode(outputs, TWO)
    assert json.loads(encode(outputs, TWO, columnar=True)) == {"outputs": {"x": [[0, 0], [0, 0]], "n": 7}}


@pytest.mark.parametrize("columnar", [False, True])
def test_answers_have_a_bound(columnar: bool) -> None:
    outputs: dict[str, Tensor] = {"x": np.full((2, 2), 0.25, np.float32)}
    size = len(encode(outputs, ONE, columnar=columnar))
    assert len(encode(outputs, ONE, columnar=columnar, json_bytes=size)) == size
    for less in (size - 1, 4):
        with pytest.raises(BadTensor, match=f"exceeds {less} bytes; ask for large tensors as binary data over V2"):
            encode(outputs, ONE, columnar=columnar, json_bytes=less)


def test_strings_that_are_not_utf_8_are_given_in_base_64() -> None:
    buffer, offsets = encode_bytes(np.array([["ä"], [b"\xff"]], np.object_), 2)
    text = encode({"s": WireBytes(buffer, (2, 1), offsets)}, TEXT)
    assert json.loads(text) == {"predictions": [["ä"], [{"b64": "/w=="}]]}


@pytest.mark.parametrize(
    ("nan", "texts"),
    [
        (JsonNan.LITERAL, ("1.5", "NaN", "Infinity")),
        (JsonNan.STRING, ("1.5", '"NaN"', '"Infinity"')),
        (JsonNan.NULL, ("1.5", "null", "null")),
    ],
)
def test_nan_and_infinities_are_written_as_configured(nan: JsonNan, texts: tuple[str, str, str]) -> None:
    tensor = np.array([1.5, math.nan, math.inf])
    number, none, infinite = texts
    assert encode({"x": tensor}, ONE, nan).decode() == f'{{"predictions":[{number},{none},{infinite}]}}'
    two: dict[str, Tensor] = {"x": tensor[1:], "n": np.array([7, 8])}
    by_row = f'{{"predictions":[{{"x":{none},"n":7}},{{"x":{infinite},"n":8}}]}}'
    assert encode(two, TWO, nan).decode() == by_row


def test_an_invocation_is_of_v2_or_v1() -> None:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    for message, of_v1 in (
        ({"inputs": [tensor]}, False),
        ({"instances": [[1, 2]]}, True),
        ({"inputs": {"x": [[1, 2]]}}, True),
        ({"inputs": [[1, 2]]}, True),
    ):
        request, flags = decode_invocation(json.dumps(message).encode(), None, ONE)
        assert isinstance(request, PredictRequest) is of_v1
        assert values(request) == {"x": ("float32", [[1, 2]])}
        assert flags == (False,)


@pytest.mark.parametrize(
    ("body", "json_length", "problem"),
    [
        (b"x", None, "the body is not an inference request in JSON"),
        (b"{}", None, "the body is not an inference request: Object missing required field `inputs`"),
        (b'{"inputs": [{"name": "x"}]}', None, "missing required field `shape`"),
        (b'{"instances": [[1]], "inputs": [[1]]}', None, "either 'instances' or 'inputs'"),
        (b'{"inputs": [], "instances": [[1, 2]], "id": 1}', None, "either 'instances' or 'inputs'"),
        (b'{"instances": [[1, 2]]}', 23, "missing required field `inputs`"),
        (b"{}", 3, "is 3, but the body has only 2 bytes"),
    ],
)
def test_an_invocation_of_neither_has_the_error_of_v2(body: bytes, json_length: int | None, problem: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_invocation(body, json_length, ONE)
    assert problem in str(caught.value)
