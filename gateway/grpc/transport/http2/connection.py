"""A connection of HTTP/2 as the server sees it, without I/O: bytes in, bytes out (RFC 9113, sections 3 to 6)."""

import math
import re
from bisect import bisect_left
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from sluice.gateway.grpc.transport.http2.outgoing import Outgoing
from sluice.gateway.grpc.transport.http2.streams import Stream
from sluice.gateway.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    GOAWAY,
    HAS_PRIORITY,
    HEAD_BYTES,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LEAST_FRAME_BYTES,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MAX_STREAM_ID,
    MAX_WINDOW,
    MOST_FRAME_BYTES,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionFault,
    ErrorCode,
    StreamFault,
    frame,
    go_away,
    settings_frame,
    window_update,
)
from sluice.gateway.http2.header_blocks import Fields, HeaderDecoder

FRAME_BYTES = 256 << 10
"""The largest frame of the client."""
CONNECTION_WINDOW = 4 << 20
STREAM_WINDOW = 1 << 20
TURN_FRAMES = 1000
"""The most frames that are taken at a time, so that a client with many small ones leaves the others their turns."""
TURN_HEADER_BYTES = 16
"""As many bytes of headers count as a frame, since Python decodes them."""
CREDIT_BYTES = 256 << 10
"""Windows grow again by this much or more at a time."""
SETTINGS_BYTES = 64 * SETTING.size
"""The largest SETTINGS frame."""
BLOCK_FRAMES = 64
"""The most frames of one header block."""
PING_STRIKES = 2
"""Pings that may come too early before the connection is closed."""
IDLE_FRAMES = 1000
"""Frames between two calls of `forgive` that ask for nothing: more of them end the connection."""
LARGE_HEADERS_FRAMES = 50
"""As many such frames count for headers that are too large, since it takes long to decode them."""
STREAMS_PER_FRAME = 32
"""The open streams whose windows change together for the price of one such frame."""
DIRECT_BYTES = 32 << 10
"""Frames of which less is to come are read with what follows: a read of their own would cost more than the copies."""
SMALL_DATA_BYTES = 1024
"""Smaller frames with data for a stream that the server has reset are such frames."""
RESETS_PER_STREAM = 4
"""Resets between two calls of `forgive`, beside those of as many answers, for each stream that may be open."""
SKIPPED_RANGES = 64
"""The latest ranges of stream ids that were left out, which are remembered."""

_PING_ID = b"sluice\0\0"

_HTTP_1 = re.compile(rb"(?!PRI )[A-Z]+ ")
"""The beginning of a request of HTTP/1."""
_TEXT = b"this port serves gRPC, over HTTP/2 only\n"
_HTTP_1_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
    % (len(_TEXT), _TEXT)
)

T = TypeVar("T")
_unpack_head = FRAME_HEAD.unpack_from


class ConnectionLimits(NamedTuple):
    """The bounds of one connection. `ping_s` are the seconds between two pings of the client."""

    streams: int = 1024
    header_bytes: int = 16 << 10
    header_fields: int = 100
    ping_s: float = 10


_DEFAULT_LIMITS = ConnectionLimits()


class Http2Connection(Outgoing, Generic[T]):
    """The state machine of a connection. `receive` takes bytes of the client; `out` has bytes for it.

    `interpret` gives the meaning of the fields of a request; what it raises as StreamFault ends the stream. `open`
    gets the connection, the id of a new stream, that meaning, and whether the request ends with its headers; it returns
    the stream. `clock` gives seconds.

    A fault of the client ends the stream or, with a GOAWAY frame, the connection: then `over` is true.
    """

    def __init__(
        self,
        interpret: Callable[[Fields], T],
        open: Callable[["Http2Connection[T]", int, T, bool], Stream],
        notify: Callable[[], object],
        clock: Callable[[], float],
        limits: ConnectionLimits = _DEFAULT_LIMITS,
    ) -> None:
        super().__init__(notify)
        self._open = open
        self._clock = clock
        self._limits = limits
        self._decoder = HeaderDecoder(limits.header_bytes, limits.header_fields, interpret)
        self._rest = b""
        self._has_preface = self._has_settings = False
        self._expects = True
        """True if not every type of frame may come next."""
        self.last_id = 0
        """The greatest id of a stream that the client has opened."""
        self._turns = 0
        self._frames_left = 0
        """The frames that may still be taken by this call of `receive`."""
        self._skipped: list[tuple[int, int]] = []
        self._receive_window = CONNECTION_WINDOW
        self._uncredited = 0
        # The frame of which only a part has come: DATA of a stream, or what is not looked at.
        self._part_left = self._part_padding = 0
        self._part_ends = False
        self._part_stream: Stream | None = None
        # The header block of which only a part has come.
        self._block_id = self._block_frames = 0
        self._block_ends = False
        self._block = b""
        self._idle_frames = self._resets = 0
        self._strikes = 0
        self._last_ping_s = -math.inf
        self._draining = self._drained = False
        self.fault: ConnectionFault | None = None
        """The fault of the client that has ended the connection."""
        self.awaits_ping = False
        """True if a ping of the server has not been answered."""
        self.is_behind = False
        """True if frames that have been received are to be taken by another call of `receive`."""
        self._greeted = False
        self.given_stream: Stream | None = None
        """The stream that somebody else goes on with, on this connection."""

    # -- for the owner

    def give(self, stream: Stream) -> None:
        """Take nothing more: what comes next is for the owner of this stream, the only one."""
        self.given_stream = stream
        stream.ended = True
        self._frames_left = 0

    def take_rest(self) -> bytes:
        """Return the bytes that have been read and not been taken."""
        rest, self._rest = self._rest, b""
        return rest

    @property
    def waits_for(self) -> tuple[str, int] | None:
        """The debt of the client: the preface and its settings, the rest of a header block, or that of a frame.

        It is another value when another frame is meant. None if the client owes nothing.
        """
        if not self._has_settings:
            return "settings", 0
        if self._block_id:
            return "block", self._block_id
        return ("frame", self._turns) if self._rest else None

    @property
    def is_done(self) -> bool:
        """True if nothing more is to be sent or received after what is in `out`."""
        return self.over or (self._drained and not self.streams)

    def forgive(self) -> None:
        """Called about once a second: the client may send as many frames again that ask for nothing."""
        self._idle_frames = self._resets = self.answers = 0

    def ping(self) -> None:
        """Ask whether the client is still there."""
        self.greet()
        self.awaits_ping = True
        self._put(frame(PING, 0, 0, _PING_ID))

    def drain(self) -> None:
        """Ask the client to open no more streams. Those that it has sent until it knows are still taken."""
        if not self._draining:
            self._draining = True
            self.greet()
            self._put(go_away(MAX_STREAM_ID, ErrorCode.NO_ERROR, "graceful_stop"))
            self.ping()

    def stop_opening(self) -> None:
        """Ignore streams that the client opens from now on; it knows which ones."""
        if not self._drained and not self.over:
            self._draining = self._drained = True
            self.greet()
            self._put(go_away(self.last_id, ErrorCode.NO_ERROR, "graceful_stop"))

    def end_with(self, code: ErrorCode, reason: str) -> None:
        """End the connection and cancel what is open."""
        if not self.over:
            self.greet()
            self._put(go_away(self.last_id, code, reason))
            self.lose()

    def lose(self) -> None:
        """The connection is lost: cancel what is open."""
        self.over, self.is_behind = True, False
        for stream in list(self.streams.values()):
            self.forget(stream)
            stream.cancel()

    def greet(self) -> None:
        """Send the settings, which come before all else.

        They wait for the client's preface, so that a client of HTTP/1 can read its answer. One that waits for them
        before it says anything gets them at a sweep.
        """
        if not self._greeted:
            self._greeted = True
            settings = {
                MAX_CONCURRENT_STREAMS: self._limits.streams,
                INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                MAX_FRAME_SIZE: FRAME_BYTES,
                MAX_HEADER_LIST_SIZE: self._limits.header_bytes,
            }
            self._put(settings_frame(settings) + window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW))

    # -- receiving

    def receive(self, data: bytes) -> None:
        """Take bytes of the client, or what is left of earlier ones; no more than TURN_FRAMES frames at a time."""
        if self.over:
            return
        try:
            self._receive(self._rest + data if self._rest else data)
        except ConnectionFault as fault:
            self.fault = fault
            self.end_with(fault.code, fault.reason)

    def direct_memory(self) -> memoryview | None:
        """Memory for the rest of a large DATA frame, of which a part has come; None if it is to be received as bytes.

        `receive_direct` follows once bytes are in it.
        """
        left, stream = self._part_left, self._part_stream
        if left < DIRECT_BYTES or stream is None or stream.ended or self.over:
            return None
        memory = stream.memory()
        return None if memory is None else memory[:left]

    def receive_direct(self, size: int) -> None:
        """Take bytes of the client, which are in the memory of `direct_memory`."""
        stream = self._part_stream
        assert stream is not None, "it has given its memory"
        self._part_left -= size
        if not self._part_left:
            self._part_stream = None
            self._turns += 1
        try:
            self._give(stream, b"", self._part_ends and not self._part_left, size)
        except ConnectionFault as fault:
            self.fault = fault
            self.end_with(fault.code, fault.reason)

    def _receive(self, data: bytes) -> None:
        end = len(data)
        self._rest, self.is_behind = b"", False
        position = self._resume(data)
        self._frames_left = TURN_FRAMES
        while end - position >= HEAD_BYTES and self._frames_left > 0 and not self.over:
            self._frames_left -= 1
            high, low, kind, flags, stream_id = _unpack_head(data, position)
            begin = position + HEAD_BYTES
            stop = begin + (high << 16 | low)
            stream_id &= MAX_STREAM_ID
            if self._expects:
                self._check_order(kind)
            if high or stop > end:
                self._check_length(kind, stop - begin)
                if stop > end:
                    begin = self._begin_part(kind, flags, stream_id, stop - begin, data[begin : begin + 8], begin)
                    if not begin:
                        break
                    position = self._continue_part(data, begin)
                    continue
            position = stop
            if kind == DATA:
                self._take_data(flags, stream_id, data[begin:stop])
            elif kind == HEADERS:
                self._take_headers(flags, stream_id, data[begin:stop])
            elif kind == WINDOW_UPDATE:
                self._take_window_update(stream_id, data[begin:stop])
            else:
                self._take_other(kind, flags, stream_id, data[begin:stop])
        if position:
            self._turns += 1
        if position < end:
            self._rest = data[position:]
        self.is_behind = self._frames_left <= 0 and end - position >= HEAD_BYTES and not self.over

    def _resume(self, data: bytes) -> int:
        """Take the preface or the rest of a frame that has come in parts; returns the position after it."""
        if self._part_left or self._part_padding:
            return self._continue_part(data, 0)
        if self._has_preface:
            return 0
        if not PREFACE.startswith(data[: len(PREFACE)]):
            if not self._greeted and _HTTP_1.match(data):
                self._put(_HTTP_1_ANSWER)
                self.lose()
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "expected the preface of HTTP/2")
        if len(data) < len(PREFACE):
            self._rest = data
            return len(data)
        self._has_preface = True
        self.greet()
        return len(PREFACE)

    def _check_order(self, kind: int) -> None:
        """Raise ConnectionFault for a frame before the settings, or within a header block."""
        if not self._has_settings and kind != SETTINGS:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"expected a SETTINGS frame first, got type {kind}")
        if self._block_id and kind != CONTINUATION:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"expected a CONTINUATION frame of stream {self._block_id}, got type {kind}"
            )

    def _check_length(self, kind: int, length: int) -> None:
        """Raise ConnectionFault for a frame that is too large."""
        if length > FRAME_BYTES:
            raise ConnectionFault(
                ErrorCode.FRAME_SIZE_ERROR, f"expected a frame of at most {FRAME_BYTES} bytes, got {length}"
            )
        if kind in (HEADERS, CONTINUATION):
            self._check_block(length)
        elif kind not in (DATA, GOAWAY) and kind < CONTINUATION and length > SETTINGS_BYTES:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of type {kind} cannot have {length} bytes")

    # -- frames of which a part has come

    def _begin_part(self, kind: int, flags: int, stream_id: int, length: int, payload: bytes, begin: int) -> int:
        """Begin to take a frame of which a part is missing, and whose payload begins like this.

        Returns the position after what has been taken, or 0 if the frame is to be complete first.
        """
        if kind == DATA:
            return self._begin_data(flags, stream_id, length, payload, begin)
        if kind == GOAWAY and len(payload) == 8:
            self._take_go_away(stream_id, payload)
        elif kind > CONTINUATION:
            self._count_idle_frame()
        else:
            return 0
        self._part_stream, self._part_left = None, length
        return begin

    def _begin_data(self, flags: int, stream_id: int, length: int, payload: bytes, begin: int) -> int:
        if flags & PADDED:
            if not payload:
                return 0
            self._part_padding = payload[0]
            begin += 1
        stream = self._count_data(stream_id, length, flags)
        self._part_left = length - self._part_padding - (flags & PADDED and 1)
        if self._part_left < 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the padding of a DATA frame is longer than the frame")
        self._part_stream, self._part_ends = stream, bool(flags & END_STREAM)
        if not self._part_left and stream is not None:
            self._give(stream, b"", self._part_ends)
        return begin

    def _continue_part(self, data: bytes, position: int) -> int:
        """Take what has come of a frame of which a part is missing; returns the position after it."""
        left = self._part_left
        if left:
            stop = min(position + left, len(data))
            self._part_left = left - (stop - position)
            stream = self._part_stream
            if stream is not None and not stream.ended and position < stop:
                self._give(stream, data[position:stop], self._part_ends and not self._part_left)
            position = stop
        if not self._part_left:
            self._part_stream = None
            skipped = min(self._part_padding, len(data) - position)
            self._part_padding -= skipped
            position += skipped
        return position

    def _take_other(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Take a complete frame of the less frequent types."""
        if kind == CONTINUATION:
            self._take_continuation(flags, stream_id, payload)
        elif kind == SETTINGS:
            self._take_settings(flags, stream_id, payload)
        elif kind == PING:
            self._take_ping(flags, stream_id, payload)
        elif kind == RST_STREAM:
            self._take_reset(stream_id, payload)
        elif kind == PRIORITY:
            self._take_priority(stream_id, payload)
        elif kind == GOAWAY:
            self._take_go_away(stream_id, payload)
        elif kind == PUSH_PROMISE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "expected no PUSH_PROMISE frame of a client")
        else:
            self._count_idle_frame()

    def _count_idle_frame(self) -> None:
        self._idle_frames += 1
        if self._idle_frames > IDLE_FRAMES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too_many_frames")

    # -- data

    def _count_data(self, stream_id: int, length: int, flags: int) -> Stream | None:
        """Count a DATA frame in the windows; returns its stream, or None if the data is to be dropped."""
        self._receive_window -= length
        if self._receive_window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the client exceeded the window of the connection")
        self._uncredited += length
        if self._uncredited >= CREDIT_BYTES:
            self._receive_window += self._uncredited
            self._put(window_update(0, self._uncredited))
            self._uncredited = 0
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_closed(stream_id, "DATA")
            if length < SMALL_DATA_BYTES:
                self._count_idle_frame()
            return None
        if not length and not flags & END_STREAM:
            self._count_idle_frame()
        if stream.remote_ended:
            self._fail_stream(
                stream, StreamFault(ErrorCode.STREAM_CLOSED, "expected no data after the end of a stream")
            )
            return None
        stream.receive_window -= length
        if stream.receive_window < 0:
            self._fail_stream(stream, StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "the client exceeded a window"))
            return None
        stream.uncredited += length
        return stream

    def _take_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        stream = self._count_data(stream_id, len(payload), flags)
        if flags & PADDED:
            if not payload or payload[0] >= len(payload):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the padding of a DATA frame is longer than the frame")
            payload = payload[1 : len(payload) - payload[0]]
        if stream is not None:
            self._give(stream, payload, bool(flags & END_STREAM))

    def _give(self, stream: Stream, chunk: bytes, ends: bool, direct: int = 0) -> None:
        """Pass data to its stream, which may have `direct` bytes already."""
        try:
            if stream.declared_bytes >= 0:
                stream.declared_bytes -= len(chunk) + direct
                if stream.declared_bytes < 0 or (ends and stream.declared_bytes):
                    raise StreamFault(ErrorCode.PROTOCOL_ERROR, "expected as much data as content-length says")
            if ends:
                stream.remote_ended = True
            if direct:
                stream.receive_direct(direct, ends)
            else:
                stream.receive(chunk, ends)
            if not stream.remote_ended and stream.uncredited >= CREDIT_BYTES:
                self.credit(stream)
        except StreamFault as fault:
            self._fail_stream(stream, fault)

    def credit(self, stream: Stream) -> None:
        """Add to the window of a stream what it has received, if it wants more."""
        if stream.uncredited and not stream.remote_ended and not stream.ended and stream.wants_data():
            stream.receive_window += stream.uncredited
            self._put(window_update(stream.id, stream.uncredited))
            stream.uncredited = 0

    # -- headers

    def _take_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"expected a stream with an odd id, got {stream_id}")
        if flags & (PADDED | HAS_PRIORITY):
            payload = _unwrapped(flags, payload)
        self._check_block(len(payload))
        ends = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._take_block(stream_id, payload, ends)
        else:
            self._block_id, self._block, self._block_ends, self._block_frames = stream_id, payload, ends, 1
            self._expects = True

    def _take_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id != self._block_id or not stream_id:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"expected no CONTINUATION frame of stream {stream_id} without HEADERS"
            )
        self._block_frames += 1
        if self._block_frames > BLOCK_FRAMES:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, f"expected a header block of at most {BLOCK_FRAMES} frames"
            )
        self._check_block(len(payload))
        self._block += payload
        if flags & END_HEADERS:
            self._block_id, self._expects = 0, False
            block, self._block = self._block, b""
            self._take_block(stream_id, block, self._block_ends)

    def _check_block(self, more: int) -> None:
        if len(self._block) + more > self._limits.header_bytes:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, f"expected a header block of at most {self._limits.header_bytes} bytes"
            )

    def _take_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        """Take a complete header block: it opens a stream, or ends one as trailers."""
        self._frames_left -= len(block) // TURN_HEADER_BYTES
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._take_trailers(stream, block, ends)
            return
        if stream_id <= self.last_id:
            self._check_closed(stream_id, "HEADERS")
            self._count_idle_frame()
            self._drop_block(block)  # of a stream that the server has reset
            return
        if self.last_id + 2 < stream_id:
            self._skip_ids(self.last_id + 2 if self.last_id else 1, stream_id)
        if self._drained:
            self._drop_block(block)
            self._count_idle_frame()
            return
        self.last_id = stream_id
        try:
            meaning = self._decoder.request(block)
            if len(self.streams) >= self._limits.streams:
                raise StreamFault(
                    ErrorCode.REFUSED_STREAM, f"expected at most {self._limits.streams} open streams on a connection"
                )
        except StreamFault as fault:
            self._count_reset()
            self._count_large_headers(fault)
            self.refuse(stream_id, fault.code)
            return
        stream = self._open(self, stream_id, meaning, ends)
        if stream.ended:
            return
        self.streams[stream_id] = stream
        if ends:
            self._give(stream, b"", True)

    def _take_trailers(self, stream: Stream, block: bytes, ends: bool) -> None:
        if stream.remote_ended:
            self._drop_block(block)
            self._fail_stream(stream, StreamFault(ErrorCode.STREAM_CLOSED, "got headers after the end of a stream"))
            return
        try:
            self._decoder.trailers(block)
            if not ends:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "expected trailers to end their stream")
        except StreamFault as fault:
            self._count_large_headers(fault)
            self._fail_stream(stream, fault)
            return
        self._give(stream, b"", True)

    def _drop_block(self, block: bytes) -> None:
        """Decode a block for the sake of the dynamic table."""
        try:
            self._decoder.trailers(block)
        except StreamFault as fault:
            self._count_large_headers(fault)

    def _count_large_headers(self, fault: StreamFault) -> None:
        if fault.code is ErrorCode.ENHANCE_YOUR_CALM:
            self._idle_frames += LARGE_HEADERS_FRAMES
            self._count_idle_frame()

    def _skip_ids(self, first: int, stop: int) -> None:
        """Note ids that were left out, which are those of no stream any longer.

        Clients leave out the ids of calls that they cancel before they have sent anything.
        """
        if len(self._skipped) >= SKIPPED_RANGES:
            del self._skipped[0]
        self._skipped.append((first, stop))

    def _check_closed(self, stream_id: int, kind: str) -> None:
        """Raise ConnectionFault for a frame of a stream that is not open, unless the server has reset it."""
        if stream_id in self._reset_ids or (self._drained and stream_id > self.last_id):
            return
        if stream_id > self.last_id or not stream_id & 1:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"expected an open stream for a {kind} frame, got {stream_id}"
            )
        at = bisect_left(self._skipped, (stream_id + 1, 0)) - 1
        if at >= 0 and stream_id < self._skipped[at][1]:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"expected a greater id than {self.last_id}, got {stream_id}"
            )
        raise ConnectionFault(ErrorCode.STREAM_CLOSED, f"got a {kind} frame of stream {stream_id}, which is closed")

    def _fail_stream(self, stream: Stream, fault: StreamFault) -> None:
        """Reset a stream for a fault of the client."""
        self.forget(stream)
        self._count_reset()
        self.refuse(stream.id, fault.code)
        stream.cancel()

    def _count_reset(self) -> None:
        self._resets += 1
        if self._resets > RESETS_PER_STREAM * self._limits.streams + self.answers:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too_many_resets")

    # -- other frames

    def _take_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(
                ErrorCode.FRAME_SIZE_ERROR, f"expected 4 bytes in a WINDOW_UPDATE frame, got {len(payload)}"
            )
        size = int.from_bytes(payload, "big") & MAX_WINDOW
        if not stream_id:
            if not size:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "expected a WINDOW_UPDATE of more than 0 bytes")
            self.send_window += size
            if self.send_window > MAX_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"a window exceeds {MAX_WINDOW} bytes")
            self.pump()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_not_idle(stream_id, "WINDOW_UPDATE")
            return
        stream.send_window += size
        if not size or stream.send_window > MAX_WINDOW:
            code = ErrorCode.FLOW_CONTROL_ERROR if size else ErrorCode.PROTOCOL_ERROR
            self._fail_stream(stream, StreamFault(code, f"expected a window of 1 to {MAX_WINDOW} bytes"))
            return
        self._window_grew(stream)
        self.pump()

    def _window_grew(self, stream: Stream) -> None:
        if stream.unsent and stream.send_window > 0:
            self._ready[stream] = None

    def _check_not_idle(self, stream_id: int, kind: str) -> None:
        if (stream_id > self.last_id and not self._drained) or not stream_id & 1:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"expected an open stream for a {kind} frame, got {stream_id}"
            )

    def _take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"expected SETTINGS on stream 0, got {stream_id}")
        if len(payload) % SETTING.size or (flags & ACK and payload):
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a SETTINGS frame cannot have {len(payload)} bytes")
        if len(payload) > SETTINGS_BYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too_many_settings")
        self._count_idle_frame()
        if flags & ACK:
            if not self._has_settings:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "expected SETTINGS first, got their acknowledgement")
            return
        self._has_settings, self._expects = True, False
        for setting, value in SETTING.iter_unpack(payload):
            self._set(setting, value)
        self._put(frame(SETTINGS, ACK, 0))
        self.pump()

    def _set(self, setting: int, value: int) -> None:
        """Follow a setting of the client."""
        if setting == INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"a window exceeds {MAX_WINDOW} bytes")
            self._idle_frames += len(self.streams) // STREAMS_PER_FRAME
            self._count_idle_frame()
            change, self.initial_window = value - self.initial_window, value
            for stream in list(self.streams.values()):
                stream.send_window += change
                if stream.send_window > MAX_WINDOW:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"a window exceeds {MAX_WINDOW} bytes")
                self._window_grew(stream)
        elif setting == MAX_FRAME_SIZE:
            if not LEAST_FRAME_BYTES <= value <= MOST_FRAME_BYTES:
                raise ConnectionFault(
                    ErrorCode.PROTOCOL_ERROR,
                    f"expected SETTINGS_MAX_FRAME_SIZE from {LEAST_FRAME_BYTES} to {MOST_FRAME_BYTES}, got {value}",
                )
            self._frame_bytes = value
        elif setting == HEADER_TABLE_SIZE:
            self._set_table_size(value)
        elif setting == ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"expected SETTINGS_ENABLE_PUSH 0 or 1, got {value}")

    def _take_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"expected a PING frame on stream 0, got {stream_id}")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"expected 8 bytes in a PING frame, got {len(payload)}")
        if flags & ACK:
            self._count_idle_frame()
            if payload == _PING_ID:
                self.awaits_ping = False
                if self._draining:
                    self.stop_opening()
            return
        now_s = self._clock()
        if self.answered:
            self.answered = False
            self._strikes = 0
        elif now_s - self._last_ping_s < self._limits.ping_s:
            self._strikes += 1
            if self._strikes > PING_STRIKES:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
        self._last_ping_s = now_s
        self._put(frame(PING, ACK, 0, payload))

    def _take_reset(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(
                ErrorCode.FRAME_SIZE_ERROR, f"expected 4 bytes in a RST_STREAM frame, got {len(payload)}"
            )
        self._check_not_idle(stream_id, "RST_STREAM")
        stream = self.streams.get(stream_id)
        if stream is None:
            self._count_idle_frame()
            return
        self._count_reset()
        stream.remote_ended = True
        self.forget(stream)
        stream.cancel()

    def _take_priority(self, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "expected a stream for a PRIORITY frame, got 0")
        self._count_idle_frame()
        if len(payload) != 5:
            stream = self.streams.get(stream_id)
            if stream is None:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR, f"expected 5 bytes in a PRIORITY frame, got {len(payload)}"
                )
            self._fail_stream(stream, StreamFault(ErrorCode.FRAME_SIZE_ERROR, "expected 5 bytes in a PRIORITY frame"))

    def _take_go_away(self, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"expected a GOAWAY frame on stream 0, got {stream_id}")
        if len(payload) < 8:
            raise ConnectionFault(
                ErrorCode.FRAME_SIZE_ERROR, f"expected at least 8 bytes in a GOAWAY frame, got {len(payload)}"
            )
        self._count_idle_frame()


def _unwrapped(flags: int, payload: bytes) -> bytes:
    """The block in a HEADERS frame with padding or a priority. Raises ConnectionFault."""
    begin, stop = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a HEADERS frame is too short for its padding")
        begin, stop = 1, stop - payload[0]
    if flags & HAS_PRIORITY:
        begin += 5
    if begin > stop:
        code = ErrorCode.PROTOCOL_ERROR if flags & PADDED else ErrorCode.FRAME_SIZE_ERROR
        raise ConnectionFault(code, "a HEADERS frame is too short for its padding and priority")
    return payload[begin:stop]
