"""An inference over HTTP, with tensors as binary data."""

from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np

from sluice.gateway.cli.client.http import HttpAnswer, ServerAddress, decode, exchange, request
from sluice.gateway.cli.inference.messages import (
    Inference,
    Inferred,
    ModelInfo,
    TensorInfo,
    TypedArray,
    from_wire,
    to_wire,
)
from sluice.models.errors import ServingError
from sluice.models.tensors.arrays import numpy_dtype
from sluice.models.tensors.spec import DataType

MAX_ANSWER_BYTES = 1 << 30

_HEADER = "Inference-Header-Content-Length"
_REQUEST_ID = "x-sluice-request"


class _Parameters(msgspec.Struct):
    binary_data_size: int | None = None


class _Output(TensorInfo, frozen=True):
    parameters: _Parameters = msgspec.field(default_factory=_Parameters)
    data: list[Any] | None = None


class _Answer(msgspec.Struct):
    model_version: str = ""
    id: str = ""
    outputs: list[_Output] = []


class HttpInference:
    """Asks a server over HTTP; raises as `client.http.exchange`."""

    def __init__(self, server: ServerAddress, model: str, version: str, timeout_s: float) -> None:
        self._server = server
        self._path = f"/v2/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")
        self._timeout_s = timeout_s

    def metadata(self) -> ModelInfo:
        """The metadata of the model."""
        return decode(self._server.url, request(self._server, self._path), ModelInfo)

    def infer(self, inference: Inference) -> Inferred:
        """Send the request, and wait for the answer."""
        body, headers = (inference.document, {}) if inference.document else _encode(inference)
        answer = exchange(
            self._server,
            f"{self._path}/infer",
            body,
            {"Content-Type": "application/json", **headers},
            timeout_s=self._timeout_s,
            most_bytes=MAX_ANSWER_BYTES,
        )
        return _decode(self._server.url, answer)


def _encode(inference: Inference) -> tuple[bytes, dict[str, str]]:
    contents = {name: to_wire(tensor) for name, tensor in inference.inputs.items()}
    document = {
        "inputs": [
            {
                "name": name,
                "datatype": tensor.datatype,
                "shape": tensor.array.shape,
                "parameters": {"binary_data_size": len(contents[name])},
            }
            for name, tensor in inference.inputs.items()
        ],
        "parameters": {"binary_data_output": True},
    }
    head = msgspec.json.encode(document)
    return b"".join([head, *contents.values()]), {
        _HEADER: str(len(head)),
        "Content-Type": "application/octet-stream",
    }


def _decode(url: str, answer: HttpAnswer) -> Inferred:
    length = answer.headers.get(_HEADER.lower(), str(len(answer.body)))
    end = int(length) if length.isdecimal() else len(answer.body)
    head = decode(url, answer.body[:end], _Answer)
    outputs = {}
    for each in head.outputs:
        if each.data is not None:
            outputs[each.name] = _from_json(url, each)
            continue
        size = each.parameters.binary_data_size or 0
        outputs[each.name] = from_wire(memoryview(answer.body)[end : end + size], each.datatype, each.shape)
        end += size
    return Inferred(head.model_version, answer.headers.get(_REQUEST_ID, head.id), outputs)


def _from_json(url: str, output: _Output) -> TypedArray:
    data = output.data or []
    if output.datatype is DataType.BYTES:
        array = np.empty(len(data), np.object_)
        array[:] = [str(each).encode() for each in data]
        return TypedArray(output.datatype, array.reshape(output.shape))
    try:
        numbers = [float("nan") if each is None else each for each in data]
        return TypedArray(output.datatype, np.array(numbers, numpy_dtype(output.datatype)).reshape(output.shape))
    except ValueError as error:
        raise ServingError(f"{url}: output '{output.name}': {error}") from error
