"""Bodies of HTTP inference requests and responses: JSON, followed by tensors in wire form (the binary extension)."""

import json
from typing import Annotated, Any, NamedTuple

import msgspec

from gateway.codec_json import decode_data, encode_data
from gateway.request import InferRequest, InferResponse, WireTensor
from gateway.signature import Signature
from models.arrays import WireBytes
from models.errors import BadTensor, RequestError, UnsupportedRequest

_ByteCount = Annotated[int, msgspec.Meta(ge=0)]


class _InputParameters(msgspec.Struct):
    binary_data_size: _ByteCount | None = None
    shared_memory_region: str | None = None


class _Input(msgspec.Struct):
    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: _InputParameters | None = None
    data: msgspec.Raw = msgspec.Raw()


class _OutputParameters(msgspec.Struct):
    binary_data: bool | None = None
    classification: int = 0
    shared_memory_region: str | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: _OutputParameters | None = None


class _Request(msgspec.Struct):
    inputs: list[_Input]
    outputs: list[_Output] = []
    id: str = ""
    parameters: dict[str, bool | int | float | str] = {}


class _ParsedInput(_Input):
    """An input whose data the standard library has parsed, since it reads NaN and Infinity."""

    data: Any = msgspec.Raw()


class _ParsedRequest(_Request):
    inputs: list[_ParsedInput]  # type: ignore[assignment]


class _Blob(msgspec.Struct):
    binary_data_size: int


class _Tensor(msgspec.Struct, omit_defaults=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: _Blob | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Response(msgspec.Struct, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[_Tensor]
    id: str = ""


class Encoded(NamedTuple):
    """A body of `length` bytes: JSON, and the tensors in wire form that follow it, as buffers."""

    head: bytes
    blobs: list[Any]
    length: int


_decode = msgspec.json.Decoder(_Request).decode
_encode = msgspec.json.Encoder().encode


def decode_request(
    body: bytes | bytearray, header_length: int | None, signature: Signature
) -> tuple[InferRequest, tuple[bool, ...]]:
    """The request in a body and, for each of its outputs (all when it names none), whether it is wanted in wire form.

    `header_length` is the length of the JSON part, None when it is the whole body. Tensors in wire form are views on
    `body`. Raises RequestError.
    """
    if header_length is not None and header_length > len(body):
        raise RequestError(
            f"Inference-Header-Content-Length is {header_length}, but the body has only {len(body)} bytes"
        )
    message = _parse(body if header_length is None else memoryview(body)[:header_length])
    blobs = memoryview(body)
    position = len(body) if header_length is None else header_length
    inputs: list[WireTensor] = []
    for tensor in message.inputs:
        size = _blob_size(tensor)
        if size is None:
            data: Any = decode_data(tensor.name, tensor.datatype, tensor.data)
        else:
            if header_length is None:
                raise RequestError(
                    f"input '{tensor.name}' has binary_data_size, but no Inference-Header-Content-Length says where "
                    "the binary data begins"
                )
            data = blobs[position : position + size]
            if len(data) != size:
                raise BadTensor(
                    f"input '{tensor.name}' has binary_data_size {size}, but the body has only {len(data)} bytes left"
                )
            position += size
        inputs.append(WireTensor(tensor.name, tensor.datatype, tensor.shape, data))
    if position != len(body):
        raise RequestError(f"the body has {len(body) - position} bytes more than its tensors take")
    parameters = message.parameters
    binary = bool(parameters) and parameters.pop("binary_data_output", False)
    if not isinstance(binary, bool):
        raise RequestError(f"parameter 'binary_data_output' must be true or false, got {binary!r:.80}")
    flags = _flags(message.outputs, binary, signature)
    names = [output.name for output in message.outputs] if message.outputs else ()
    return InferRequest(inputs, names, message.id, parameters), flags


def encode_response(response: InferResponse, flags: tuple[bool, ...], signature: Signature) -> Encoded:
    """The body of a response; its tensors in wire form are not copied."""
    tensors: list[_Tensor] = []
    blobs: list[Any] = []
    blob_bytes = 0
    for (name, values), binary in zip(response.outputs, flags, strict=True):
        datatype = signature.outputs[name].datatype
        if not binary:
            text = msgspec.Raw(encode_data(name, datatype, values))
            tensors.append(_Tensor(name, datatype.value, values.shape, None, text))
            continue
        if isinstance(values, WireBytes):
            blobs.append(memoryview(values.buffer)[int(values.row_offsets[0]) : int(values.row_offsets[-1])])
        else:
            blobs.append(values if values.flags.c_contiguous else values.copy())
        size = values.nbytes
        blob_bytes += size
        tensors.append(_Tensor(name, datatype.value, values.shape, _Blob(size)))
    head = _encode(_Response(signature.name, signature.version, tensors, response.id))
    return Encoded(head, blobs, len(head) + blob_bytes)


def _parse(text: bytes | bytearray | memoryview) -> _Request:
    try:
        return _decode(text)
    except msgspec.ValidationError as error:
        raise RequestError(f"the body is not an inference request: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = bytes(text)
        if b"NaN" in text or b"Infinity" in text:
            return _parse_leniently(text)
        raise RequestError(f"the body is not an inference request in JSON: {error}") from error


def _parse_leniently(text: bytes) -> _Request:
    """Parse a request with the literals NaN, Infinity and -Infinity, which JSON lacks and clients send."""
    try:
        return msgspec.convert(json.loads(text), _ParsedRequest)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not an inference request in JSON: {error}") from error


def _blob_size(tensor: _Input) -> int | None:
    """How many bytes of the body are this tensor's; None when it has JSON data. It must have one or the other."""
    size = None
    if tensor.parameters is not None:
        if tensor.parameters.shared_memory_region is not None:
            raise UnsupportedRequest(
                f"input '{tensor.name}': shared memory is not supported; send the data in the body"
            )
        size = tensor.parameters.binary_data_size
    given = not isinstance(tensor.data, msgspec.Raw) or len(tensor.data) > 0
    if given == (size is not None):
        raise BadTensor(f"input '{tensor.name}' must have exactly one of 'data' and the parameter 'binary_data_size'")
    return size


def _flags(outputs: list[_Output], binary: bool, signature: Signature) -> tuple[bool, ...]:
    """Whether each output is wanted in wire form; raises for what cannot be given as asked."""
    if outputs:
        names, flags = [output.name for output in outputs], tuple(_flag(output, binary) for output in outputs)
    else:
        names, flags = list(signature.outputs), (binary,) * len(signature.outputs)
    for name in signature.binary_only:
        if name in names and not flags[names.index(name)]:
            raise BadTensor(f"output '{name}' is FP16, which JSON cannot carry; ask for it as binary data")
    return flags


def _flag(output: _Output, binary: bool) -> bool:
    parameters = output.parameters
    if parameters is None:
        return binary
    if parameters.classification:
        raise UnsupportedRequest(f"output '{output.name}': classification is not supported")
    if parameters.shared_memory_region is not None:
        raise UnsupportedRequest(f"output '{output.name}': shared memory is not supported")
    return binary if parameters.binary_data is None else parameters.binary_data
