"""The sending half of a connection: frames, windows, and header blocks of answers (RFC 9113, sections 5.2 and 6.9)."""

from collections import deque
from collections.abc import Callable

from sluice.gateway.grpc.transport.http2.streams import Stream
from sluice.gateway.http2.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_TABLE_BYTES,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    HEADERS,
    LEAST_FRAME_BYTES,
    ErrorCode,
    frame,
    reset,
)
from sluice.gateway.http2.header_blocks import encode_fields, encode_string

PREFIX_BYTES = 5
"""A message is preceded by a flag and its length."""
TURN_BYTES = 64 << 10
"""The bytes that one stream may send before the next one has its turn."""
SMALL_BYTES = 64 << 10
"""Smaller messages are copied into one piece with their frames."""
SMALL_METADATA_BYTES = 8 << 10
"""Larger metadata may need several frames."""
RESETS_KEPT = 1024
"""Streams that the server has reset, and on which frames of the client may still be under way."""

_STATUS_OK = b"\x88"
_CONTENT_TYPE = b"content-type", b"application/grpc"
_ENCODINGS = b"grpc-accept-encoding", b"identity, deflate, gzip"
_OK = b"grpc-status", b"0"
# The blocks of an answer without error, by what the client's dynamic table has.
_PLAIN_HEADERS = _STATUS_OK + encode_fields((_CONTENT_TYPE, _ENCODINGS))
_PLAIN_OK = encode_fields((_OK,))
_ADDING_HEADERS = (
    _STATUS_OK
    + b"\x5f"
    + encode_string(_CONTENT_TYPE[1])
    + b"\x40"
    + b"".join(encode_string(each) for each in _ENCODINGS)
)
_ADDING_OK = b"\x40" + b"".join(encode_string(each) for each in _OK)
_TWO_ENTRIES_HEADERS = _STATUS_OK + b"\xbf\xbe"
_ALL_ENTRIES_HEADERS = _STATUS_OK + b"\xc0\xbf"
_ALL_ENTRIES_OK = b"\xbe"
_EMPTY_TABLE = b"\x20"
"""Tells the client's decoder that the table has no entries from now on."""


class Outgoing:
    """Sends on the streams of a connection. `out` has what is to be written next.

    `notify` is called when there is something to write. While `writable` is false, the transport has enough. `kept`
    counts bytes of messages that are incomplete, unread or unsent, `held` those of messages that handlers have.
    `counted_bytes` is what the owner has counted of both elsewhere.
    """

    def __init__(self, notify: Callable[[], object]) -> None:
        self.out: list[bytes | memoryview] = []
        self.streams: dict[int, Stream] = {}
        """The open streams by their id."""
        self.kept = self.held = self.counted_bytes = 0
        self.unsent_bytes = self.sent_bytes = 0
        self.writable = True
        self.send_window = self.initial_window = DEFAULT_WINDOW
        self.over = False
        """True if the connection has ended: what is in `out` is the last."""
        self.answered = False
        """True if headers or data have been sent since this was set to false."""
        self.answers = 0
        """Answers since the owner last set this to 0."""
        self._notify = notify
        self._notified = False
        self._frame_bytes = LEAST_FRAME_BYTES
        self._ready: dict[Stream, None] = {}
        self._reset_ids: dict[int, None] = {}
        # An entry of the client's table has the same index only while nothing else is added, so these are all.
        self._headers_block, self._ok_block = _ADDING_HEADERS, b""
        self._table_change = b""

    @property
    def frame_bytes(self) -> int:
        """The largest frame that the client takes."""
        return self._frame_bytes

    @property
    def uncounted_bytes(self) -> int:
        """Bytes that are kept or held and have not been counted elsewhere; below 0 if there are fewer than counted."""
        return self.kept + self.held - self.counted_bytes

    def take(self) -> list[bytes | memoryview]:
        """The bytes that are to be written now."""
        taken, self.out = self.out, []
        self._notified = False
        return taken

    def _put(self, part: bytes) -> None:
        if not self.over:
            self.out.append(part)
            if not self._notified:
                self._notified = True
                self._notify()

    # -- header blocks

    def _headers(self) -> bytes:
        """The block of the headers of an answer."""
        block = self._headers_block
        if block is _ALL_ENTRIES_HEADERS or block is _TWO_ENTRIES_HEADERS:
            return block
        if block is _ADDING_HEADERS:
            self._headers_block, self._ok_block = _TWO_ENTRIES_HEADERS, _ADDING_OK
            return block
        return self._with_table_change(block)

    def _ok(self) -> bytes:
        """The block of the status OK, which follows the headers of an answer."""
        block = self._ok_block
        if block is _ALL_ENTRIES_OK:
            return block
        if block is _ADDING_OK:
            self._headers_block, self._ok_block = _ALL_ENTRIES_HEADERS, _ALL_ENTRIES_OK
            return block
        return self._with_table_change(_PLAIN_OK)

    def _with_table_change(self, block: bytes) -> bytes:
        change, self._table_change = self._table_change, b""
        return change + block

    def _set_table_size(self, size: int) -> None:
        """Follow a change of the client's table: it gets no entries any longer, if it may be too small for them."""
        if size < DEFAULT_TABLE_BYTES:
            self._headers_block, self._ok_block = _PLAIN_HEADERS, _PLAIN_OK
            self._table_change = _EMPTY_TABLE

    # -- answers

    def answer(self, stream: Stream, message: bytes, metadata: bytes) -> None:
        """Send a whole answer: headers, one message and the status OK with the header block `metadata`."""
        size = len(message) + PREFIX_BYTES
        if (
            size > self.send_window
            or size > stream.send_window
            or size > self._frame_bytes
            or size > SMALL_BYTES
            or len(metadata) > SMALL_METADATA_BYTES
            or not self.writable
            or stream.has_headers
        ):
            self.send_message(stream, message)
            self.end(stream, None, metadata)
            return
        self.send_window -= size
        stream_id = stream.id
        headers = self._headers()
        trailers = self._ok() + metadata
        self._put(
            b"".join(
                (
                    FRAME_HEAD.pack(0, len(headers), HEADERS, END_HEADERS, stream_id),
                    headers,
                    FRAME_HEAD.pack(size >> 16, size & 0xFFFF, DATA, 0, stream_id),
                    b"\0",
                    (size - PREFIX_BYTES).to_bytes(4, "big"),
                    message,
                    FRAME_HEAD.pack(0, len(trailers), HEADERS, END_HEADERS | END_STREAM, stream_id),
                    trailers,
                )
            )
        )
        self._finished(stream)

    def send_message(self, stream: Stream, message: bytes) -> bool:
        """Send a message; returns false if a part of it has to wait. Then `on_sent` of the stream is called later."""
        if not stream.has_headers:
            stream.has_headers = True
            self._put(frame(HEADERS, END_HEADERS, stream.id, self._headers()))
        prefix = b"\0" + len(message).to_bytes(4, "big")
        parts = (prefix + message,) if len(message) < SMALL_BYTES else (prefix, message)
        if stream.unsent is None:
            stream.unsent = deque()
        stream.unsent.extend(map(memoryview, parts))
        self._keep(stream, len(message) + PREFIX_BYTES)
        if stream.send_window > 0:
            self._ready[stream] = None
            self.pump()
        return not stream.unsent

    def end(self, stream: Stream, status: bytes | None, metadata: bytes) -> None:
        """Send a status after all messages. `status` is its header block; None is OK, and needs headers before it."""
        if stream.unsent:
            stream.trailers = status, metadata
            return
        self._send_end(stream, status, metadata)

    def _send_end(self, stream: Stream, status: bytes | None, metadata: bytes) -> None:
        if not stream.has_headers:
            if status is None:
                self._put(frame(HEADERS, END_HEADERS, stream.id, self._headers()))
            else:  # one block is all of the answer
                status = _PLAIN_HEADERS + status
        block = (self._ok() if status is None else self._with_table_change(status)) + metadata
        size = LEAST_FRAME_BYTES
        last = len(block) <= size
        self._put(frame(HEADERS, END_STREAM | (END_HEADERS if last else 0), stream.id, block[:size]))
        for begin in range(size, len(block), size):
            last = begin + size >= len(block)
            self._put(frame(CONTINUATION, END_HEADERS if last else 0, stream.id, block[begin : begin + size]))
        self._finished(stream)

    def send_block(self, stream: Stream, block: bytes) -> None:
        """Send an answer that is one header block, without the fields of gRPC."""
        self._put(frame(HEADERS, END_HEADERS | END_STREAM, stream.id, self._with_table_change(block)))
        self._finished(stream)

    def refuse(self, stream_id: int, code: ErrorCode) -> None:
        """Reset a stream. What the client still sends on it is ignored."""
        self._put(reset(stream_id, code))
        self._ignore(stream_id)

    def _finished(self, stream: Stream) -> None:
        self.answered = True
        self.answers += 1
        stream.ended = True
        self.streams.pop(stream.id, None)
        if not stream.remote_ended:
            self.refuse(stream.id, ErrorCode.NO_ERROR)

    def _ignore(self, stream_id: int) -> None:
        self._reset_ids[stream_id] = None
        if len(self._reset_ids) > RESETS_KEPT:
            del self._reset_ids[next(iter(self._reset_ids))]

    def leave(self, stream: Stream) -> None:
        """Reset a stream whose client takes nothing."""
        self.forget(stream)
        self.refuse(stream.id, ErrorCode.CANCEL)
        stream.cancel()

    def forget(self, stream: Stream) -> None:
        """Send nothing more on a stream."""
        stream.ended = True
        self.streams.pop(stream.id, None)
        self._ready.pop(stream, None)
        self._keep(stream, -stream.unsent_bytes)
        stream.unsent = None

    def _keep(self, stream: Stream, size: int) -> None:
        stream.unsent_bytes += size
        self.unsent_bytes += size
        self.kept += size

    # -- flow control

    def pump(self) -> None:
        """Send what waits, as far as the windows and the transport have room."""
        while self._ready and self.send_window > 0 and self.writable and not self.over:
            stream = next(iter(self._ready))
            del self._ready[stream]
            self._send_some(stream)

    def _send_some(self, stream: Stream) -> None:
        """Send for one turn; afterwards the stream is done, waits for its window, or is the last that is ready."""
        unsent = stream.unsent
        assert unsent is not None
        left = TURN_BYTES
        while unsent:
            size = min(self.send_window, stream.send_window, self._frame_bytes, left, stream.unsent_bytes)
            if size <= 0:
                break
            left -= size
            self.send_window -= size
            stream.send_window -= size
            stream.sent_bytes += size
            self.sent_bytes += size
            self._keep(stream, -size)
            self._put(FRAME_HEAD.pack(size >> 16, size & 0xFFFF, DATA, 0, stream.id))
            while size:
                part = unsent[0]
                if len(part) <= size:
                    unsent.popleft()
                else:
                    unsent[0] = part[size:]
                    part = part[:size]
                self.out.append(part)
                size -= len(part)
        self.answered = True
        if unsent:
            if stream.send_window > 0:
                self._ready[stream] = None
            return
        stream.unsent = None
        if stream.trailers is not None:
            self._send_end(stream, *stream.trailers)
        else:
            stream.on_sent()
