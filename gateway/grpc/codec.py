"""ModelInfer messages: raw or typed tensors in, raw tensors out."""

from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from sluice.gateway.protocol.request import InferRequest, InferResponse, Parameters, SharedMemoryOutput, WireTensor
from sluice.gateway.protocol.shared_memory import SharedMemoryRef
from sluice.gateway.protocol.signature import Signature
from sluice.models.errors import BadTensor, RequestError
from sluice.models.tensors.arrays import WireBytes, numpy_dtype
from sluice.models.tensors.spec import RAW_ONLY, DataType

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
    """The request in a ModelInferRequest; raw tensors are not copied. Raises RequestError."""
    raw = message.raw_input_contents
    used = 0
    inputs = []
    shared = False
    for tensor in message.inputs:
        data: Any = _shared_memory_ref(f"input '{tensor.name}'", tensor.parameters) if tensor.parameters else None
        if data is not None:
            shared = True
            if tensor.HasField("contents"):
                raise RequestError(f"input '{tensor.name}' has both contents and the parameter 'shared_memory_region'")
        elif not raw:
            data = _typed(tensor)
        elif tensor.HasField("contents"):
            raise RequestError(f"input '{tensor.name}' has typed contents, but the request has raw_input_contents")
        else:
            data = raw[used] if used < len(raw) else b""
            used += 1
        inputs.append(WireTensor(tensor.name, tensor.datatype, tuple(tensor.shape), data))
    if used != len(raw):
        whose = "inputs that are not in shared memory" if shared else "inputs"
        raise RequestError(f"raw_input_contents has {len(raw)} entries, but the request has {used} {whose}")
    outputs = []
    deliveries: dict[str, SharedMemoryRef | int] = {}
    for output in message.outputs:
        outputs.append(output.name)
        if output.parameters and (delivery := _delivery(output)) is not None:
            deliveries[output.name] = delivery
    parameters = _parameters(message.parameters) if message.parameters else {}
    return InferRequest(inputs, outputs, message.id, parameters, shared, deliveries)


def encode_response(response: InferResponse, signature: Signature) -> Any:
    """The ModelInferResponse of a response; its tensors are copied."""
    message = service_pb2.ModelInferResponse(model_name=signature.name, model_version=signature.version, id=response.id)
    for name, values in response.outputs:
        datatype = "BYTES" if isinstance(values, WireBytes) else signature.outputs[name].datatype.value
        output = message.outputs.add(name=name, datatype=datatype, shape=values.shape)
        if isinstance(values, SharedMemoryOutput):
            data = b""  # so that outputs and raw contents have the same indices
            _set_shared_memory(output.parameters, values.place)
        elif isinstance(values, WireBytes):
            data = bytes(memoryview(values.buffer)[int(values.row_offsets[0]) : int(values.row_offsets[-1])])
        else:
            data = values.tobytes()
        message.raw_output_contents.append(data)
    return message


def _typed(tensor: Any) -> Any:
    """The typed contents of an input as a flat array, or a list for BYTES."""
    if tensor.datatype not in _CONTENTS:
        problem = "must be sent raw" if tensor.datatype in RAW_ONLY else f"is none of {', '.join(DataType)}"
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


def _shared_memory_ref(tensor: str, fields: Any) -> SharedMemoryRef | None:
    """The place of a tensor in shared memory; None if its parameters name none."""
    if "shared_memory_region" not in fields:
        if "shared_memory_byte_size" in fields or "shared_memory_offset" in fields:
            raise RequestError(f"{tensor} must have the parameter 'shared_memory_region' as well")
        return None
    if not fields["shared_memory_region"].HasField("string_param"):
        raise RequestError(f"{tensor}: parameter 'shared_memory_region' must be a string")
    if "shared_memory_byte_size" not in fields:
        raise RequestError(f"{tensor} must have the parameter 'shared_memory_byte_size' as well")
    sizes = {name: _integer(tensor, fields, f"shared_memory_{name}") for name in ("byte_size", "offset")}
    return SharedMemoryRef(fields["shared_memory_region"].string_param, **sizes)


def _delivery(output: Any) -> SharedMemoryRef | int | None:
    """The delivery of an output outside the response; None for an output in the response."""
    name, fields = f"output '{output.name}'", output.parameters
    ref = _shared_memory_ref(name, fields)
    if "classification" not in fields:
        return ref
    if ref is not None:
        raise RequestError(f"{name}: classification is not possible for an output in shared memory")
    count = _integer(name, fields, "classification")
    if count < 1:
        raise RequestError(f"{name}: classification must be at least 1, got {count}")
    return count


def _integer(tensor: str, fields: Any, name: str) -> int:
    """An integer parameter of a tensor; 0 if it is absent."""
    if name not in fields:
        return 0
    choice = fields[name].WhichOneof("parameter_choice")
    if choice not in ("int64_param", "uint64_param"):
        raise RequestError(f"{tensor}: parameter '{name}' must be an integer")
    value: int = getattr(fields[name], choice)
    return value


def _set_shared_memory(fields: Any, ref: SharedMemoryRef) -> None:
    """Set the parameters that locate an output in shared memory."""
    fields["shared_memory_region"].string_param = ref.region
    fields["shared_memory_byte_size"].int64_param = ref.byte_size
    if ref.offset:
        fields["shared_memory_offset"].int64_param = ref.offset
