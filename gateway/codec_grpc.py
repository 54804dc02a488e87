"""ModelInfer messages: tensors raw or typed in, raw out."""

from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from gateway.request import InferRequest, InferResponse, Parameters, WireTensor
from gateway.signature import Signature
from models.arrays import WireBytes, numpy_dtype
from models.errors import BadTensor, RequestError, UnsupportedRequest
from models.tensor import DataType

_CONTENTS: dict[str, str] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def decode_request(message: Any) -> InferRequest:
    """The request in a ModelInferRequest; raw tensors are its bytes, not copied. Raises RequestError."""
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise RequestError(
            f"raw_input_contents has {len(raw)} entries, but the request has {len(message.inputs)} inputs"
        )
    inputs = []
    for index, tensor in enumerate(message.inputs):
        if "shared_memory_region" in tensor.parameters:
            raise UnsupportedRequest(f"input '{tensor.name}': shared memory is not supported; send the data itself")
        if not raw:
            data = _typed(tensor)
        elif tensor.HasField("contents"):
            raise RequestError(f"input '{tensor.name}' has typed contents, but the request has raw_input_contents")
        else:
            data = raw[index]
        inputs.append(WireTensor(tensor.name, tensor.datatype, tuple(tensor.shape), data))
    outputs = []
    for output in message.outputs:
        for name in ("classification", "shared_memory_region"):
            if name in output.parameters:
                raise UnsupportedRequest(f"output '{output.name}': {name} is not supported")
        outputs.append(output.name)
    return InferRequest(inputs, outputs, message.id, _parameters(message.parameters) if message.parameters else {})


def encode_response(response: InferResponse, signature: Signature) -> Any:
    """The ModelInferResponse of a response; its tensors are copied out."""
    message = service_pb2.ModelInferResponse(model_name=signature.name, model_version=signature.version, id=response.id)
    for name, values in response.outputs:
        message.outputs.add(name=name, datatype=signature.outputs[name].datatype.value, shape=values.shape)
        if isinstance(values, WireBytes):
            data = bytes(memoryview(values.buffer)[int(values.row_offsets[0]) : int(values.row_offsets[-1])])
        else:
            data = values.tobytes()
        message.raw_output_contents.append(data)
    return message


def _typed(tensor: Any) -> Any:
    """The typed contents of an input as a flat array, or a list for BYTES."""
    if tensor.datatype not in _CONTENTS:
        problem = "must be sent raw" if tensor.datatype == "FP16" else f"is none of {', '.join(DataType)}"
        raise BadTensor(f"input '{tensor.name}' has datatype '{tensor.datatype}', which {problem}")
    expected = _CONTENTS[tensor.datatype]
    for field, _ in tensor.contents.ListFields():
        if field.name != expected:
            raise BadTensor(
                f"input '{tensor.name}' of {tensor.datatype} has its data in {field.name}: expected {expected}"
            )
    values = getattr(tensor.contents, expected)
    if tensor.datatype == "BYTES":
        return list(values)
    dtype = numpy_dtype(DataType(tensor.datatype))
    if dtype.kind not in "iu":
        return np.array(values, dtype)
    wide = np.array(values, np.uint64 if dtype.kind == "u" else np.int64)
    limits = np.iinfo(dtype.name)
    if wide.size and not (limits.min <= int(wide.min()) and int(wide.max()) <= limits.max):
        raise BadTensor(f"input '{tensor.name}' has a value that is out of range of {tensor.datatype}")
    return wide.astype(dtype)


def _parameters(fields: Any) -> Parameters:
    parameters: dict[str, bool | int | float | str] = {}
    for name, value in fields.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise RequestError(f"parameter '{name}' has no value")
        parameters[name] = getattr(value, choice)
    return parameters
