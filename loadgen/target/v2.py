"""Client-side codec of the V2 inference protocol: requests with binary tensors, answers with binary or JSON tensors."""

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.samples import TargetModel
from sluice.loadgen.target.base import EXPLAIN_HEADER, TargetRequest
from sluice.models.errors import ConfigError
from sluice.models.tensors.arrays import datatype_of, decode_bytes, encode_bytes, numpy_dtype
from sluice.models.tensors.spec import DataType, TensorSpec

STATISTICS_PATH = "/v2/models/stats"


class _Tensor(msgspec.Struct):
    name: str
    datatype: DataType
    shape: tuple[int, ...]


class _Metadata(msgspec.Struct):
    inputs: tuple[_Tensor, ...]
    outputs: tuple[_Tensor, ...]
    # Null in answers of KServe.
    platform: str | None = None
    versions: tuple[str, ...] | None = None


class _OutputParameters(msgspec.Struct):
    binary_data_size: int | None = None


class _Output(_Tensor):
    parameters: _OutputParameters = msgspec.field(default_factory=_OutputParameters)
    data: list[object] | None = None


class _Answer(msgspec.Struct):
    outputs: list[_Output]


class EncodedRequest(NamedTuple):
    """A complete HTTP request, and the length of its head with the header that asks for the times of stages."""

    content: bytes
    explained_head: bytes
    head_bytes: int

    def explained(self) -> bytes:
        """The request that asks for the times of stages as well."""
        return self.explained_head + self.content[self.head_bytes :]


def decode_metadata(body: bytes) -> TargetModel:
    """Decode model metadata from JSON; raises `ConfigError` for anything else."""
    try:
        metadata = msgspec.json.decode(body, type=_Metadata)
    except msgspec.DecodeError as error:
        raise ConfigError(f"--target: unreadable model metadata: {error}") from error
    return TargetModel(
        tuple(TensorSpec(t.name, t.datatype, t.shape) for t in metadata.inputs),
        tuple(TensorSpec(t.name, t.datatype, t.shape) for t in metadata.outputs),
        metadata.platform or "",
        metadata.versions or (),
    )


def wire_bytes(array: npt.NDArray[np.generic]) -> bytes:
    """A tensor's elements on the wire: little-endian, or length-prefixed for BYTES."""
    if datatype_of(array.dtype) is DataType.BYTES:
        return encode_bytes(array, rows=1)[0]
    return array.tobytes()


def from_wire(buffer: bytes, datatype: DataType, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """The array with the elements of `buffer`; the reverse of `wire_bytes`."""
    if datatype is DataType.BYTES:
        return decode_bytes(buffer, shape)
    return np.frombuffer(buffer, numpy_dtype(datatype)).reshape(shape)


def model_path(model: str) -> str:
    """The path of a model's metadata; `/infer` below it is that of inference."""
    return f"/v2/models/{quote(model, safe='')}"


def encode_request(host: str, request: TargetRequest, headers: Iterable[tuple[str, str]] = ()) -> EncodedRequest:
    """Encode a complete HTTP/1.1 inference request with binary outputs, and with further `headers`."""
    contents = [wire_bytes(array) for array in request.tensors.values()]
    header = {
        "inputs": [
            {
                "name": name,
                "datatype": datatype_of(array.dtype),
                "shape": array.shape,
                "parameters": {"binary_data_size": len(content)},
            }
            for (name, array), content in zip(request.tensors.items(), contents, strict=True)
        ],
        "parameters": {"binary_data_output": True, **request.parameters()},
    }
    json = msgspec.json.encode(header)
    body = b"".join([json, *contents])
    further = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = (
        f"POST {model_path(request.model)}/infer HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(json)}\r\nContent-Length: {len(body)}\r\n{further}"
    ).encode("ascii")
    plain, explained = head + b"\r\n", head + f"{EXPLAIN_HEADER}: 1\r\n\r\n".encode()
    return EncodedRequest(plain + body, explained, len(plain))


def decode_output(body: bytes, json_bytes: int, output: str) -> npt.NDArray[np.generic]:
    """Decode one output of an inference answer; `json_bytes` is -1 for an answer that is all JSON."""
    json_bytes = len(body) if json_bytes < 0 else json_bytes
    offset = json_bytes
    for found in msgspec.json.decode(body[:json_bytes], type=_Answer).outputs:
        size = found.parameters.binary_data_size or 0
        if found.name == output and found.data is None:
            return from_wire(body[offset : offset + size], found.datatype, found.shape)
        if found.name == output:
            return np.array(found.data, dtype=numpy_dtype(found.datatype)).reshape(found.shape)
        offset += size
    raise ConfigError(f"--output {output}: not in the answers")
