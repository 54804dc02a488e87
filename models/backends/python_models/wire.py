"""Messages and shared memory between a worker and the process of a model written in Python.

Every batch has a number, which its answer repeats.
"""

import mmap
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np

from sluice.models.tensors.arrays import Array, datatype_of, decode_bytes, encode_bytes, numpy_dtype
from sluice.models.tensors.spec import DataType

PACKET_BYTES = 1 << 20
"""Longest message."""
LOADED = 0
"""The number of the answer to `LoadPythonModel`; batches count from 1."""
_ALIGNMENT = 64
_MAX_MESSAGE = 4000
_CREDENTIALS = struct.Struct("3i")
"""The kernel's `struct ucred` of a sender: its process, user and group."""


class MemorySpan(msgspec.Struct, frozen=True, array_like=True):
    """The position of a tensor, BYTES in wire form."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class LoadPythonModel(msgspec.Struct, frozen=True, tag=True):
    """Load the model of a `model.py` with its configuration in JSON.

    Answered by an empty `TensorBatch`, or by `ModelFailed`, with the number `LOADED`.
    """

    path: str
    threads: int
    config: str


class TensorBatch(msgspec.Struct, frozen=True, tag=True):
    """The tensors of a batch, inputs or outputs; `size` is the memory that they need."""

    number: int
    places: tuple[MemorySpan, ...] = ()
    size: int = 0


class ModelFailed(msgspec.Struct, frozen=True, tag=True):
    """The reason why there is no answer to the batch of that number."""

    number: int
    message: str


class SentResponse(msgspec.Struct, frozen=True, tag=True):
    """A response of a decoupled model to the batch of that number: `tensors`, an `error`, or the mark of the end alone.

    The memory of its tensors is used again once it was answered by `TakeNext`.
    """

    number: int
    tensors: TensorBatch
    error: str | None = None
    is_final: bool = False


class TakeNext(msgspec.Struct, frozen=True, tag=True):
    """The last response to the batch of that number was read."""

    number: int


class CancelBatch(msgspec.Struct, frozen=True, tag=True):
    """The responses to the batch of that number are not wanted any more."""

    number: int


FromModel: TypeAlias = TensorBatch | ModelFailed | SentResponse
"""The messages of the process of a model."""
ToModel: TypeAlias = LoadPythonModel | TensorBatch | TakeNext | CancelBatch
"""The messages to it."""


class TensorMemory:
    """An anonymous file that one side writes tensors to and the other reads them from; it grows with them."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._size = 0
        self._bytes = np.empty(0, np.uint8)

    def write(self, number: int, arrays: Mapping[str, Array]) -> TensorBatch:
        """Copy the tensors of a batch over the previous ones."""
        places: list[MemorySpan] = []
        contents: list[Array] = []
        end = 0
        for name, array in arrays.items():
            datatype = datatype_of(array.dtype)
            if datatype is DataType.BYTES:
                content: Array = np.frombuffer(encode_bytes(array)[0], np.uint8)
            else:
                content = array
            offset = -(-end // _ALIGNMENT) * _ALIGNMENT
            places.append(MemorySpan(name, datatype, array.shape, offset, content.nbytes))
            contents.append(content)
            end = offset + content.nbytes
        if end > self._size:
            os.ftruncate(self.fd, 1 << (end - 1).bit_length())
            self._map(end)
        for place, content in zip(places, contents, strict=True):
            if place.nbytes:
                np.ndarray(content.shape, content.dtype, self._bytes.data, place.offset)[...] = content
        return TensorBatch(number, tuple(places), end)

    def read(self, tensors: TensorBatch) -> dict[str, Array]:
        """Return the tensors as views, which are valid until the next ones are written."""
        if tensors.size > self._size:
            self._map(tensors.size)
        return {place.name: self._read(place) for place in tensors.places}

    def _read(self, place: MemorySpan) -> Array:
        if place.datatype is DataType.BYTES:
            return decode_bytes(self._bytes[place.offset : place.offset + place.nbytes].data, place.shape, place.name)
        if not place.nbytes:
            return np.empty(place.shape, numpy_dtype(place.datatype))
        return np.ndarray(place.shape, numpy_dtype(place.datatype), self._bytes.data, place.offset)

    def _map(self, size: int) -> None:
        """Map the whole file, which has at least `size` bytes; views of the old mapping stay valid."""
        self._size = os.fstat(self.fd).st_size
        assert size <= self._size, "the writer grows the file before it sends the message"

        self._bytes = np.frombuffer(mmap.mmap(self.fd, self._size), np.uint8)


class MessageLink:
    """One end of a connected SEQPACKET socket; `incoming` is the union of messages that may arrive.

    The kernel attaches to each message which process has sent it.
    """

    def __init__(self, sock: socket.socket, incoming: Any) -> None:
        self._socket = sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(incoming).decode

    def send(self, message: FromModel | ToModel) -> None:
        """Send a message; raises ConnectionError when the other end is gone."""
        if isinstance(message, ModelFailed):
            message = ModelFailed(message.number, message.message[:_MAX_MESSAGE])
        elif isinstance(message, SentResponse) and message.error is not None:
            message = msgspec.structs.replace(message, error=message.error[:_MAX_MESSAGE])
        self._socket.send(self._encode(message))

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def receive(self) -> tuple[Any, int]:
        """Wait for the next message; returns it with the id of the process that has sent it.

        Raises EOFError when the other end is gone.
        """
        try:
            packet, control, _, _ = self._socket.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
        except ConnectionError as error:
            raise EOFError("the other end is gone") from error
        if not packet:
            raise EOFError("the other end is gone")
        sender, _, _ = _CREDENTIALS.unpack(control[0][2])
        return self._decode(packet), sender

    def close(self) -> None:
        """Close it: the other end reads the messages that were sent, then the end."""
        self._socket.close()
