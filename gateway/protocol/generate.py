"""Triton's generate extension: the fields of a JSON object are inputs and parameters, and outputs are fields again."""

import json
from collections.abc import Mapping
from typing import Any

import orjson

from sluice.gateway.config.json_rules import JsonRules
from sluice.gateway.protocol.json_data import DataTooLarge, check_text, decode_data, encode_data
from sluice.gateway.protocol.request import InferRequest, InferResponse, SharedMemoryOutput, WireTensor
from sluice.gateway.protocol.signature import Signature
from sluice.models.errors import BadTensor, RequestError
from sluice.models.tensors.spec import VARIABLE, TensorSpec, element_count

_PARAMETERS = "parameters"
_ID = "id"


def decode_generate(body: bytes | bytearray, signature: Signature) -> InferRequest:
    """The request in a body: fields named like an input are its data, the others are parameters.

    Those of the object `parameters` are treated alike, and those that are null are left out. Raises RequestError.
    """
    if signature.binary_only:
        name = signature.binary_only[0]
        raise BadTensor(f"output '{name}' is {signature.outputs[name].datatype}, which JSON cannot carry")
    specs = {spec.name: spec for spec in signature.pipeline.inputs}
    fields = _fields(body)
    request_id = _id(fields)
    inputs: dict[str, WireTensor] = {}
    parameters: dict[str, bool | int | float | str] = {}
    for name, value in fields:
        if value is None:
            continue
        if name == _PARAMETERS and name not in specs and isinstance(value, _Object):
            for inner, each in value:
                if each is not None:
                    _take(inner, each, signature, specs, inputs, parameters)
        elif name == _PARAMETERS and name not in specs:
            raise RequestError(f"'{_PARAMETERS}': expected a JSON object, got {_kind(value)}")
        elif name != _ID or name in specs:
            _take(name, value, signature, specs, inputs, parameters)
    return InferRequest(list(inputs.values()), (), request_id, parameters)


def encode_generated(response: InferResponse, signature: Signature, rules: JsonRules) -> bytes:
    """The JSON object of a response; an output of one element is that element, and others are flat lists.

    Raises BadTensor if tensors cannot be JSON, or would be more of it than the rules allow.
    """
    left = rules.answer_bytes
    head = {"id": response.id} if response.id else {}
    head |= {"model_name": signature.name, "model_version": signature.version}
    parts = [orjson.dumps(head)[1:-1]]
    for name, values in response.outputs:
        assert not isinstance(values, SharedMemoryOutput), "it was not asked for"
        try:
            text = encode_data(name, values, left, rules.nan)
        except DataTooLarge:
            raise BadTensor(
                f"output '{name}': the JSON of the response exceeds {rules.answer_bytes} bytes; ask for large tensors "
                "by infer, as binary data, or over gRPC"
            ) from None
        left -= len(text)
        if element_count(values.shape) == 1:
            text = text[1:-1]
        parts.append(orjson.dumps(name) + b":" + text)
    return b"{" + b",".join(parts) + b"}"


class _Object(list[tuple[str, Any]]):
    """The fields of a JSON object, in order and even if a name is repeated."""


def _parse(body: bytes | bytearray) -> Any:
    return json.loads(body, object_pairs_hook=_Object, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _fields(body: bytes | bytearray) -> _Object:
    try:
        document = _parse(body) if body.strip() else _Object()
        check_text(body, document)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"failed to parse the request JSON buffer: {error}") from error
    if not isinstance(document, _Object):
        raise RequestError(f"expected a JSON object, got {_kind(document)}")
    return document


def _id(fields: _Object) -> str:
    ids = [value for name, value in fields if name == _ID and value is not None]
    if ids and not isinstance(ids[-1], str):
        raise RequestError(f"'{_ID}': expected a string, got {_kind(ids[-1])}")
    return str(ids[-1]) if ids else ""


def _take(
    name: str,
    value: object,
    signature: Signature,
    specs: Mapping[str, TensorSpec],
    inputs: dict[str, WireTensor],
    parameters: "dict[str, bool | int | float | str]",
) -> None:
    """Add a field to the inputs or the parameters."""
    spec = specs.get(name)
    if spec is None:
        if not isinstance(value, bool | int | float | str):
            raise RequestError(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")
        parameters[name] = value
        return
    if name in inputs:
        raise RequestError(f"input '{name}' already exists in request: an input may be given once")
    values = value if isinstance(value, list) and not isinstance(value, _Object) else [value]
    if any(isinstance(each, list) for each in values):
        raise RequestError(f"input '{name}': expected one value or a flat list of values")
    shape = _shape(name, signature.pipeline.wire_shape(spec), len(values))
    inputs[name] = WireTensor(name, spec.datatype, shape, decode_data(name, spec.datatype, values))


def _shape(name: str, wire_shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The shape of a number of elements: the last variable dimension takes what fixed ones leave, others are 1."""
    fixed = element_count(tuple(dimension for dimension in wire_shape if dimension != VARIABLE))
    left, rest = divmod(count, fixed) if fixed else (0, count)
    shape: list[int] = []
    for dimension in reversed(wire_shape):
        if dimension != VARIABLE:
            shape.append(dimension)
        else:
            shape.append(left)
            left = 1
    if rest or left != 1:
        raise RequestError(
            f"The schema can not convert input '{name}' to tensor with proper shape: it has {count} elements, "
            f"expected {list(wire_shape)}"
        )
    return tuple(reversed(shape))


def _kind(value: object) -> str:
    return "an object" if isinstance(value, _Object) else type(value).__name__
