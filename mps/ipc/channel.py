"""Messages and descriptors over a Unix SEQPACKET socket: msgpack messages, in order, never truncated.

A message is one packet. One that is longer than a packet may be is sent in parts, as that of a worker's many models.
"""

import array
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from sluice.models.errors import PartitionError

PACKET_BYTES = 1 << 20
"""Longest packet; a kernel with smaller socket buffers (net.core.wmem_max) sets a lower limit."""
MESSAGE_BYTES = 16 << 20
"""Longest message."""
DRAIN_LIMIT = 64
FDS_LIMIT = 4

_KERNEL_BYTES = 32
"""The kernel's own overhead in the buffer of a packet."""
_CONTROL_BYTES = socket.CMSG_SPACE(FDS_LIMIT * 4)
# Plain numbers: combining the enum's members costs microseconds a message.
_RECEIVE_FLAGS = int(socket.MSG_CMSG_CLOEXEC)
_DONT_WAIT = int(socket.MSG_DONTWAIT)
_PART = b"\xc1"
"""The first byte of a part, with which no msgpack message begins; the second one is 1 if others follow."""
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
        self._parts = bytearray()

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
        self._buffer = bytearray()  # now: cycles may keep the channel for long
        self._view = memoryview(self._buffer)

    def packets(self, message: Any) -> Sequence[bytes]:
        """Return the packets of a message, to be sent in turn; raises PartitionError when it is too long."""
        encoded = self._encode(message)
        if len(encoded) <= self._limit:
            return (encoded,)
        if len(encoded) > MESSAGE_BYTES:
            raise PartitionError(f"channel: a message of {len(encoded)} bytes is over the limit of {MESSAGE_BYTES}")
        room = self._limit - len(_PART) - 1
        return [
            b"%b%c%b" % (_PART, begin + room < len(encoded), encoded[begin : begin + room])
            for begin in range(0, len(encoded), room)
        ]

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message, waiting for room if necessary; raises ConnectionError when the other end is gone."""
        *before, last = self.packets(message)
        for packet in before:
            self._transmit(packet, (), 0)
        self._transmit(last, fds, 0)

    def try_send(self, packet: bytes, fds: Sequence[int] = ()) -> bool:
        """Send a packet if there is room for it now, and return whether it was sent; raises as `send`.

        Descriptors go with the last packet of a message. Any other OSError means that the kernel has run out of
        something, such as descriptors in transit.
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
        packets = messages = 0
        while packets < DRAIN_LIMIT or (wait and not messages):
            packets += 1
            try:
                nbytes, control, status, _ = self._socket.recvmsg_into([self._buffer], _CONTROL_BYTES, flags)
            except BlockingIOError:
                return
            except ConnectionError:
                nbytes, control, status = 0, [], 0
            if not nbytes:
                if messages:
                    return
                raise EOFError("the other end of the channel is closed")
            fds = _descriptors(control) if control else ()
            if status & _CUT_SHORT:
                _close_all(fds)
                raise PartitionError("channel: a packet or its descriptors were cut short")
            encoded: memoryview | bytearray = self._view[:nbytes]
            if self._buffer[0] == _PART[0]:
                if self._takes_part(self._view[:nbytes], fds):
                    continue
                encoded, self._parts = self._parts, bytearray()
            yield self._message(encoded, fds), fds
            messages += 1
            flags = _RECEIVE_FLAGS | _DONT_WAIT

    def _takes_part(self, packet: memoryview, fds: Sequence[int]) -> bool:
        """Keep a part of a message; returns whether others follow."""
        follows = bytes(packet[1:2])
        self._parts += packet[2:]
        if not follows or len(self._parts) > MESSAGE_BYTES or (any(follows) and fds):
            _close_all(fds)
            self._parts.clear()
            raise PartitionError("channel: a part of a message is too short, too long, or has descriptors too soon")
        return any(follows)

    def _message(self, encoded: memoryview | bytearray, fds: Sequence[int]) -> Incoming:
        try:
            message: Incoming = self._decode(encoded)
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
