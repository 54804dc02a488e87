"""Messages and descriptors over a Unix SEQPACKET socket: one msgpack message a packet, in order, never truncated."""

import array
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from sluice.models.errors import PartitionError

PACKET_BYTES = 1 << 20
"""Longest packet; a kernel with smaller socket buffers (net.core.wmem_max) sets a lower limit."""
DRAIN_LIMIT = 64
FDS_LIMIT = 4

_KERNEL_BYTES = 32
"""The kernel's own overhead in the buffer of a packet."""
_CONTROL_BYTES = socket.CMSG_SPACE(FDS_LIMIT * 4)
# Plain numbers: combining the enum's members costs microseconds a message.
_RECEIVE_FLAGS = int(socket.MSG_CMSG_CLOEXEC)
_DONT_WAIT = int(socket.MSG_DONTWAIT)
_CUT_SHORT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)

Incoming = TypeVar("Incoming")


class Channel(Generic[Incoming]):
    """One end of a connected socket, which it owns; `incoming` is the union of the messages that may arrive."""

    def __init__(self, sock: socket.socket, incoming: Any) -> None:
        self._socket = sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET_BYTES)
        room = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        self._limit = min(PACKET_BYTES, room - _KERNEL_BYTES)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(incoming).decode
        self._buffer = bytearray(PACKET_BYTES)
        self._view = memoryview(self._buffer)

    @property
    def closed(self) -> bool:
        """Return whether `close` was called."""
        return self._socket.fileno() < 0

    def fileno(self) -> int:
        """The socket's descriptor, -1 when closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket; the other end reads the messages that were sent, then the end."""
        self._socket.close()

    def encode(self, message: Any) -> bytes:
        """Return the packet of a message; raises PartitionError when it is too long for one."""
        packet = self._encode(message)
        if len(packet) > self._limit:
            raise PartitionError(
                f"channel: a message of {len(packet)} bytes is over the limit of {self._limit} bytes a packet"
            )
        return packet

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message, waiting for room if necessary; raises ConnectionError when the other end is gone."""
        self._transmit(self.encode(message), fds, 0)

    def try_send(self, packet: bytes, fds: Sequence[int] = ()) -> bool:
        """Send an encoded packet if there is room for it now, and return whether it was sent; raises as `send`.

        Any other OSError means that the kernel has run out of something, such as descriptors in transit.
        """
        try:
            self._transmit(packet, fds, _DONT_WAIT)
        except BlockingIOError:
            return False
        return True

    def receive(self, wait: bool = False) -> Iterator[tuple[Incoming, tuple[int, ...]]]:
        """Yield the messages that have arrived (at most 64) with their descriptors, which the caller owns from then on.

        With `wait`, blocks for the first message. Raises EOFError when the other end is gone and everything was read,
        and PartitionError for a malformed packet; the packets after it can still be read.
        """
        flags = _RECEIVE_FLAGS if wait else _RECEIVE_FLAGS | _DONT_WAIT
        for count in range(DRAIN_LIMIT):
            try:
                nbytes, control, status, _ = self._socket.recvmsg_into([self._buffer], _CONTROL_BYTES, flags)
            except BlockingIOError:
                return
            except ConnectionError:
                nbytes, control, status = 0, [], 0
            if not nbytes:
                if count:
                    return
                raise EOFError("the other end of the channel is closed")
            fds = _descriptors(control) if control else ()
            if status & _CUT_SHORT:
                _close_all(fds)
                raise PartitionError("channel: a packet or its descriptors were cut short")
            yield self._message(nbytes, fds), fds
            flags = _RECEIVE_FLAGS | _DONT_WAIT

    def _message(self, nbytes: int, fds: Sequence[int]) -> Incoming:
        try:
            message: Incoming = self._decode(self._view[:nbytes])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            _close_all(fds)
            raise PartitionError(f"channel: a packet is no message: {error}") from error
        return message

    def _transmit(self, packet: bytes, fds: Sequence[int], flags: int) -> None:
        if fds:
            # Not socket.send_fds: it takes flags and leaves them out (CPython 3.11).
            rights = socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds)
            self._socket.sendmsg([packet], [rights], flags)
        else:
            self._socket.send(packet, flags)


def _descriptors(control: list[tuple[int, int, bytes]]) -> tuple[int, ...]:
    received = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return tuple(received)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
