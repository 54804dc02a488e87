"""Bodies of the V1 protocol: `instances` to `predictions` by row, and `inputs` to `outputs` by tensor."""

import base64
import binascii
import itertools
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import orjson

from sluice.gateway.config.json_rules import JsonNan, JsonRules
from sluice.gateway.http.codec import decode_request, given_parameters
from sluice.gateway.http.known_response import EncodedBody
from sluice.gateway.protocol.json_data import MAX_DEPTH, decode_data, nested_lists, parse_message
from sluice.gateway.protocol.request import InferRequest, InferResponse, SharedMemoryOutput, WireTensor
from sluice.gateway.protocol.signature import Signature
from sluice.models.errors import BadTensor, RequestError
from sluice.models.tensors.arrays import Array, Buffer, WireBytes, decode_bytes
from sluice.models.tensors.spec import DataType

SIGNATURE_NAME = "serving_default"
"""The only signature that a model has."""

_BASE64 = "b64"


class _Predict(msgspec.Struct):
    """A request; members that are null count as absent, and unknown ones are ignored."""

    instances: Any = None
    inputs: Any = None
    signature_name: str | None = None
    parameters: dict[str, bool | int | float | str | None] | None = None


class PredictRequest(InferRequest):
    """A decoded request of V1, whose answer is by tensor if it is `columnar`, else by row."""

    columnar: bool = False


_decode = msgspec.json.Decoder(_Predict).decode


def decode_predict(
    body: Buffer, json_length: int | None, signature: Signature, blobs: memoryview | None = None
) -> tuple[InferRequest, tuple[bool, ...]]:
    """Decode a body, as `decode_request` does; datatypes are those of the model, and all of a body is JSON.

    Raises RequestError.
    """
    assert json_length is None, "V1 has no binary data"
    assert blobs is None, "V1 has no binary data"
    return _request(_parse(body), signature)


def decode_invocation(
    body: Buffer, json_length: int | None, signature: Signature, blobs: memoryview | None = None
) -> tuple[InferRequest, tuple[bool, ...]]:
    """Decode a body of V2 or V1, whichever it is. Raises RequestError."""
    try:
        return decode_request(body, json_length, signature, blobs)
    except RequestError:
        if json_length is not None:
            raise
        try:
            message = _parse(body)
        except RequestError:
            message = _Predict()
        if message.instances is None and (message.inputs is None or _is_of_v2(message.inputs)):
            raise
    return _request(message, signature)


def encode_predictions(
    response: InferResponse, signature: Signature, rules: JsonRules, *, columnar: bool
) -> EncodedBody:
    """The body of an answer: by tensor if it is `columnar`, else by row. A single output has no name in it.

    Raises BadTensor if the outputs have no rows in common, or for more JSON than the rules allow.
    """
    names = [name for name, _ in response.outputs]
    arrays = [_array(values) for _, values in response.outputs]
    nan = rules.nan
    if 2 * sum(array.size for array in arrays) > rules.answer_bytes:  # an element takes a digit and a comma at least
        raise _too_large(rules.answer_bytes)
    finite = all(array.dtype.kind != "f" or bool(np.isfinite(array).all()) for array in arrays)
    literal = not finite and nan is JsonNan.LITERAL
    # orjson writes NaN and infinities as null.
    tensors = arrays if finite or nan is JsonNan.NULL else [nested_lists(array, nan) for array in arrays]
    answer: Any
    if columnar:
        answer = {"outputs": tensors[0] if len(tensors) == 1 else dict(zip(names, tensors, strict=True))}
    elif len(tensors) == 1:
        answer = {"predictions": tensors[0]}
    else:
        rows = {array.shape[:1] for array in arrays}
        if len(rows) != 1 or () in rows:
            shapes = ", ".join(f"'{name}' {list(array.shape)}" for name, array in zip(names, arrays, strict=True))
            raise BadTensor(
                f"the outputs of model '{signature.name}' have no rows in common: {shapes}; ask with 'inputs' "
                "instead of 'instances'"
            )
        answer = {"predictions": [dict(zip(names, row, strict=True)) for row in zip(*tensors, strict=True)]}
    if literal:
        text = json.dumps(answer, separators=(",", ":")).encode()
    else:
        text = orjson.dumps(answer, np.ndarray.tolist, orjson.OPT_SERIALIZE_NUMPY)
    if len(text) > rules.answer_bytes:
        raise _too_large(rules.answer_bytes)
    return EncodedBody(text, [], len(text))


def _too_large(json_bytes: int) -> BadTensor:
    return BadTensor(f"the JSON of the answer exceeds {json_bytes} bytes; ask for large tensors as binary data over V2")


def _parse(body: Buffer) -> _Predict:
    return parse_message(body, _decode, _Predict, "a V1 request")


def _is_of_v2(inputs: object) -> bool:
    """True for a list of objects, which are not the content of strings."""
    return isinstance(inputs, list) and bool(inputs) and _is_named(inputs[0])


def _request(message: _Predict, signature: Signature) -> tuple[PredictRequest, tuple[bool, ...]]:
    if (message.instances is None) == (message.inputs is None):
        raise RequestError("a V1 request must have either 'instances' or 'inputs'")
    if _is_of_v2(message.inputs):
        raise RequestError("the 'inputs' are those of V2, which is served at /v2/models/NAME/infer")
    if message.signature_name not in (None, SIGNATURE_NAME):
        raise RequestError(f"'signature_name' must be '{SIGNATURE_NAME}', got {message.signature_name!r:.80}")
    if signature.binary_only:
        name = signature.binary_only[0]
        datatype = signature.datatypes[name]
        raise BadTensor(f"output '{name}' is {datatype}, which JSON cannot carry; ask for it as binary data over V2")
    columnar = message.inputs is not None
    values = _columns(message.inputs, signature) if columnar else _rows(message.instances, signature)
    inputs = [_tensor(name, value, signature) for name, value in values.items()]
    parameters = given_parameters(message.parameters)
    return PredictRequest(inputs, parameters=parameters, columnar=columnar), (False,) * len(signature.outputs)


def _rows(instances: object, signature: Signature) -> Mapping[str, object]:
    """The values of each input, from those of each instance."""
    if not isinstance(instances, list) or not instances:
        raise RequestError("'instances' must be a list of at least one instance")
    if not _is_named(instances[0]):
        return {_only_input(signature, "each of 'instances'"): instances}
    names = instances[0].keys()
    for number, instance in enumerate(instances):
        if not isinstance(instance, dict) or instance.keys() != names:
            expected = ", ".join(f"'{name:.80}'" for name in names)
            raise RequestError(f"instance {number} must be an object with the inputs of the first one: {expected}")
    return {name: [instance[name] for instance in instances] for name in names}


def _columns(inputs: Any, signature: Signature) -> Mapping[str, object]:
    """The values of each input."""
    return inputs if _is_named(inputs) else {_only_input(signature, "'inputs'"): inputs}


def _is_named(value: object) -> bool:
    """True for an object of inputs by name; an object with only `b64` is the content of a string."""
    return isinstance(value, dict) and value.keys() != {_BASE64}


def _only_input(signature: Signature, member: str) -> str:
    """The name of the input that needs no name."""
    inputs = signature.pipeline.inputs
    required = [spec for spec in inputs if not spec.optional] or list(inputs)
    if len(required) != 1:
        names = ", ".join(f"'{spec.name}'" for spec in inputs)
        raise RequestError(f"{member} must be an object of the inputs of model '{signature.name}', which are {names}")
    return required[0].name


def _tensor(name: str, value: object, signature: Signature) -> WireTensor:
    datatype = signature.input_datatypes.get(name)
    if datatype is None:
        return WireTensor(name, "", (), b"")  # the check of the request says which inputs there are
    shape, elements = _flatten(name, value)
    spec = next(spec for spec in signature.pipeline.inputs if spec.name == name)
    if signature.pipeline.batchable and len(shape) == 1 and spec.shape == (1,):
        shape = (*shape, 1)  # an instance of one element may stand without its list
    if datatype == DataType.BYTES and any(isinstance(element, dict) for element in elements):
        return WireTensor(name, datatype, shape, [_content(name, element) for element in elements])
    return WireTensor(name, datatype, shape, decode_data(name, datatype, elements))


def _flatten(name: str, value: object) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of nested lists, and all elements."""
    shape: list[int] = []
    elements: list[Any] = [value]
    while elements and isinstance(elements[0], list):
        count = len(elements[0])
        if len(shape) == MAX_DEPTH:
            raise BadTensor(f"input '{name}' must be lists of at most {MAX_DEPTH} levels")
        if not all(isinstance(each, list) and len(each) == count for each in elements):
            raise BadTensor(
                f"input '{name}' must be nested lists of equal lengths: on level {len(shape) + 1} the first one has "
                f"{count} elements, and another one has not"
            )
        shape.append(count)
        elements = list(itertools.chain.from_iterable(elements))
    return tuple(shape), elements


def _content(name: str, element: object) -> bytes:
    """The content of an element of BYTES: a string, or an object with `b64`, the content in base 64."""
    try:
        if isinstance(element, str):
            return element.encode()
        return base64.b64decode(element[_BASE64], validate=True)  # type: ignore[index]
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise BadTensor(f'input \'{name}\': an element must be a string, or {{"b64": "..."}} with base 64') from error


def _array(values: Any) -> Array:
    """An output as an array of what JSON can carry."""
    assert not isinstance(values, SharedMemoryOutput), "V1 has no shared memory"
    if not isinstance(values, WireBytes):
        found: Array = values
        return found
    begin, end = int(values.row_offsets[0]), int(values.row_offsets[-1])
    strings = decode_bytes(memoryview(values.buffer)[begin:end], values.shape)
    texts = np.empty(strings.size, np.object_)
    texts[:] = [_text(element) for element in strings.ravel().tolist()]
    return texts.reshape(values.shape)


def _text(element: bytes) -> object:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return {_BASE64: base64.b64encode(element).decode()}
