"""Messages and shared memory between a worker and the process of a model written in Python.

Every batch has a number, which its answer repeats.
"""

import mmap
import os
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from sluice.models.backends.metric_updates import MetricUpdate
from sluice.models.backends.requests import (
    CallRequest,
    CallResult,
    FailureCode,
    MemorySpan,
    RequestFailure,
    RequestPart,
)
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
FDS_LIMIT = 2
"""Most descriptors with a message."""
_CONTROL_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(FDS_LIMIT * 4)


class LoadPythonModel(msgspec.Struct, frozen=True, tag=True):
    """Load the model of a `model.py` with its configuration in JSON.

    Answered by an empty `TensorBatch`, or by `ModelFailed`, with the number `LOADED`.
    """

    path: str
    threads: int
    config: str


class TensorBatch(msgspec.Struct, frozen=True, tag=True):
    """The tensors of a batch, inputs or outputs; `size` is the memory that they need.

    Inputs come with the `requests` that they belong to, in the order of their rows (none: it is one request). If two
    descriptors come along, the inputs lie in the first file and the outputs go into the second one: another batch uses
    the usual memory. Outputs come with the `errors` of requests that failed, whose rows have no meaning, and with the
    changes of the model's `metrics`. The answer to a load says whether the model `tells_ready`.
    """

    number: int
    places: tuple[MemorySpan, ...] = ()
    size: int = 0
    requests: tuple[RequestPart, ...] = ()
    errors: tuple[RequestFailure, ...] = ()
    metrics: tuple[MetricUpdate, ...] = ()
    tells_ready: bool = False


class ModelFailed(msgspec.Struct, frozen=True, tag=True):
    """The reason why there is no answer to the batch of that number."""

    number: int
    message: str


class ModelCall(msgspec.Struct, frozen=True, tag=True):
    """The model calls another one while it runs batch `number`; answered by `CallAnswered`."""

    number: int
    call: int
    request: CallRequest


class CallAnswered(msgspec.Struct, frozen=True, tag=True):
    """The answer to a call."""

    call: int
    result: CallResult


class SentResponse(msgspec.Struct, frozen=True, tag=True):
    """A response of a decoupled model to the batch of that number: outputs, an `error`, or the mark of the end alone.

    The memory of its outputs is used again once it was answered by `TakeNext`.
    """

    number: int
    places: tuple[MemorySpan, ...] = ()
    size: int = 0
    error: str | None = None
    code: FailureCode = FailureCode.INTERNAL
    is_final: bool = False


class TakeNext(msgspec.Struct, frozen=True, tag=True):
    """The last response to the batch of that number was read."""

    number: int


class CancelBatch(msgspec.Struct, frozen=True, tag=True):
    """The responses to the batch of that number are not wanted any more."""

    number: int


class ReadyQuestion(msgspec.Struct, frozen=True, tag=True):
    """Ask the model whether it is ready; answered by `ReadyReply`."""

    number: int


class ReadyReply(msgspec.Struct, frozen=True, tag=True):
    """The model is ready, or not, by its own account."""

    number: int
    is_ready: bool


FromModel: TypeAlias = TensorBatch | ModelFailed | ModelCall | ReadyReply
"""The messages of the process of a model."""
FromDecoupledModel: TypeAlias = FromModel | SentResponse
"""Those of a decoupled one."""
ToModel: TypeAlias = LoadPythonModel | TensorBatch | CallAnswered | ReadyQuestion | TakeNext | CancelBatch
"""The messages to it."""


class TensorMemory:
    """An anonymous file that one side writes tensors to and the other reads them from; it grows with them."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._size = 0
        self._bytes = np.empty(0, np.uint8)

    def write(self, arrays: Mapping[str, Array]) -> tuple[tuple[MemorySpan, ...], int]:
        """Copy tensors over the previous ones; returns their positions and the memory that they need."""
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
        return tuple(places), end

    def read(self, places: Iterable[MemorySpan], nbytes: int) -> dict[str, Array]:
        """Return the tensors at these positions as views, which are valid until the next ones are written."""
        if nbytes > self._size:
            self._map(nbytes)
        return {place.name: self._read(place) for place in places}

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


class Received(NamedTuple):
    """A message, the process that has sent it, and the descriptors that came along, which the receiver owns."""

    message: Any
    sender: int
    fds: tuple[int, ...] = ()


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

    def send(self, message: FromDecoupledModel | ToModel, fds: Sequence[int] = ()) -> None:
        """Send a message and copies of descriptors; raises ConnectionError when the other end is gone."""
        if isinstance(message, ModelFailed):
            message = ModelFailed(message.number, sendable(message.message))
        elif isinstance(message, SentResponse) and message.error is not None:
            message = msgspec.structs.replace(message, error=sendable(message.error))
        if fds:
            socket.send_fds(self._socket, [self._encode(message)], fds)
        else:
            self._socket.send(self._encode(message))

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def receive(self) -> Received:
        """Wait for the next message.

        Raises EOFError when the other end is gone, and msgspec.MsgspecError for what is no message.
        """
        try:
            packet, control, _, _ = self._socket.recvmsg(PACKET_BYTES, _CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError as error:
            raise EOFError("the other end is gone") from error
        sender, fds = _ancillary(control)
        if not packet:
            raise EOFError("the other end is gone")
        try:
            return Received(self._decode(packet), sender, fds)
        except msgspec.MsgspecError:
            close_all(fds)
            raise

    def close(self) -> None:
        """Close it: the other end reads the messages that were sent, then the end."""
        self._socket.close()


def sendable(text: str) -> str:
    """A text of a model, shortened and without surrogates, which no message may have."""
    return text[:_MAX_MESSAGE].encode("utf-8", "replace").decode()


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


def _ancillary(control: Iterable[tuple[int, int, bytes]]) -> tuple[int, tuple[int, ...]]:
    """The sender and the descriptors of a message."""
    sender = 0
    fds: tuple[int, ...] = ()
    for _, kind, data in control:
        if kind == socket.SCM_CREDENTIALS:
            sender = _CREDENTIALS.unpack(data)[0]
        elif kind == socket.SCM_RIGHTS:
            fds = struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
    return sender, fds
