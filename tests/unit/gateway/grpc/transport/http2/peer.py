"""A client of the state machine of a connection, which talks to it in bytes."""

from typing import NamedTuple

import hpack

from sluice.gateway.grpc.transport.http2.connection import STREAM_WINDOW, ConnectionLimits, Http2Connection
from sluice.gateway.grpc.transport.http2.streams import Stream
from sluice.gateway.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    ErrorCode,
    frame,
    settings_frame,
)
from sluice.gateway.http2.header_blocks import Fields

LIMITS = ConnectionLimits()
REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/s/M"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


class Frame(NamedTuple):
    """A frame that the server has sent."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


def frames(data: bytes) -> list[Frame]:
    """The frames in bytes, which end with a whole one."""
    found = []
    while data:
        high, low, kind, flags, stream_id = FRAME_HEAD.unpack_from(data)
        size = high << 16 | low
        assert len(data) >= 9 + size
        found.append(Frame(kind, flags, stream_id, data[9 : 9 + size]))
        data = data[9 + size :]
    return found


class RecordedStream(Stream):
    """A stream that keeps what comes on it."""

    __slots__ = ("cancelled", "data", "fields", "has_ended", "room", "sent", "wants")

    def __init__(self, stream_id: int, send_window: int, fields: Fields) -> None:
        super().__init__(stream_id, send_window, STREAM_WINDOW, False)
        self.data = b""
        self.cancelled = False
        self.sent = 0
        self.wants = True
        self.room: memoryview | None = None
        """Memory for data that comes next."""
        self.has_ended = False
        self.fields = fields
        lengths = [int(value) for name, value in fields if name == b"content-length"]
        self.declared_bytes = lengths[0] if lengths else -1

    def receive(self, data: bytes, ended: bool) -> None:
        self.data += data
        self.has_ended = ended

    def memory(self) -> memoryview | None:
        return self.room

    def receive_direct(self, size: int, ended: bool) -> None:
        assert self.room is not None
        self.data += self.room[:size]
        self.room = self.room[size:]
        self.has_ended = ended

    def cancel(self) -> None:
        self.cancelled = True

    def wants_data(self) -> bool:
        return self.wants

    def on_sent(self) -> None:
        self.sent += 1


class Peer:
    """A client whose connection has no I/O. `now_s` is the time of the server's clock."""

    def __init__(
        self,
        limits: ConnectionLimits = LIMITS,
        greets: bool = True,
        settings: dict[int, int] | None = None,
    ) -> None:
        self.now_s = 100.0
        self.opened: dict[int, RecordedStream] = {}
        self.notified = 0
        self.connection: Http2Connection[Fields] = Http2Connection(
            list, self._open, self._notify, lambda: self.now_s, limits
        )
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.greeting: list[Frame] = []
        """The frames that the server has sent before its answer to the settings of the client."""
        assert self.taken() == []
        if greets:
            *self.greeting, answer = self.send(PREFACE + settings_frame(settings or {}))
            assert answer == Frame(SETTINGS, ACK, 0, b"")

    def _open(self, connection: Http2Connection[Fields], stream_id: int, fields: Fields, ended: bool) -> RecordedStream:
        stream = self.opened[stream_id] = RecordedStream(stream_id, connection.initial_window, fields)
        return stream

    def _notify(self) -> None:
        self.notified += 1

    def taken(self) -> list[Frame]:
        """The frames that the server has to send."""
        return frames(b"".join(self.connection.take()))

    def send(self, *parts: bytes) -> list[Frame]:
        """Send bytes; returns the answer."""
        self.connection.receive(b"".join(parts))
        while self.connection.is_behind:
            self.connection.receive(b"")
        return self.taken()

    def block(self, fields: list[tuple[str, str]] | None = None) -> bytes:
        """A header block; that of a request by default."""
        return self.encoder.encode(REQUEST if fields is None else fields)

    def headers(
        self, stream_id: int, fields: list[tuple[str, str]] | None = None, flags: int = END_HEADERS, more: int = 0
    ) -> bytes:
        """A HEADERS frame."""
        return frame(HEADERS, flags | more, stream_id, self.block(fields))

    def request(self, stream_id: int) -> list[Frame]:
        """Open a stream and end the client's side."""
        return self.send(self.headers(stream_id, more=END_STREAM))

    def fields(self, sent: Frame) -> list[tuple[str, str]]:
        """The fields in a HEADERS frame of the server."""
        return [(str(name), str(value)) for name, value in self.decoder.decode(sent.payload)]


def connection_error(answer: list[Frame]) -> ErrorCode:
    """The code of the GOAWAY frame that ends an answer."""
    assert answer, "nothing was sent"
    last = answer[-1]
    assert last.kind == GOAWAY, answer
    return ErrorCode(int.from_bytes(last.payload[4:8], "big"))


def stream_error(answer: list[Frame], stream_id: int = 1) -> ErrorCode:
    """The code of the only RST_STREAM frame in an answer."""
    codes = [each.payload for each in answer if (each.kind, each.stream_id) == (RST_STREAM, stream_id)]
    assert len(codes) == 1, answer
    return ErrorCode(int.from_bytes(codes[0], "big"))
