"""The framing of sessions: messages, and the bytes of their tensors, in messages of gRPC.

A message of gRPC begins with four bytes (little-endian): the size of a message of `messages` in MessagePack, which
follows. The rest of it are bytes of the tensors of the message, its *body*. A longer body goes on in further messages
of gRPC of size 0, which have at most `CHUNK_BYTES`, so that a `Ping` need not wait for all of a large one. Messages
without a body may come between them. Each tensor begins at a multiple of `ALIGNMENT` in the body; between two tensors
are bytes without a meaning.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from sluice.gateway.worker_protocol.messages import Finished, RemoteRun, SessionTensor, message_name
from sluice.models.errors import BadTensor, PartitionError, ServingError
from sluice.models.tensors.arrays import Array, WireBytes, numpy_dtype, wire_row_offsets
from sluice.models.tensors.spec import DataType

ALIGNMENT = 64
CHUNK_BYTES = 1 << 20
SIZE_BYTES = 4
MOST_MESSAGE_BYTES = 16 << 20
"""A larger message without its tensors is refused."""

_encode = msgspec.msgpack.Encoder().encode


def head_of(message: msgspec.Struct) -> bytes:
    """The beginning of the message of gRPC that carries this message. Raises PartitionError if it is too large."""
    encoded = _encode(message)
    if len(encoded) > MOST_MESSAGE_BYTES:
        raise PartitionError(
            f"a {message_name(message)} has {len(encoded)} bytes, expected at most {MOST_MESSAGE_BYTES}"
        )
    return len(encoded).to_bytes(SIZE_BYTES, "little") + encoded


def tensors_of(message: object) -> tuple[SessionTensor, ...]:
    """The tensors whose bytes follow a message."""
    if isinstance(message, RemoteRun):
        return message.inputs
    return message.outputs if isinstance(message, Finished) else ()


def offsets_of(tensors: Sequence[SessionTensor]) -> list[int]:
    """Where each tensor begins in the body of its message, and where the body ends."""
    offsets, end = [], 0
    for tensor in tensors:
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        offsets.append(begin)
        end = begin + tensor.nbytes
    return [*offsets, end]


def check_tensors(tensors: Sequence[SessionTensor], limit: int) -> int:
    """The size of the body of these tensors. Raises PartitionError for sizes that do not fit their shapes, or `limit`.

    The elements of BYTES are looked at when the tensor is read.
    """
    size = 0
    for tensor in tensors:
        if min(tensor.shape, default=0) < 0:
            raise PartitionError(f"tensor {tensor.name:.80}: expected no dimension below 0, got {list(tensor.shape)}")
        elements = math.prod(tensor.shape)
        itemsize = tensor.datatype.itemsize
        if tensor.nbytes != elements * itemsize if itemsize else tensor.nbytes < 4 * elements:
            raise PartitionError(
                f"tensor {tensor.name:.80}: it has {tensor.nbytes} bytes, which do not make up {tensor.datatype} of "
                f"the shape {list(tensor.shape)}"
            )
        size += -size % ALIGNMENT + tensor.nbytes
    if len(tensors) > 1 and len(names := [tensor.name for tensor in tensors]) != len(set(names)):
        raise PartitionError(f"tensors come twice: {', '.join(sorted(names)):.200}")
    if size > limit:
        raise PartitionError(f"the tensors of a batch have {size} bytes, expected at most {limit}")
    return size


def views_of(tensors: Sequence[SessionTensor], body: memoryview) -> list[memoryview]:
    """The bytes of each tensor in the body of its message."""
    if len(tensors) == 1:
        return [body[: tensors[0].nbytes]]
    begins = offsets_of(tensors)
    return [body[begin : begin + tensor.nbytes] for begin, tensor in zip(begins, tensors, strict=False)]


def read_tensor(tensor: SessionTensor, data: memoryview, rows: int) -> Array | WireBytes:
    """A tensor over its bytes, of `rows` rows. Raises BadTensor for BYTES that are not in wire form. O(rows) for those.

    Tensors of other datatypes have been checked when they came.
    """
    if tensor.datatype is DataType.BYTES:
        elements = math.prod(tensor.shape)
        return WireBytes(data, tensor.shape, wire_row_offsets(data, elements, rows, tensor.name))
    try:
        return np.frombuffer(data, numpy_dtype(tensor.datatype)).reshape(tensor.shape)
    except ValueError as error:
        raise BadTensor(f"{tensor.name}: {error}") from error


class MessageDecoder:
    """Decodes the messages of one union. Raises PartitionError with the place of what is wrong."""

    def __init__(self, union: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(union).decode

    def decode(self, data: bytes) -> Any:
        """The message."""
        try:
            return self._decode(data)
        except (msgspec.DecodeError, ValueError, ServingError) as error:
            raise PartitionError(f"a message cannot be read: {error}") from error
