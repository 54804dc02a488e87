"""ModelInfer messages of a whole batch: rows go from where they lie into the message, in one copy."""

from collections.abc import Mapping, Sequence

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from gateway.answer import Tensor
from gateway.assembly import BatchInput
from models.arrays import WireBytes, numpy_dtype, wire_row_offsets
from models.errors import BadTensor
from models.spec import ModelSpec
from models.tensor import VARIABLE, DataType, TensorSpec, element_count

_LENGTH_DELIMITED = 2
_RAW_TAG = bytes([service_pb2.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])


def encode_batch(spec: ModelSpec, inputs: Sequence[BatchInput]) -> bytes:
    """A ModelInferRequest with all rows of a batch; asks for the outputs of the spec."""
    header = service_pb2.ModelInferRequest(model_name=spec.name, model_version=str(spec.version))
    for each in inputs:
        header.inputs.add(name=each.spec.name, datatype=each.spec.datatype, shape=each.shape)
    for output in spec.outputs:
        header.outputs.add(name=output.name)
    message: list[object] = [header.SerializeToString()]
    # Protobuf would take the contents as `bytes` only, and copy those twice more.
    for each in inputs:
        message += (_RAW_TAG, _varint(sum([piece.nbytes for piece in each.pieces])), *each.pieces)
    return b"".join(message)  # type: ignore[arg-type]  # arrays are buffers


def encode_blank(spec: ModelSpec, rows: int) -> bytes:
    """A batch of zeros, with variable dimensions of 1."""
    inputs = []
    for tensor in spec.inputs:
        item = tuple(1 if dimension == VARIABLE else dimension for dimension in tensor.shape)
        shape = (rows, *item) if spec.batchable else item
        # An empty element of BYTES is its length, which is zero.
        data = np.zeros(element_count(shape) * (tensor.datatype.itemsize or 4), np.uint8)
        inputs.append(BatchInput(tensor, shape, [data]))
    return encode_batch(spec, inputs)


def decode_batch(spec: ModelSpec, rows: int, data: bytes) -> dict[str, Tensor]:
    """The outputs of the spec in a ModelInferResponse, as views; raises BadTensor for an answer that makes no sense."""
    try:
        message = service_pb2.ModelInferResponse.FromString(data)
    except DecodeError as error:
        raise BadTensor(f"the answer is no ModelInferResponse: {error}") from error
    if len(message.raw_output_contents) != len(message.outputs):
        raise BadTensor(
            f"the answer has {len(message.outputs)} outputs, but {len(message.raw_output_contents)} raw contents"
        )
    found = {
        each.name: (each.datatype, tuple(each.shape), raw)
        for each, raw in zip(message.outputs, message.raw_output_contents, strict=True)
    }
    return {output.name: _tensor(output, rows if spec.batchable else None, found) for output in spec.outputs}


def _tensor(spec: TensorSpec, rows: int | None, found: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> Tensor:
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


def _varint(value: int) -> bytes:
    """A length as protobuf writes it: seven bits a byte, the low ones first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
