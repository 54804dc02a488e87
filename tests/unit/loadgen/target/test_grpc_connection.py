"""A connection of gRPC against bytes: what servers may send by RFC 9113, and what they may not."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import hpack
import pytest

from sluice.loadgen.target import http2_frames as http2
from sluice.loadgen.target.grpc_connection import GrpcClientConnection
from sluice.loadgen.target.http2_frames import Fields

OK_HEADERS = hpack.Encoder().encode([(":status", "200"), ("content-type", "application/grpc")])
ANSWER = b"\0\0\0\0\2ok"


def block(*fields: tuple[str, str]) -> bytes:
    """A header block without the dynamic table."""
    return bytes(hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(*field) for field in fields]))


def answer(stream: int, status: str = "0") -> bytes:
    return (
        http2.frame(http2.HEADERS, http2.END_HEADERS, stream, block((":status", "200")))
        + http2.frame(http2.DATA, 0, stream, ANSWER)
        + http2.frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, stream, block(("grpc-status", status)))
    )


def decoded(decoder: hpack.Decoder, content: bytes) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in decoder.decode(content, raw=True)]


class PlayedTransport:
    """Keeps what is written to it."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_aborted = self.is_closed = False

    def get_extra_info(self, name: str) -> object:
        return "of TLS"  # whose bytes go through the transport

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_closed = True

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """The kind, flags, stream and payload of all frames since the last call."""
        found = []
        data = bytes(self.written).removeprefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.written.clear()
        while data:
            high, low, kind, flags, stream = http2.HEAD.unpack_from(data)
            end = http2.HEAD.size + (high << 8 | low)
            found.append((kind, flags, stream, data[http2.HEAD.size : end]))
            data = data[end:]
        return found


class PlayedOwner:
    """Keeps how calls end."""

    def __init__(self) -> None:
        self.ends: list[tuple[object, ...]] = []
        self.freed_times = self.withdrawn_times = 0

    def answered(self, query: int, fields: Fields, message: bytes) -> None:
        self.ends.append((query, fields.grpc_status, message))

    def failed(self, query: int, reason: str) -> None:
        self.ends.append((query, reason))

    def refused(self, query: int, request: int, reason: str) -> None:
        self.ends.append((query, "refused", request))

    def freed(self, connection: GrpcClientConnection) -> None:
        self.freed_times += 1

    def withdraw(self, connection: GrpcClientConnection) -> None:
        self.withdrawn_times += 1

    def lost(self, connection: GrpcClientConnection, queries: Sequence[int], reason: str) -> None:
        self.ends.append((*queries, "lost", reason))


Played = tuple[GrpcClientConnection, PlayedTransport, PlayedOwner]


def play(
    then: Callable[[GrpcClientConnection, PlayedTransport, PlayedOwner], None], *settings: tuple[int, int]
) -> None:
    """Connect with a server's settings, and go on."""

    async def run() -> None:
        owner, transport = PlayedOwner(), PlayedTransport()
        connection = GrpcClientConnection(owner, [(":path", "/m"), ("key", "value")], keep_messages=True)
        connection.connection_made(cast(asyncio.Transport, transport))
        assert not connection.ready.done()
        connection.data_received(http2.settings(settings))
        assert connection.ready.done()
        kinds = [kind for kind, _, _, _ in transport.frames()]
        assert kinds == [http2.SETTINGS, http2.WINDOW_UPDATE, http2.SETTINGS]
        then(connection, transport, owner)

    asyncio.run(run())


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_answers_in_pieces_of_any_size_end_their_calls(size: int) -> None:
    def then(connection: GrpcClientConnection, transport: PlayedTransport, owner: PlayedOwner) -> None:
        for query in (7, 8):
            assert connection.send(query, 0, b"request", explain=False)
        content = answer(3, "8") + answer(1)
        for start in range(0, len(content), size):
            connection.data_received(content[start : start + size])
        assert owner.ends == [(8, 8, ANSWER), (7, 0, ANSWER)]

    play(then)


def test_the_headers_of_later_calls_refer_to_those_of_the_first() -> None:
    def then(connection: GrpcClientConnection, transport: PlayedTransport, owner: PlayedOwner) -> None:
        decoder = hpack.Decoder()
        sizes = []
        for query, explain in enumerate((True, False, True, False)):
            connection.send(query, 0, b"request", explain)
            (_, flags, stream, headers), data = transport.frames()
            assert (flags, stream) == (http2.END_HEADERS, 2 * query + 1)
            assert data == (http2.DATA, http2.END_STREAM, stream, b"request")
            expected = [(":path", "/m"), ("key", "value")] + [("x-sluice-explain", "1")] * explain
            assert decoded(decoder, headers) == expected
            sizes.append(len(headers))
        assert sizes[3] == 2
        # The server makes its table smaller: everything is said again.
        connection.data_received(http2.settings(((http2.TABLE_SIZE, 0),)) * 2)
        transport.frames()
        for query in (4, 5):
            connection.send(query, 0, b"request", explain=False)
            assert decoded(decoder, transport.frames()[0][3]) == [
                (":path", "/m"),
                ("key", "value"),
            ]

    play(then)


def test_a_message_waits_for_room_in_the_windows() -> None:
    def then(connection: GrpcClientConnection, transport: PlayedTransport, owner: PlayedOwner) -> None:
        connection.send(1, 0, b"0123456789", explain=False)
        assert transport.frames()[1:] == [(http2.DATA, 0, 1, b"0123")]
        connection.data_received(http2.window_update(1, 3))
        assert transport.frames() == [(http2.DATA, 0, 1, b"456")]
        connection.data_received(http2.settings(((http2.STREAM_WINDOW, 100),)))
        assert transport.frames() == [
            (http2.SETTINGS, http2.ACK, 0, b""),
            (http2.DATA, http2.END_STREAM, 1, b"789"),
        ]

    play(then, (http2.STREAM_WINDOW, 4))


def test_an_answer_before_the_end_of_the_request_stops_it() -> None:
    def then(connection: GrpcClientConnection, transport: PlayedTransport, owner: PlayedOwner) -> None:
        connection.send(1, 0, b"0123456789", explain=False)
        transport.frames()
        connection.data_received(answer(1, "8"))
        assert owner.ends == [(1, 8, ANSWER)]
        assert transport.frames() == [(http2.RST_STREAM, 0, 1, b"\0\0\0\x08")]
        connection.data_received(http2.window_update(1, 100))
        assert transport.frames() == []

    play(then, (http2.STREAM_WINDOW, 4))


def test_a_full_connection_says_when_it_has_room_again() -> None:
    def then(connection: GrpcClientConnection, transport: PlayedTransport, owner: PlayedOwner) -> None:
        assert connection.send(1, 0, b"", explain=False)
        assert not connection.send(2, 0, b"", explain=False)
        assert owner.freed_times == 0
        connection.data_received(answer(3))
        assert owner.freed_times == 1
        assert not connection.send(3, 0, b"", explain=False)
        connection.cancel(1)
        assert transport.frames()[-1] == (http2.RST_STREAM, 0, 1, b"\0\0\0\x08")
        assert owner.freed_times == 2
        connection.data_received(answer(1))  # it was on its way
        assert [query for query, *_ in owner.ends] == [2]

    play(then, (http2.MAX_STREAMS, 2))


def test_calls_that_a_server_has_not_begun_with_may_be_repeated() -> None:
    def then(connection: GrpcClientConnection, transport: PlayedTransport, owner: PlayedOwner) -> None:
        for query in range(3):
            connection.send(query, 10 + query, b"", explain=False)
        connection.data_received(http2.frame(http2.RST_STREAM, 0, 1, b"\0\0\0\x07"))
        goaway = (3).to_bytes(4, "big") + bytes(4) + b"bye"
        connection.data_received(http2.frame(http2.GOAWAY, 0, 0, goaway))
        assert owner.ends == [(0, "refused", 10), (2, "refused", 12)]
        assert owner.withdrawn_times == 1
        assert not transport.is_closed
        connection.data_received(answer(3))
        assert owner.ends[2:] == [(1, 0, ANSWER)]
        assert transport.is_closed

    play(then)


def test_padding_priorities_continued_headers_and_unknown_frames_are_read() -> None:
    def then(connection: GrpcClientConnection, transport: PlayedTransport, owner: PlayedOwner) -> None:
        connection.send(1, 0, b"", explain=False)
        head, trailers = block((":status", "200")), block(("grpc-status", "5"), ("grpc-message", "no %C3%BC"))
        connection.data_received(
            http2.frame(http2.HEADERS, http2.PADDED | http2.PRIORITY, 1, b"\x02" + bytes(5) + head + bytes(2))
            + http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1)
            + http2.frame(99, 0, 1, b"unknown")
            + http2.frame(http2.DATA, http2.PADDED, 1, b"\x03" + ANSWER + bytes(3))
            + http2.frame(http2.HEADERS, http2.END_STREAM, 1, trailers[:4])
            + http2.frame(http2.CONTINUATION, 0, 1, trailers[4:9])
            + http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1, trailers[9:])
            + http2.frame(http2.PING, 0, 0, b"12345678")
        )
        assert owner.ends == [(1, 5, ANSWER)]
        assert transport.frames()[2:] == [(http2.PING, http2.ACK, 0, b"12345678")]
        assert http2.read_fields(trailers).message == "no ü"

    play(then)


def literal(name: bytes, value: bytes) -> bytes:
    """A field without Huffman coding."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def test_ids_of_requests_make_no_difference_to_the_fields_of_an_answer() -> None:
    ends = literal(b"grpc-status", b"8"), literal(b"grpc-message", b"full")
    plain = b"".join(ends)
    for number in (b"sluice-1", b"sluice-123456"):
        assert http2.without_id(ends[0] + literal(b"x-sluice-request", number) + ends[1]) == plain
    for other in (
        plain,
        plain + literal(b"x-sluice-request", b"")[:-1],
        plain + block(("x-sluice-request", "a" * 200)),
    ):
        assert http2.without_id(other) == other
    assert http2.read_fields(plain) == Fields(grpc_status=8, message="full")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (http2.frame(http2.HEADERS, http2.END_HEADERS, 1, block((":status", "502"))), "HTTP 502"),
        (http2.frame(http2.DATA, http2.END_STREAM, 1, b""), "the answer ended without a status"),
        (http2.frame(http2.RST_STREAM, 0, 1, b"\0\0\0\x02"), "RST_STREAM 2"),
    ],
)
def test_a_call_without_a_status_fails(content: bytes, reason: str) -> None:
    def then(connection: GrpcClientConnection, transport: PlayedTransport, owner: PlayedOwner) -> None:
        connection.send(1, 0, b"", explain=False)
        connection.data_received(content)
        assert owner.ends == [(1, reason)]

    play(then)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a gRPC server; for an HTTP port give http://host:port"),
        (http2.frame_head(20_000, http2.DATA, 0, 1), "HTTP/2: a frame of 20000 bytes; expected at most 16384"),
        (http2.frame(http2.SETTINGS, 0, 0, b"12345"), "HTTP/2: SETTINGS of 5 bytes; expected a multiple of 6"),
        (http2.frame(http2.CONTINUATION, 4, 1, b""), "HTTP/2: CONTINUATION without HEADERS"),
        (http2.frame(http2.HEADERS, http2.PADDED | 4, 1, b"\x09x"), "HTTP/2: more padding than payload"),
        (http2.frame(http2.HEADERS, 4, 1, b"\xff\xff\xff\x0f"), "HTTP/2: unreadable header block: "),
    ],
)
def test_a_server_that_breaks_the_rules_loses_the_connection(content: bytes, reason: str) -> None:
    def then(connection: GrpcClientConnection, transport: PlayedTransport, owner: PlayedOwner) -> None:
        connection.send(1, 0, b"", explain=False)
        connection.data_received(content)
        assert transport.is_aborted
        connection.connection_lost(None)
        ((query, lost, found),) = owner.ends
        assert (query, lost) == (1, "lost")
        assert str(found).startswith(reason)

    play(then)
