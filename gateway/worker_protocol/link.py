"""A connection of HTTP/2 with one stream, which carries a session: either end of it.

The stream is the call of gRPC that is the session; nothing else goes over the connection. So its windows are as large
as they can be, and what bounds the memory is that bytes are read straight to the place where their tensor stays, or not
at all. The bytes of outgoing tensors are written from where they lie, and may change once they are said to be sent.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from sluice.gateway.http2.frames import (
    ACK,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LEAST_FRAME_BYTES,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_STREAM_ID,
    MAX_WINDOW,
    MOST_FRAME_BYTES,
    PADDED,
    PING,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    frame,
    go_away,
    reset,
    settings_frame,
    window_update,
)
from sluice.gateway.worker_protocol.framing import (
    ALIGNMENT,
    CHUNK_BYTES,
    MOST_MESSAGE_BYTES,
    SIZE_BYTES,
    MessageDecoder,
    check_tensors,
    head_of,
    tensors_of,
)
from sluice.gateway.worker_protocol.messages import SessionTensor
from sluice.models.errors import PartitionError

logger = logging.getLogger(__name__)

WINDOW = 1 << 30
"""The bytes that the other end may send before it hears of more room."""
CREDIT_BYTES = 64 << 20
"""The room is said again by this much at a time."""
FRAME_BYTES = CHUNK_BYTES + 4096
"""The largest frame that the other end may send: a chunk with its prefix is one."""
BUFFER_BYTES = 64 << 10
"""The memory for what is read, apart from the bytes of large tensors."""
NEXT_BYTES = 4 << 10
"""The part of it that is read into behind a large tensor: it may be the beginning of another one, which is copied."""
SMALL_BYTES = 64 << 10
"""Messages up to this size are joined, since a write of many parts costs more than the copy."""
MOST_CONTROL_BYTES = 64 << 10
"""The other end has to read when so much waits that answers its frames."""

LINGER_S = 2.0
"""The time for the other end to read the last frames."""
LINGER_BYTES = 16 << 20
"""The bytes that are read and dropped meanwhile."""
MOST_URGENT = 256
"""Urgent messages that may wait to be sent."""

_WITHOUT_PACING = b"reno"
"""The congestion control that every Linux has and lets all users choose."""
_PREFIX_BYTES = 5
_START_BYTES = _PREFIX_BYTES + SIZE_BYTES
_EMPTY = memoryview(b"")
_GAPS = [memoryview(bytes(size)) for size in range(ALIGNMENT)]
_CONTROL_FRAMES = frozenset((HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE))

Place = Callable[[Any, int], memoryview | None]
"""Gives the memory for the body of a message; None if the body is to be dropped."""


class Role(Protocol):
    """The differences between the two ends."""

    def on_headers(self, block: bytes, ended: bool) -> str | None:
        """Take a header block of the stream; returns the reason if the session ends with it."""
        ...

    def last_block(self, reason: str, *, is_fault: bool) -> bytes | None:
        """The header block that ends the stream, for a fault of the other end or something else; None for a reset."""
        ...


class SessionLink(asyncio.BufferedProtocol):
    """One end of the connection, which is open: both have sent their preface, and the stream exists.

    `decoder` reads messages, whose bodies have at most `max_body_bytes` and go to the memory of `place`. `on_message`
    gets each message with its body once it is complete (`None` for a body that was dropped). It and `place` raise
    PartitionError for a message that cannot be true, which ends the session. `on_end` is called once with a sentence,
    and is not called by `close`. No more than `max_unsent_bytes` wait to be sent. `on_lost` is called when the
    transport is gone.
    """

    def __init__(  # noqa: PLR0915 (all fields of both directions)
        self,
        decoder: MessageDecoder,
        place: Place,
        on_message: Callable[[Any, memoryview | None], None],
        on_end: Callable[[str], None],
        max_body_bytes: int,
        max_unsent_bytes: int,
        role: Role,
        stream_id: int = 1,
        on_lost: Callable[[Exception | None], None] | None = None,
    ) -> None:
        self._decoder = decoder
        self._place = place
        self._on_message = on_message
        self._on_end = on_end
        self._max_body_bytes = max_body_bytes
        self._max_unsent_bytes = max_unsent_bytes
        self._role = role
        self._on_lost = on_lost
        self._stream_id = stream_id
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self.over = False
        """True if nothing more is sent or taken."""
        self.last_read_s = self._loop.time()
        """The time at which bytes came last."""
        self.received_bytes = 0
        self._lingering_bytes = 0
        # -- what is read
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = 0
        self._is_direct = self._was_direct = False
        self._frame_left = self._padding_left = 0
        """The bytes of a DATA frame that have not come."""
        self._ends_stream = False
        self._start = bytearray()
        """The beginning of a message of gRPC, of which a part has come."""
        self._part_left = 0
        """The bytes of a message of gRPC, behind its beginning, that have not come."""
        self._head = bytearray()
        self._head_left = 0
        self._open: tuple[Any, memoryview | None] | None = None
        """The message whose body has not come, and the memory for that."""
        self._missing = _EMPTY
        """The rest of that memory."""
        self._dropped = 0
        """The bytes of a body to be dropped that have not come."""
        self._uncredited = 0
        # -- what is sent
        self.send_window = self.stream_window = DEFAULT_WINDOW
        self.peer_frame_bytes = LEAST_FRAME_BYTES
        self._peer_initial_window = DEFAULT_WINDOW
        self._paused = False
        self._control: list[bytes] = []
        self._urgent: deque[bytes] = deque()
        self._waiting: deque[tuple[msgspec.Struct, bytes, deque[memoryview], int, Callable[[], None] | None]] = deque()
        """Messages of which nothing has been sent: each with its head, its body, the size of that, and whom to call."""
        self._parts: deque[memoryview] = deque()
        """The rest of a message of gRPC that is being sent."""
        self._parts_bytes = 0
        self._body: deque[memoryview] = deque()
        """The body that follows it."""
        self._body_bytes = 0
        self._body_sent: Callable[[], None] | None = None
        self._unflushed: list[Callable[[], None]] = []
        self.unsent_bytes = 0
        self._has_pump = False

    # -- opening

    @staticmethod
    def _suit(transport: Any) -> None:
        """Turn off the pacing of TCP on the way to another process of this machine, as BBR has it.

        It takes nearly half of the processor time that the kernel needs for a large tensor.
        """
        connection = transport.get_extra_info("socket")
        if connection is None:
            return
        with suppress(OSError):
            if connection.getpeername()[0] == connection.getsockname()[0]:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _WITHOUT_PACING)

    def begin(self, transport: Any, preface: bytes = b"", rest: bytes = b"") -> None:
        """Take over a transport, to which the preface is still to be sent, and from which `rest` has been read."""
        self._transport = transport
        self._suit(transport)
        # It is to pause when any byte has to wait: transports over TLS compare with "at least".
        transport.set_write_buffer_limits(int(transport.get_extra_info("ssl_object") is not None), 0)
        if transport.get_write_buffer_size():
            self._paused = True
        transport.set_protocol(self)
        self.put(
            preface
            + settings_frame({INITIAL_WINDOW_SIZE: WINDOW, MAX_FRAME_SIZE: FRAME_BYTES, MAX_CONCURRENT_STREAMS: 1})
            + window_update(0, WINDOW - DEFAULT_WINDOW)
        )
        self._take_bytes(rest)

    def _take_bytes(self, data: bytes) -> None:
        """Take bytes that have been read elsewhere."""
        view = memoryview(data)
        while view and not self.over:
            memory = self.get_buffer(len(view))
            size = min(len(memory), len(view))
            memory[:size] = view[:size]
            self.buffer_updated(size)
            view = view[size:]

    def set_peer(self, initial_window: int, send_window: int, stream_window: int, frame_bytes: int) -> None:
        """Go on with what the other end has said before."""
        self._peer_initial_window = initial_window
        self.send_window, self.stream_window, self.peer_frame_bytes = send_window, stream_window, frame_bytes

    # -- for the owner

    def send(
        self,
        message: msgspec.Struct,
        tensors: Sequence[memoryview | Sequence[memoryview]] = (),
        sent: Callable[[], None] | None = None,
    ) -> None:
        """Send a message and the bytes of its tensors, each in one piece or more, which stay until `sent` is called.

        Raises PartitionError if too much waits to be sent already. Nothing happens once the session is over; `sent` is
        called then, too.
        """
        head = head_of(message)
        body: deque[memoryview] = deque()
        size = 0
        if tensors:
            size = _lay_out(tensors_of(message), tensors, body)
        total = _framed_bytes(len(head), size)
        if self.over:
            if sent is not None:
                sent()
            return
        if self.unsent_bytes and self.unsent_bytes + total > self._max_unsent_bytes:
            raise PartitionError(
                f"{self.unsent_bytes} bytes wait to be sent; with the {total} bytes of another message it would be "
                f"more than {self._max_unsent_bytes}"
            )
        self.unsent_bytes += total
        self._waiting.append((message, head, body, size, sent))
        self._pump_soon()

    def send_urgent(self, message: msgspec.Struct) -> None:
        """Send a small message ahead of those that wait, and between the chunks of a large one."""
        if not self.over:
            head = head_of(message)
            if len(self._urgent) >= MOST_URGENT:
                raise PartitionError(f"the other end does not read: {MOST_URGENT} answers to its messages wait")
            self.unsent_bytes += _framed_bytes(len(head), 0)
            self._urgent.append(head)
            self._pump_soon()

    def take_back(self, is_wanted: Callable[[Any], bool]) -> bool:
        """Drop the first such message of which nothing has been sent; returns false if there is none."""
        for position, (message, head, _, size, sent) in enumerate(self._waiting):
            if is_wanted(message):
                del self._waiting[position]
                self.unsent_bytes -= _framed_bytes(len(head), size)
                if sent is not None:
                    sent()
                return True
        return False

    def close(self, reason: str = "") -> None:
        """End the session. What waits to be sent is dropped if the other end does not read it.

        The other end hears of a reason that is no fault of its own.
        """
        if not self.over:
            self.pump()
            self._finish(lingers=self._end_stream(reason, is_fault=False))

    def abort(self) -> None:
        """End the session at once."""
        self.over = True
        self._drop_all()
        if self._transport is not None:
            self._transport.abort()

    def fail(self, reason: str) -> None:
        """End the session for a fault of the other end."""
        if not self.over:
            self._finish(lingers=self._end_stream(reason))
            self._on_end(reason)

    def _end_stream(self, reason: str, *, is_fault: bool = True) -> bool:
        """Add the last frames; returns true if the other end closes the connection once it has them."""
        block = self._role.last_block(reason, is_fault=is_fault)
        if block is not None:
            self._control.append(frame(HEADERS, END_HEADERS | END_STREAM, self._stream_id, block))
            self._control.append(reset(self._stream_id, ErrorCode.NO_ERROR))
            self._control.append(go_away(self._stream_id, ErrorCode.NO_ERROR, ""))
        elif is_fault:
            self._control.append(reset(self._stream_id, ErrorCode.CANCEL))
            self._control.append(go_away(0, ErrorCode.PROTOCOL_ERROR, reason[:200]))
        else:
            self._control.append(frame(DATA, END_STREAM, self._stream_id) + go_away(0, ErrorCode.NO_ERROR, ""))
        return block is not None

    def _finish(self, *, lingers: bool = False) -> None:
        """Send the last frames, and close.

        A server lets the client close: what that still sends is read for a while, since a connection with unread bytes
        is reset, and the last frames are lost.
        """
        transport = self._transport
        if self._control and not transport.is_closing():
            transport.write(b"".join(self._control))
        self.over = True
        self._drop_all()
        if lingers:
            self._loop.call_later(LINGER_S, transport.abort)
        else:
            transport.close()

    def _drop_all(self) -> None:
        """Forget what waits to be sent."""
        self._control.clear()
        waiting = [sent for *_, sent in self._waiting if sent is not None]
        if self._body_sent is not None:
            waiting.append(self._body_sent)
        waiting += self._unflushed
        self._waiting.clear()
        self._urgent.clear()
        self._parts.clear()
        self._body.clear()
        self._body_sent, self._unflushed = None, []
        self.unsent_bytes = 0
        self._open, self._missing = None, _EMPTY
        for sent in waiting:
            sent()

    # -- the transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self._on_lost is not None:
            self._on_lost(exc)
        if not self.over:
            self.over = True
            self._drop_all()
            self._on_end(
                f"the connection was lost: {exc}" if exc is not None else "the other end closed the connection"
            )

    def eof_received(self) -> bool | None:
        """Let the transport close."""
        return None

    def pause_writing(self) -> None:
        """The transport has taken more than it could pass on."""
        self._paused = True

    def resume_writing(self) -> None:
        """All that was written has been passed on."""
        self._paused = False
        self._flushed()
        self.pump()

    # -- reading

    def get_buffer(self, sizehint: int) -> memoryview:
        """The memory of what is missing of a tensor, or of what comes between tensors."""
        if self.over:
            return self._buffer
        if self._frame_left and self._part_left and not self._head_left and not self._filled and self._missing:
            size = min(self._frame_left, self._part_left, len(self._missing))
            if size >= NEXT_BYTES:
                self._is_direct = self._was_direct = True
                return self._missing[:size]
        self._is_direct = False
        if self._was_direct:
            self._was_direct = False
            return self._buffer[self._filled : self._filled + NEXT_BYTES]
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has been read."""
        self.received_bytes += nbytes
        if self.over:
            self._lingering_bytes += nbytes
            if self._lingering_bytes > LINGER_BYTES:
                self._transport.abort()
            return
        self.last_read_s = self._loop.time()
        try:
            if self._is_direct:
                self._frame_left -= nbytes
                self._count(nbytes)
                self._body_came(nbytes)
                if not self._frame_left and not self._padding_left:
                    self._frame_ended()
            else:
                self._filled += nbytes
                self._parse()
        except PartitionError as error:
            self.fail(str(error))
        except Exception:
            logger.exception("what came over a session could not be handled")
            self.fail("internal error")
        self.pump()

    def _parse(self) -> None:
        """Take the frames in the buffer."""
        buffer, position, end = self._buffer, 0, self._filled
        while not self.over:
            if self._frame_left or self._padding_left:
                size = min(self._frame_left, end - position)
                if size:
                    self._frame_left -= size
                    self._count(size)
                    self._feed(buffer[position : position + size])
                    position += size
                skipped = min(self._padding_left, end - position)
                if not self._frame_left:
                    self._padding_left -= skipped
                    self._count(skipped)
                    position += skipped
                if self._frame_left or self._padding_left:
                    break
                self._frame_ended()
                continue
            if end - position < HEAD_BYTES:
                break
            high, low, kind, flags, stream_id = FRAME_HEAD.unpack_from(buffer, position)
            length = high << 16 | low
            stream_id &= MAX_STREAM_ID
            begin = position + HEAD_BYTES
            if kind == DATA:
                taken = self._begin_data(flags, stream_id, length, buffer[begin:end])
                if taken < 0:
                    break
                position = begin + taken
                continue
            if length > LEAST_FRAME_BYTES:
                is_text = bytes(buffer[position : position + 5]) == b"HTTP/"
                what = "HTTP/1 came, expected HTTP/2" if is_text else f"a frame of type {kind} has {length} bytes"
                raise PartitionError(what)
            if begin + length > end:
                break
            position = begin + length
            if kind in _CONTROL_FRAMES:
                self._take_control(kind, flags, stream_id, bytes(buffer[begin:position]))
        left = end - position
        if left and position:
            buffer[:left] = bytes(buffer[position:end])
        self._filled = left

    def _begin_data(self, flags: int, stream_id: int, length: int, payload: memoryview) -> int:
        """Begin a DATA frame; returns the bytes taken of its payload, -1 if more are needed."""
        if stream_id != self._stream_id:
            raise PartitionError(f"data came on stream {stream_id}, expected stream {self._stream_id}")
        if length > FRAME_BYTES:
            raise PartitionError(f"a frame has {length} bytes, expected at most {FRAME_BYTES}")
        taken = padding = 0
        if flags & PADDED:
            if not payload:
                return -1
            padding, taken = payload[0], 1
            if padding >= length:
                raise PartitionError("the padding of a frame is longer than the frame")
            self._count(1)
        self._frame_left, self._padding_left = length - taken - padding, padding
        self._ends_stream = bool(flags & END_STREAM)
        if not self._frame_left and not padding:
            self._frame_ended()
        return taken

    def _frame_ended(self) -> None:
        if self._ends_stream:
            self._ended("the other end closed the session")

    def _ended(self, reason: str) -> None:
        if not self.over:
            self._finish()
            self._on_end(reason)

    def _count(self, size: int) -> None:
        """Give room for as much again, from time to time."""
        self._uncredited += size
        if self._uncredited >= CREDIT_BYTES:
            self.put(window_update(0, self._uncredited) + window_update(self._stream_id, self._uncredited))
            self._uncredited = 0

    # -- messages

    def _feed(self, data: memoryview) -> None:
        """Take bytes of the stream."""
        while data and not self.over:
            if not self._part_left:
                data = self._begin_part(data)
            elif self._head_left:
                size = min(self._head_left, len(data))
                self._head_left -= size
                self._part_left -= size
                if self._head_left or self._head:
                    self._head += data[:size]
                    if not self._head_left:
                        encoded, self._head = bytes(self._head), bytearray()
                        self._begin_message(encoded)
                else:
                    self._begin_message(bytes(data[:size]))
                data = data[size:]
            else:
                size = min(self._part_left, len(data))
                if self._missing:
                    self._missing[:size] = data[:size]
                self._body_came(size)
                data = data[size:]

    def _begin_part(self, data: memoryview) -> memoryview:
        """Take the beginning of a message of gRPC; returns what follows it."""
        if not self._start and len(data) >= _START_BYTES:
            start, data = data[:_START_BYTES], data[_START_BYTES:]
        else:
            size = _START_BYTES - len(self._start)
            self._start += data[:size]
            data = data[size:]
            if len(self._start) < _START_BYTES:
                if (
                    len(self._start) >= _PREFIX_BYTES
                    and int.from_bytes(self._start[1:_PREFIX_BYTES], "big") < SIZE_BYTES
                ):
                    raise PartitionError(f"a message has no size, expected {SIZE_BYTES} bytes of it first")
                return data
            start, self._start = memoryview(bytes(self._start)), bytearray()
        if start[0]:
            raise PartitionError("a message is compressed, expected none that is")
        length = int.from_bytes(start[1:_PREFIX_BYTES], "big") - SIZE_BYTES
        size = int.from_bytes(start[_PREFIX_BYTES:], "little")
        if size > MOST_MESSAGE_BYTES:
            raise PartitionError(f"a message has {size} bytes, expected at most {MOST_MESSAGE_BYTES}")
        if size > length or length <= 0:
            raise PartitionError(f"a message of {size} bytes came as {max(length, 0)} bytes")
        if not size and (self._open is None or length > self._body_left):
            raise PartitionError(f"{length} bytes of tensors came, expected {self._body_left}")
        self._head_left, self._part_left = size, length
        return data

    @property
    def _body_left(self) -> int:
        """The bytes of the body of the open message that have not come."""
        return len(self._missing) or self._dropped

    def _begin_message(self, encoded: bytes) -> None:
        message = self._decoder.decode(encoded)
        tensors = tensors_of(message)
        size = check_tensors(tensors, self._max_body_bytes) if tensors else 0
        if self._part_left and (self._open is not None or self._part_left > size):
            raise PartitionError(f"{self._part_left} bytes of tensors came with a message, expected {size}")
        if not size:
            self._on_message(message, _EMPTY)
            return
        if self._open is not None:
            raise PartitionError("a message with tensors came before all of those of another one")
        memory = self._place(message, size)
        self._open = message, memory
        if memory is None:
            self._dropped = size
        else:
            self._missing = memory

    def _body_came(self, size: int) -> None:
        self._part_left -= size
        if self._missing:
            self._missing = self._missing[size:]
        else:
            self._dropped -= size
        if not self._body_left:
            assert self._open is not None
            (message, memory), self._open = self._open, None
            self._on_message(message, memory)

    # -- other frames

    def put(self, data: bytes) -> None:
        """Send frames that are not on the stream."""
        self._control.append(data)
        if self._paused and sum(map(len, self._control)) > MOST_CONTROL_BYTES:
            raise PartitionError("the other end does not read what answers its frames")
        self._pump_soon()

    def _take_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE and len(payload) == 4:
            size = int.from_bytes(payload, "big") & MAX_WINDOW
            if stream_id == 0:
                self.send_window = self._grown(self.send_window, size)
            elif stream_id == self._stream_id:
                self.stream_window = self._grown(self.stream_window, size)
        elif kind == SETTINGS:
            if not flags & ACK:
                for setting, value in SETTING.iter_unpack(payload[: len(payload) // SETTING.size * SETTING.size]):
                    self._set(setting, value)
                self.put(frame(SETTINGS, ACK, 0))
        elif kind == PING:
            if not flags & ACK:
                self.put(frame(PING, ACK, 0, payload[:8].ljust(8, b"\0")))
        elif kind == HEADERS:
            self._take_headers(flags, stream_id, payload)
        elif kind == RST_STREAM and stream_id == self._stream_id:
            self._ended(f"the other end reset the session with {_error_name(payload)}")
        elif kind == GOAWAY and payload[4:8] != bytes(4):
            text = payload[8:].decode(errors="replace")
            self._ended(f"the other end ended the connection with {_error_name(payload[4:8])}: {text:.300}")

    def _take_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id != self._stream_id:
            self.put(reset(stream_id, ErrorCode.REFUSED_STREAM))
            return
        if not flags & END_HEADERS or flags & ~(END_HEADERS | END_STREAM):
            raise PartitionError("a header block came in parts, expected one frame")
        reason = self._role.on_headers(payload, bool(flags & END_STREAM))
        if reason is not None:
            self._ended(reason)

    @staticmethod
    def _grown(window: int, size: int) -> int:
        if window + size > MAX_WINDOW:
            raise PartitionError(f"a window exceeds {MAX_WINDOW} bytes")
        return window + size

    def _set(self, setting: int, value: int) -> None:
        if setting == INITIAL_WINDOW_SIZE:
            self.stream_window = self._grown(self.stream_window, value - self._peer_initial_window)
            self._peer_initial_window = value
        elif setting == MAX_FRAME_SIZE:
            if not LEAST_FRAME_BYTES <= value <= MOST_FRAME_BYTES:
                raise PartitionError(f"expected a largest frame from {LEAST_FRAME_BYTES} bytes on, got {value}")
            self.peer_frame_bytes = value

    # -- sending

    def _pump_soon(self) -> None:
        """Send at the end of this turn of the loop, all of it at once."""
        if not self._has_pump:
            self._has_pump = True
            self._loop.call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._has_pump = False
        self.pump()

    def pump(self) -> None:
        """Send what waits, as far as the windows and the transport have room."""
        while not self._paused and not self.over:
            out: list[bytes | memoryview] = []
            size = 0
            if self._control:
                out += self._control
                size = sum(map(len, self._control))
                self._control.clear()
            while size < SMALL_BYTES and (self._parts or self._next_part()):
                sent = self._frame(out)
                if not sent:
                    break
                size += sent
            if not out:
                return
            if size <= SMALL_BYTES:
                self._transport.write(b"".join(out) if len(out) > 1 else out[0])
            else:
                self._transport.writelines(out)
            if not self._paused:
                self._flushed()

    def _flushed(self) -> None:
        """All that was written has left: its memory may change."""
        if self._unflushed:
            flushed, self._unflushed = self._unflushed, []
            for sent in flushed:
                sent()

    def _next_part(self) -> bool:
        """Begin the next message of gRPC; returns false if there is none."""
        if self._urgent:
            self._parts.append(memoryview(_framed(self._urgent.popleft(), 0)))
        elif self._body_bytes:
            size = min(self._body_bytes, CHUNK_BYTES)
            self._parts.append(memoryview(_framed(bytes(SIZE_BYTES), size)))
            self._move(size)
        elif self._waiting:
            _, head, self._body, self._body_bytes, self._body_sent = self._waiting.popleft()
            size = min(self._body_bytes, CHUNK_BYTES)
            self._parts.append(memoryview(_framed(head, size)))
            self._move(size)
        else:
            return False
        self._parts_bytes = sum(map(len, self._parts))
        return True

    def _move(self, size: int) -> None:
        """Move bytes of the body to the message that is being sent."""
        body, parts = self._body, self._parts
        self._body_bytes -= size
        while size:
            part = body.popleft()
            if len(part) > size:
                body.appendleft(part[size:])
                part = part[:size]
            parts.append(part)
            size -= len(part)

    def _frame(self, out: list[bytes | memoryview]) -> int:
        """Add a DATA frame of the message that is being sent; returns its size, 0 if the windows have no room."""
        size = min(self._parts_bytes, self.peer_frame_bytes, self.send_window, self.stream_window)
        if size <= 0:
            return 0
        self.send_window -= size
        self.stream_window -= size
        self._parts_bytes -= size
        self.unsent_bytes -= size
        out.append(FRAME_HEAD.pack(size >> 16, size & 0xFFFF, DATA, 0, self._stream_id))
        parts, left = self._parts, size
        while left:
            part = parts.popleft()
            if len(part) > left:
                parts.appendleft(part[left:])
                part = part[:left]
            out.append(part)
            left -= len(part)
        if not parts and not self._body_bytes and self._body_sent is not None:
            self._unflushed.append(self._body_sent)
            self._body_sent = None
        return size + HEAD_BYTES


def _lay_out(
    described: Sequence[SessionTensor], tensors: Sequence[memoryview | Sequence[memoryview]], body: deque[memoryview]
) -> int:
    """Add the pieces of tensors, and the gaps between them, to a body; returns its size."""
    end = 0
    for about, tensor in zip(described, tensors, strict=True):
        if gap := -end % ALIGNMENT:
            body.append(_GAPS[gap])
        begin = end = end + gap
        for piece in (tensor,) if isinstance(tensor, memoryview) else tensor:
            if piece.nbytes:
                body.append(piece if piece.format == "B" and piece.ndim == 1 else piece.cast("B"))
                end += piece.nbytes
        if end - begin != about.nbytes:
            raise ValueError(f"tensor {about.name} has {end - begin} bytes, expected {about.nbytes}")
    return end


def _framed(head: bytes, body_bytes: int) -> bytes:
    """The head of a message with the prefix of gRPC, for a message of gRPC that has so much of the body."""
    return b"\0" + (len(head) + body_bytes).to_bytes(4, "big") + head


def _framed_bytes(head_bytes: int, body_bytes: int) -> int:
    """The size of a message with all prefixes."""
    more = max(-(-body_bytes // CHUNK_BYTES) - 1, 0)
    return head_bytes + body_bytes + _PREFIX_BYTES + more * _START_BYTES


def _error_name(payload: bytes) -> str:
    code = int.from_bytes(payload[:4], "big")
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
