"""The tensors of an inference, as clients see them, and the names of a server's models."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sluice.models.errors import ConfigError
from sluice.models.tensors.arrays import Array, decode_bytes, encode_bytes, numpy_dtype
from sluice.models.tensors.spec import DataType

_BF16_BITS = 16


class TensorInfo(msgspec.Struct, frozen=True):
    """A tensor of a model's metadata; a dimension of -1 is variable."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]


class ModelInfo(msgspec.Struct, frozen=True):
    """The metadata of a model or a pipeline."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


class TypedArray(NamedTuple):
    """A tensor on its way; an array of BF16 has its bits, one of BYTES has `bytes` or `str`."""

    datatype: DataType
    array: Array


class Inference(NamedTuple):
    """A request: tensors by name, its id ("": none), and its parameters.

    `document` is the body that the user gave, if it was one.
    """

    inputs: Mapping[str, TypedArray]
    id: str = ""
    parameters: Mapping[str, Any] = {}
    document: bytes | None = None


class Inferred(NamedTuple):
    """An answer; `id` is that by which `sluice why` knows the request."""

    version: str
    id: str
    outputs: Mapping[str, TypedArray]


def to_wire(tensor: TypedArray) -> bytes:
    """The elements of a tensor in wire form. Raises ConfigError for a text that has no form in UTF-8."""
    if tensor.datatype is DataType.BYTES:
        try:
            return encode_bytes(tensor.array, rows=1)[0]
        except UnicodeEncodeError as error:
            raise ConfigError(f"expected texts of Unicode, got {error.object!r:.80}") from error
    return np.ascontiguousarray(tensor.array).tobytes()


def from_wire(data: bytes | memoryview, datatype: DataType, shape: tuple[int, ...]) -> TypedArray:
    """The tensor with these elements. Raises ConfigError if they are too few or too many."""
    if datatype is DataType.BYTES:
        return TypedArray(datatype, decode_bytes(data, shape))
    try:
        return TypedArray(datatype, np.frombuffer(data, numpy_dtype(datatype)).reshape(shape))
    except ValueError as error:
        raise ConfigError(f"the answer has {len(data)} bytes for {datatype} {list(shape)}") from error


def as_numbers(tensor: TypedArray) -> Array:
    """The elements as people read them: BF16 as floats, BYTES as text where they are UTF-8."""
    if tensor.datatype is DataType.BF16:
        return (tensor.array.astype(np.uint32) << np.uint32(_BF16_BITS)).view(np.float32)
    if tensor.datatype is DataType.BYTES:
        texts = np.empty(tensor.array.size, np.object_)
        texts[:] = [each.decode(errors="backslashreplace") for each in tensor.array.ravel().tolist()]
        return texts.reshape(tensor.array.shape)
    return tensor.array


def as_bf16(values: Array) -> Array:
    """The bits of floats as BF16, rounded to the nearest."""
    bits = values.astype(np.float32).view(np.uint32)
    half = np.uint32((1 << (_BF16_BITS - 1)) - 1)
    rounded = bits + half + ((bits >> np.uint32(_BF16_BITS)) & np.uint32(1))
    return (rounded >> np.uint32(_BF16_BITS)).astype(np.uint16)
