"""ModelInfer messages of a whole batch; rows are copied once, into the message or into shared memory."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from sluice.gateway.executors.triton.http import RegionRef, decode_answer, encode_request
from sluice.gateway.executors.triton.memory import MemorySlot, TritonMemory, aligned, known_bytes
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.tensors.assembly import BatchInput
from sluice.gateway.tensors.layout import copy_rows
from sluice.models.errors import BadTensor
from sluice.models.spec import ModelSpec
from sluice.models.tensors.arrays import WireBytes, numpy_dtype, wire_row_offsets
from sluice.models.tensors.spec import VARIABLE, DataType, TensorSpec, element_count

_LENGTH_DELIMITED = 2
_Found = tuple[str, tuple[int, ...], bytes | memoryview]
_RAW_TAG = bytes([service_pb2.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])


class EncodedInfer(NamedTuple):
    """A ModelInferRequest, and the slot that its tensors lie in, if any.

    With a `slot`, all inputs lie there, and those outputs will that have `offsets`. `http` is the same request over
    HTTP, if it may be sent in its place.
    """

    message: bytes
    slot: MemorySlot | None = None
    offsets: Mapping[str, int] = {}
    http: bytes = b""


def encode_batch(spec: ModelSpec, inputs: Sequence[BatchInput]) -> bytes:
    """A ModelInferRequest with all rows of a batch; asks for the outputs of the spec."""
    message: list[object] = [_head(spec, inputs).SerializeToString()]
    # Protobuf would take the contents as `bytes` only, and copy those twice more.
    for each in inputs:
        message += (_RAW_TAG, _varint(_nbytes(each)), *each.pieces)
    return b"".join(message)  # type: ignore[arg-type]  # arrays are buffers


def encode_for(memory: TritonMemory | None, spec: ModelSpec, rows: int, inputs: Sequence[BatchInput]) -> EncodedInfer:
    """A batch as it is sent: in a free slot of shared memory that is large enough, else in the message."""
    slot = None
    if memory is not None:
        sizes = [_nbytes(each) for each in inputs]
        outputs = [known_bytes(spec, output, rows) or 0 for output in spec.outputs]
        # An empty tensor has no place in shared memory.
        slot = memory.take(sum(map(aligned, [*sizes, *outputs]))) if all(sizes) else None
    if memory is None or slot is None:
        return EncodedInfer(encode_batch(spec, inputs))
    try:
        return _encode_in_memory(spec, rows, inputs, slot, memory.http)
    except BaseException:
        memory.free(slot)
        raise


def _encode_in_memory(
    spec: ModelSpec, rows: int, inputs: Sequence[BatchInput], slot: MemorySlot, http: str
) -> EncodedInfer:
    """Copy the inputs into a slot; outputs of unknown size are to come in the message."""
    offset, places = 0, []
    for each in inputs:
        nbytes = _nbytes(each)
        copy_rows(each.pieces, slot.view, offset, nbytes)
        places.append((offset, nbytes))
        offset += aligned(nbytes)
    fixed = all(known_bytes(spec, tensor, rows) is not None for tensor in spec.inputs)
    if fixed and (known := slot.messages.get((spec.key, rows))) is not None:
        return EncodedInfer(known[0], slot, *known[1:])
    head = _head(spec, inputs)
    for tensor, (begin, nbytes) in zip(head.inputs, places, strict=True):
        _place(tensor, slot.name, begin, nbytes)
    offsets = {}
    for output, tensor in zip(spec.outputs, head.outputs, strict=True):
        if size := known_bytes(spec, output, rows):
            _place(tensor, slot.name, offset, size)
            offsets[output.name] = offset
            offset += aligned(size)
    message = head.SerializeToString()
    by_http = b""
    if fixed and http and len(offsets) == len(spec.outputs):
        by_http = _encode_for_http(http, spec, rows, inputs, slot.name, places, offsets)
    if fixed:
        slot.messages[spec.key, rows] = message, offsets, by_http
    return EncodedInfer(message, slot, offsets, by_http)


def _encode_for_http(
    host: str,
    spec: ModelSpec,
    rows: int,
    inputs: Sequence[BatchInput],
    region: str,
    places: Sequence[tuple[int, int]],
    offsets: Mapping[str, int],
) -> bytes:
    given = [
        RegionRef(each.spec.name, *place, each.spec.datatype.value, tuple(each.shape))
        for each, place in zip(inputs, places, strict=True)
    ]
    wanted = [RegionRef(each.name, offsets[each.name], known_bytes(spec, each, rows) or 0) for each in spec.outputs]
    return encode_request(host, spec, region, given, wanted)


def blank_inputs(spec: ModelSpec, rows: int) -> list[BatchInput]:
    """A batch of zeros, with variable dimensions of 1."""
    inputs = []
    for tensor in spec.inputs:
        item = tuple(1 if dimension == VARIABLE else dimension for dimension in tensor.shape)
        shape = (rows, *item) if spec.batchable else item
        # An empty element of BYTES is its length, which is zero.
        data = np.zeros(element_count(shape) * (tensor.datatype.itemsize or 4), np.uint8)
        inputs.append(BatchInput(tensor, shape, [data]))
    return inputs


def decode_batch(spec: ModelSpec, rows: int, data: bytes, sent: EncodedInfer | None = None) -> dict[str, Tensor]:
    """The outputs of the spec, as views of a ModelInferResponse and of the slot named in the request.

    Raises BadTensor for a malformed answer.
    """
    found = _found_in_message(data) if sent is None or not sent.http else _found_over_http(data)
    if sent is not None and sent.slot is not None:
        for output in spec.outputs:
            if (begin := sent.offsets.get(output.name)) is not None and output.name in found:
                end = begin + (known_bytes(spec, output, rows) or 0)
                found[output.name] = (*found[output.name][:2], sent.slot.view[begin:end])
    return {output.name: _tensor(output, rows if spec.batchable else None, found) for output in spec.outputs}


def _found_over_http(data: bytes) -> dict[str, _Found]:
    return {name: (datatype, shape, b"") for name, (datatype, shape) in decode_answer(data).items()}


def _found_in_message(data: bytes) -> dict[str, _Found]:
    try:
        message = service_pb2.ModelInferResponse.FromString(data)
    except DecodeError as error:
        raise BadTensor(f"the answer is no ModelInferResponse: {error}") from error
    if len(message.raw_output_contents) != len(message.outputs):
        raise BadTensor(
            f"the answer has {len(message.outputs)} outputs, but {len(message.raw_output_contents)} raw contents"
        )
    return {
        each.name: (each.datatype, tuple(each.shape), raw)
        for each, raw in zip(message.outputs, message.raw_output_contents, strict=True)
    }


def _tensor(spec: TensorSpec, rows: int | None, found: Mapping[str, _Found]) -> Tensor:
    """One output; `rows` is None for a model that cannot be batched."""
    if spec.name not in found:
        raise BadTensor(f"the answer has no output '{spec.name}'")
    datatype, shape, data = found[spec.name]
    item = shape if rows is None else shape[1:]
    if datatype != spec.datatype or shape[:1] != (shape[:1] if rows is None else (rows,)) or not spec.accepts(item):
        expected = [*([] if rows is None else [rows]), *spec.shape]
        raise BadTensor(
            f"output '{spec.name}' is {datatype} {list(shape)}, expected {spec.datatype} {expected} (-1: any size)"
        )
    if spec.datatype is DataType.BYTES:
        offsets = wire_row_offsets(data, element_count(shape), 1 if rows is None else rows, f"output '{spec.name}'")
        return WireBytes(data, shape, offsets)
    if len(data) != element_count(shape) * spec.datatype.itemsize:
        raise BadTensor(f"output '{spec.name}' of shape {list(shape)} has {len(data)} bytes")
    return np.frombuffer(data, numpy_dtype(spec.datatype)).reshape(shape)


def _head(spec: ModelSpec, inputs: Sequence[BatchInput]) -> Any:
    """The message without tensor contents."""
    head = service_pb2.ModelInferRequest(model_name=spec.name, model_version=str(spec.version))
    for each in inputs:
        head.inputs.add(name=each.spec.name, datatype=each.spec.datatype, shape=each.shape)
    for output in spec.outputs:
        head.outputs.add(name=output.name)
    return head


def _place(tensor: Any, region: str, offset: int, nbytes: int) -> None:
    """Add the place of a tensor in shared memory."""
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_offset"].int64_param = offset
    tensor.parameters["shared_memory_byte_size"].int64_param = nbytes


def _nbytes(tensor: BatchInput) -> int:
    return sum([piece.nbytes for piece in tensor.pieces])


def _varint(value: int) -> bytes:
    """A length as protobuf writes it: seven bits a byte, the low ones first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
