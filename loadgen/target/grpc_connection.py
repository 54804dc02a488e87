"""One connection of HTTP/2 that carries unary calls of gRPC to one method."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import hpack

from sluice.loadgen.target import http2_frames as http2
from sluice.loadgen.target.http2_frames import Fields, Http2Error
from sluice.loadgen.target.socket_writer import SocketWriter

EXPLAIN_FIELD = ("x-sluice-explain", "1")
MESSAGE_HEAD_BYTES = 5
MAX_MESSAGE_BYTES = 1 << 30
"""Most bytes of an answer that is kept."""
_LAST_STREAM = (1 << 31) - 3
_NO_HTTP_2 = "not a gRPC server; for an HTTP port give http://host:port"


class GrpcCallOwner(Protocol):
    """Hears how the calls of connections end."""

    def answered(self, query: int, fields: Fields, message: bytes) -> None:
        """Take the end of a call. `message` has its head, and is empty unless answers are kept."""

    def failed(self, query: int, reason: str) -> None:
        """Take note that a call ended without a status of gRPC."""

    def refused(self, query: int, request: int, reason: str) -> None:
        """Take note that the server has not begun with a call, so that its request may be sent again."""

    def freed(self, connection: "GrpcClientConnection") -> None:
        """Take note that a connection that was full can carry calls again."""

    def withdraw(self, connection: "GrpcClientConnection") -> None:
        """Take note that a connection can carry no further calls."""

    def lost(self, connection: "GrpcClientConnection", queries: Sequence[int], reason: str) -> None:
        """Take note that a connection closed, and of the queries that it had not answered."""


class _Unsent:
    """The rest of a message that the windows have no room for."""

    def __init__(self, rest: memoryview, window: int) -> None:
        self.rest = rest
        self.window = window


class GrpcClientConnection(asyncio.Protocol):
    """A connection whose calls all have the same header `fields`; `ready` is done when the server's settings are known.

    A call costs two frames, most of whose bytes are prepared. Answers are not decoded, and equal header blocks are read
    once.
    """

    transport: asyncio.Transport

    def __init__(self, owner: GrpcCallOwner, fields: Sequence[tuple[str, str]], keep_messages: bool) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._fields = fields
        self._keep_messages = keep_messages
        self._streams: dict[int, tuple[int, int]] = {}
        self._messages: dict[int, bytearray] = {}
        self._unsent: dict[int, _Unsent] = {}
        self._next_stream = 1
        self._most_streams = 1 << 31
        self._is_full = False
        self._is_going = False
        self._window = http2.FIRST_WINDOW
        self._stream_window = http2.FIRST_WINDOW
        self._frame_bytes = http2.FRAME_BYTES
        self._encoder = hpack.Encoder()
        self._headers = self._explain = b""
        self._is_encoded = False
        self._unread = b""
        self._unacknowledged = 0
        self._block: tuple[int, int, bytes] | None = None
        """The stream, the flags and the beginning of a header block that continues."""
        self._failure = "connection closed before the answer"

    # -- calls

    def send(self, query: int, request: int, message: bytes, explain: bool) -> bool:
        """Start a call; returns True while the connection has room for another one.

        `request` is for the owner, and `message` has its head. A failure is reported when the connection is lost.
        """
        stream = self._next_stream
        self._next_stream = stream + 2
        self._streams[stream] = (query, request)
        block = self._headers if self._is_encoded else self._encode_headers()
        if explain:
            block += self._explain
        size = len(message)
        head = http2.frame_head(len(block), http2.HEADERS, http2.END_HEADERS, stream)
        if size <= self._frame_bytes and size <= self._window and size <= self._stream_window:
            self._window -= size
            data = http2.frame_head(size, http2.DATA, http2.END_STREAM, stream)
            self._write(b"".join((head, block, data, message)))
        else:
            self._unsent[stream] = _Unsent(memoryview(message), self._stream_window)
            self._write(head + block + b"".join(self._sendable()))
        self._is_full = len(self._streams) >= self._most_streams or self._is_going or stream >= _LAST_STREAM
        return not self._is_full

    def cancel(self, query: int) -> bool:
        """Reset the stream of a call, which has none while it waits to be sent again."""
        stream = next((stream for stream, (other, _) in self._streams.items() if other == query), None)
        if stream is not None:
            self._reset(stream)
            self._forget(stream)
            self._may_be_free()
        return True

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the server; event loops disable Nagle's algorithm by default."""
        self.transport = cast(asyncio.Transport, transport)
        self._writer = SocketWriter(self.transport)
        self._write(http2.GREETING)

    def data_received(self, data: bytes) -> None:
        """Read the frames of a piece."""
        if self._unread:
            data = self._unread + data
        try:
            self._unread = data[self._read(data) :]
        except Http2Error as error:
            self._failure = _NO_HTTP_2 if data.startswith(b"HTTP/1.") else str(error)
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss to the owner."""
        if not self.ready.done():
            self.ready.set_exception(ConnectionResetError(self._failure))
        self._owner.lost(self, [query for query, _ in self._streams.values()], self._failure)

    def _read(self, data: bytes) -> int:
        """Handle all complete frames; returns their length."""
        start, length = 0, len(data)
        while length - start >= http2.HEAD.size:
            high, low, kind, flags, stream = http2.HEAD.unpack_from(data, start)
            size = high << 8 | low
            if size > http2.FRAME_BYTES:
                raise Http2Error(f"HTTP/2: a frame of {size} bytes; expected at most {http2.FRAME_BYTES}")
            begin = start + http2.HEAD.size
            end = begin + size
            if end > length:
                break
            if kind == http2.DATA:
                self._data(stream & http2.LARGEST_WINDOW, flags, data, begin, end)
            elif (handler := _HANDLERS.get(kind)) is not None:  # unknown kinds are to be ignored
                handler(self, stream & http2.LARGEST_WINDOW, flags, data[begin:end])
            start = end
        return start

    def _write(self, content: bytes) -> None:
        try:
            self._writer.write(content)
        except OSError as error:
            self._failure = f"connection cannot be written: {error.strerror}"
            self.transport.abort()

    # -- frames

    def _data(self, stream: int, flags: int, data: bytes, begin: int, end: int) -> None:
        self._unacknowledged += end - begin
        if self._unacknowledged > http2.LARGEST_WINDOW // 2:
            self._write(http2.window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        if stream in self._streams:
            if self._keep_messages:
                message = self._messages.setdefault(stream, bytearray())
                message.extend(http2.unpadded(data[begin:end], flags))
                if len(message) > MAX_MESSAGE_BYTES:
                    raise Http2Error(f"an answer of more than {MAX_MESSAGE_BYTES} bytes")
            if flags & http2.END_STREAM:
                self._fail(stream, "the answer ended without a status")

    def _headers_begin(self, stream: int, flags: int, payload: bytes) -> None:
        self._block = None
        block = http2.unpadded(payload, flags)
        if flags & http2.END_HEADERS:
            self._headers_end(stream, flags, block)
        else:
            self._block = (stream, flags, block)

    def _headers_continue(self, stream: int, flags: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream:
            raise Http2Error("HTTP/2: CONTINUATION without HEADERS")
        _, first_flags, block = self._block
        if len(block) > http2.FRAME_BYTES * 4:
            raise Http2Error(f"HTTP/2: a header block of more than {http2.FRAME_BYTES * 4} bytes")
        if flags & http2.END_HEADERS:
            self._block = None
            self._headers_end(stream, first_flags, block + payload)
        else:
            self._block = (stream, first_flags, block + payload)

    def _headers_end(self, stream: int, flags: int, block: bytes) -> None:
        fields = http2.read_fields(http2.without_id(block))
        if stream not in self._streams:  # it was cancelled
            return
        if fields.http_status != 200:
            self._fail(stream, f"HTTP {fields.http_status}")
        elif flags & http2.END_STREAM:
            message = bytes(self._messages.get(stream, b""))
            query, _ = self._forget(stream)
            self._may_be_free()  # first, since an answer may bring the next query
            self._owner.answered(query, fields, message)

    def _stream_reset(self, stream: int, flags: int, payload: bytes) -> None:
        if stream in self._streams:
            self._unsent.pop(stream, None)
            code = int.from_bytes(payload, "big")
            self._fail(stream, f"RST_STREAM {code}", is_refused=code == http2.REFUSED_STREAM)

    def _settings(self, stream: int, flags: int, payload: bytes) -> None:
        if flags & http2.ACK:
            return
        for identifier, value in http2.read_settings(payload):
            if identifier == http2.TABLE_SIZE:
                self._encoder.header_table_size = min(value, self._encoder.header_table_size)
                self._is_encoded = False
            elif identifier == http2.MAX_STREAMS:
                self._most_streams = max(value, 1)
            elif identifier == http2.MAX_FRAME:
                self._frame_bytes = value
            elif identifier == http2.STREAM_WINDOW:
                for unsent in self._unsent.values():
                    unsent.window += value - self._stream_window
                self._stream_window = value
        self._write(http2.frame(http2.SETTINGS, http2.ACK, 0) + b"".join(self._sendable()))
        if not self.ready.done():
            self.ready.set_result(None)
        else:
            self._may_be_free()

    def _ping(self, stream: int, flags: int, payload: bytes) -> None:
        if not flags & http2.ACK:
            self._write(http2.frame(http2.PING, http2.ACK, 0, payload))

    def _going_away(self, stream: int, flags: int, payload: bytes) -> None:
        last = int.from_bytes(payload[:4], "big")
        text = payload[8:].decode("utf-8", "replace")
        self._failure = f"the server closes the connection: GOAWAY {int.from_bytes(payload[4:8], 'big')} {text}".strip()
        self._is_going = self._is_full = True
        self._owner.withdraw(self)
        for unserved in [each for each in self._streams if each > last]:
            self._unsent.pop(unserved, None)
            self._fail(unserved, self._failure, is_refused=True)
        if not self._streams:
            self.transport.close()

    def _window_update(self, stream: int, flags: int, payload: bytes) -> None:
        increment = int.from_bytes(payload, "big") & http2.LARGEST_WINDOW
        if not stream:
            self._window += increment
        elif (unsent := self._unsent.get(stream)) is not None:
            unsent.window += increment
        if self._unsent and (content := b"".join(self._sendable())):
            self._write(content)

    # -- streams

    def _encode_headers(self) -> bytes:
        """Encode the header block of the next call, which is returned, and that of later ones, which refer to it."""
        block: bytes = self._encoder.encode(self._fields)
        self._headers = self._encoder.encode(self._fields)
        self._explain = self._encoder.encode([hpack.NeverIndexedHeaderTuple(*EXPLAIN_FIELD)])
        self._is_encoded = True
        return block

    def _sendable(self) -> list[bytes]:
        """The frames of waiting messages that the windows have room for."""
        frames: list[bytes] = []
        for stream, unsent in list(self._unsent.items()):
            while (size := min(len(unsent.rest), self._window, unsent.window, self._frame_bytes)) > 0:
                piece, unsent.rest = unsent.rest[:size], unsent.rest[size:]
                self._window -= size
                unsent.window -= size
                flags = 0 if unsent.rest else http2.END_STREAM
                frames += (http2.frame_head(size, http2.DATA, flags, stream), bytes(piece))
            if not unsent.rest:
                del self._unsent[stream]
        return frames

    def _fail(self, stream: int, reason: str, is_refused: bool = False) -> None:
        query, request = self._forget(stream)
        self._may_be_free()
        if is_refused:
            self._owner.refused(query, request, reason)
        else:
            self._owner.failed(query, reason)

    def _forget(self, stream: int) -> tuple[int, int]:
        """Remove a stream, and reset it if its message is not sent yet; returns its query and request."""
        self._messages.pop(stream, None)
        if stream in self._unsent:
            self._reset(stream)
        return self._streams.pop(stream)

    def _reset(self, stream: int) -> None:
        self._unsent.pop(stream, None)
        self._write(http2.frame(http2.RST_STREAM, 0, stream, http2.CANCEL.to_bytes(4, "big")))

    def _may_be_free(self) -> None:
        if self._is_going:
            if not self._streams:
                self.transport.close()
        elif self._is_full and len(self._streams) < self._most_streams and self._next_stream < _LAST_STREAM:
            self._is_full = False
            self._owner.freed(self)


_HANDLERS: dict[int, Callable[[GrpcClientConnection, int, int, bytes], None]] = {
    http2.HEADERS: GrpcClientConnection._headers_begin,
    http2.CONTINUATION: GrpcClientConnection._headers_continue,
    http2.RST_STREAM: GrpcClientConnection._stream_reset,
    http2.SETTINGS: GrpcClientConnection._settings,
    http2.PING: GrpcClientConnection._ping,
    http2.GOAWAY: GrpcClientConnection._going_away,
    http2.WINDOW_UPDATE: GrpcClientConnection._window_update,
}
