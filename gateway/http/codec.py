"""Bodies of HTTP inference requests and responses: JSON, followed by binary tensors."""

import gc
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from sluice.gateway.config.json_rules import JsonRules
from sluice.gateway.http.known_response import EncodedBody
from sluice.gateway.protocol.json_data import DataTooLarge, decode_data, encode_data, parse_message
from sluice.gateway.protocol.request import InferRequest, InferResponse, SharedMemoryOutput, WireTensor
from sluice.gateway.protocol.shared_memory import SharedMemoryRef
from sluice.gateway.protocol.signature import Signature
from sluice.models.errors import BadTensor, RequestError
from sluice.models.tensors.arrays import Buffer, WireBytes
from sluice.models.tensors.spec import DataType

MAX_DIMENSIONS = 1024
"""More than any tensor has; the shapes of longer ones are not worth a message that names them."""

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _InputParameters(msgspec.Struct):
    binary_data_size: _Count | None = None
    shared_memory_region: str | None = None
    shared_memory_byte_size: _Count | None = None
    shared_memory_offset: _Count | None = None


class _Input(msgspec.Struct):
    name: str
    shape: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
    datatype: str
    parameters: _InputParameters | None = None
    data: msgspec.Raw = msgspec.Raw()


class _OutputParameters(msgspec.Struct):
    binary_data: bool | None = None
    classification: _Count | None = None
    shared_memory_region: str | None = None
    shared_memory_byte_size: _Count | None = None
    shared_memory_offset: _Count | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: _OutputParameters | None = None


class _Request(msgspec.Struct):
    """A request; a member that is null counts as absent, as clients send those of which they have no value."""

    inputs: list[_Input]
    outputs: list[_Output] | None = None
    id: str | None = None
    parameters: dict[str, bool | int | float | str | None] | None = None


class _ParsedInput(_Input):
    """An input whose data was parsed by the standard library, which accepts NaN and Infinity."""

    data: Any = msgspec.Raw()


class _ParsedRequest(_Request):
    inputs: list[_ParsedInput]  # type: ignore[assignment]


_LENIENT: type[_Request] = _ParsedRequest


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


_BYTES = DataType.BYTES.value
_NULL = memoryview(b"null")
_decode = msgspec.json.Decoder(_Request).decode
_encode = msgspec.json.Encoder().encode


def decode_request(
    body: Buffer, json_length: int | None, signature: Signature, blobs: memoryview | None = None
) -> tuple[InferRequest, tuple[bool, ...]]:
    """Decode a body. Returns the request and a flag for binary for each of its outputs (all if it names none).

    `json_length` is the length of the JSON part: None if the whole body is JSON, 0 if the body is the data of the
    only input. The binary data follows the JSON in `body`, or is in `blobs`; tensors are views on it. Raises
    RequestError.
    """
    if json_length == 0:
        whole = memoryview(body) if blobs is None else blobs
        return InferRequest([signature.raw_input(whole)]), (True,) * len(signature.outputs)
    if json_length is not None and json_length > len(body):
        raise RequestError(f"Inference-Header-Content-Length is {json_length}, but the body has only {len(body)} bytes")
    text = body if json_length is None else memoryview(body)[:json_length]
    message = parse_message(text, _decode, _LENIENT, "an inference request")
    binary = memoryview(body)[len(body) if json_length is None else json_length :] if blobs is None else blobs
    position = 0
    inputs: list[WireTensor] = []
    shared = False
    for tensor in message.inputs:
        size = _blob_size(tensor)
        if size is None:
            data: Any = decode_data(tensor.name, tensor.datatype, tensor.data)
        elif isinstance(size, SharedMemoryRef):
            data, shared = size, True
        else:
            if json_length is None:
                raise RequestError(
                    f"input '{tensor.name}' has binary_data_size, but no Inference-Header-Content-Length says where "
                    "the binary data begins"
                )
            data = binary[position : position + size]
            if len(data) != size:
                raise BadTensor(
                    f"input '{tensor.name}' has binary_data_size {size}, but the body has only {len(data)} bytes left"
                )
            position += size
        inputs.append(WireTensor(tensor.name, tensor.datatype, tensor.shape, data))
    if position != len(binary):
        raise RequestError(f"the body has {len(binary) - position} bytes more than its tensors take")
    parameters = given_parameters(message.parameters)
    wants_binary = bool(parameters) and parameters.pop("binary_data_output", False)
    if not isinstance(wants_binary, bool):
        raise RequestError(f"parameter 'binary_data_output' must be true or false, got {wants_binary!r:.80}")
    binary_flags, deliveries = _output_options(message.outputs, wants_binary, signature)
    names = [output.name for output in message.outputs] if message.outputs else ()
    return InferRequest(inputs, names, message.id or "", parameters, shared, deliveries), binary_flags


Decode: TypeAlias = Callable[[Buffer, int | None, Signature, memoryview | None], tuple[InferRequest, tuple[bool, ...]]]
"""`decode_request`, or that of another protocol: a body, its `json_length`, and binary data apart from it."""


def decode_large_request(
    decode: Decode, body: Buffer, json_length: int | None, signature: Signature, blobs: memoryview | None
) -> tuple[InferRequest, tuple[bool, ...]]:
    """As `decode`, for a thread, without the collector, which would look again and again at the many lists."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return decode(body, json_length, signature, blobs)
    finally:
        if collects:
            gc.enable()


def encode_response(
    response: InferResponse,
    binary_flags: tuple[bool, ...],
    signature: Signature,
    rules: JsonRules,
) -> EncodedBody:
    """The body of a response; binary tensors are not copied.

    Raises BadTensor if tensors cannot be JSON, or would be more of it than the rules allow.
    """
    left = rules.answer_bytes
    tensors: list[_Tensor] = []
    blobs: list[Any] = []
    blob_bytes = 0
    for (name, values), binary in zip(response.outputs, binary_flags, strict=True):
        datatype = signature.datatypes[name]
        if not isinstance(values, np.ndarray):
            if isinstance(values, SharedMemoryOutput):
                # No parameters: Triton's C++ client assumes that any parameters describe binary data.
                tensors.append(_Tensor(name, datatype, values.shape))
                continue
            datatype = _BYTES
        if not binary:
            try:
                data = encode_data(name, values, left, rules.nan)
            except DataTooLarge:
                raise BadTensor(
                    f"output '{name}': the JSON of the answer exceeds {rules.answer_bytes} bytes; ask for large "
                    "tensors as binary data or over gRPC"
                ) from None
            left -= len(data)
            tensors.append(_Tensor(name, datatype, values.shape, None, msgspec.Raw(data)))
            continue
        if isinstance(values, WireBytes):
            blobs.append(memoryview(values.buffer)[int(values.row_offsets[0]) : int(values.row_offsets[-1])])
        else:
            blobs.append(values if values.flags.c_contiguous else values.copy())
        size = values.nbytes
        blob_bytes += size
        tensors.append(_Tensor(name, datatype, values.shape, _Blob(size)))
    head = _encode(_Response(signature.name, signature.version, tensors, response.id))
    return EncodedBody(head, blobs, len(head) + blob_bytes)


def given_parameters(
    parameters: dict[str, bool | int | float | str | None] | None,
) -> dict[str, bool | int | float | str]:
    """The parameters that are not null."""
    return {name: value for name, value in parameters.items() if value is not None} if parameters else {}


def _blob_size(tensor: _Input) -> int | SharedMemoryRef | None:
    """The size of a tensor's binary data, its place in shared memory, or None for JSON data.

    Exactly one of the three must be given.
    """
    given = _is_given(tensor.data)
    size = ref = None
    parameters = tensor.parameters
    if parameters is not None:
        size = parameters.binary_data_size
        if parameters.shared_memory_region is not None or parameters.shared_memory_byte_size is not None:
            ref = _shared_memory_ref(f"input '{tensor.name}'", parameters)
            if size is None and not given:
                return ref
    if given == (size is not None) or ref is not None:
        raise BadTensor(
            f"input '{tensor.name}' must have exactly one of 'data' and the parameters 'binary_data_size' and "
            "'shared_memory_region'"
        )
    return size


def _is_given(data: object) -> bool:
    """True if `data` is neither absent nor null."""
    if isinstance(data, msgspec.Raw):
        return len(data) > 0 and (len(data) != len(_NULL) or memoryview(data) != _NULL)
    return data is not None


def _shared_memory_ref(tensor: str, parameters: _InputParameters | _OutputParameters) -> SharedMemoryRef | None:
    region, byte_size = parameters.shared_memory_region, parameters.shared_memory_byte_size
    if region is None and byte_size is None:
        return None
    if region is None or byte_size is None:
        raise RequestError(f"{tensor} must have both 'shared_memory_region' and 'shared_memory_byte_size', or neither")
    return SharedMemoryRef(region, byte_size, parameters.shared_memory_offset or 0)


def _output_options(
    outputs: list[_Output] | None, binary: bool, signature: Signature
) -> tuple[tuple[bool, ...], dict[str, SharedMemoryRef | int]]:
    """For each output: a flag for binary, and its delivery if outside the body."""
    deliveries: dict[str, SharedMemoryRef | int] = {}
    if outputs:
        binary_flags = tuple([_flag(output, binary, deliveries) for output in outputs])
    else:
        binary_flags = (binary,) * len(signature.outputs)
    if signature.binary_only:
        names = [output.name for output in outputs] if outputs else list(signature.outputs)
        for name in signature.binary_only:
            if name in names and not binary_flags[names.index(name)] and name not in deliveries:
                datatype = signature.outputs[name].datatype
                raise BadTensor(f"output '{name}' is {datatype}, which JSON cannot carry; ask for it as binary data")
    return binary_flags, deliveries


def _flag(output: _Output, binary: bool, deliveries: dict[str, SharedMemoryRef | int]) -> bool:
    parameters = output.parameters
    if parameters is None:
        return binary
    ref = _shared_memory_ref(f"output '{output.name}'", parameters)
    if parameters.classification:
        if ref is not None:
            raise RequestError(f"output '{output.name}': classification is not possible for an output in shared memory")
        deliveries[output.name] = parameters.classification
    elif ref is not None:
        deliveries[output.name] = ref
    return binary if parameters.binary_data is None else parameters.binary_data
