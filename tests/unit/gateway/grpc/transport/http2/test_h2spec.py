"""The cases of h2spec, by their sections of RFC 9113 and RFC 7541: what a server must not take."""

from collections.abc import Callable

import pytest

from sluice.gateway.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    frame,
    reset,
    settings_frame,
    window_update,
)
from tests.unit.gateway.grpc.transport.http2.peer import REQUEST, Frame, Peer, connection_error, stream_error

PROTOCOL, FRAME_SIZE = ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR
CLOSED, FLOW, COMPRESSION = ErrorCode.STREAM_CLOSED, ErrorCode.FLOW_CONTROL_ERROR, ErrorCode.COMPRESSION_ERROR
LARGEST = 2**31 - 1

Bytes = Callable[[Peer], bytes]


def closed(peer: Peer) -> bytes:
    """A stream that both sides have ended; returns nothing more to send."""
    peer.request(1)
    peer.connection.answer(peer.opened[1], b"answer", b"")
    return b""


def fields(*added: tuple[str, str], without: str = "") -> list[tuple[str, str]]:
    return [each for each in REQUEST if each[0] != without] + list(added)


def upper_case(peer: Peer) -> bytes:
    return frame(HEADERS, END_HEADERS, 1, peer.block() + b"\x00\x06X-TEST\x02ok")


ENDS_CONNECTION: dict[str, tuple[Bytes, ErrorCode]] = {
    "3.4: something else before the settings": (lambda p: frame(PING, 0, 0, bytes(8)), PROTOCOL),
    "4.2: a frame above the maximum": (lambda p: p.headers(1) + frame(DATA, 0, 1, bytes((256 << 10) + 1)), FRAME_SIZE),
    "4.2: a SETTINGS frame above the maximum": (lambda p: frame(SETTINGS, 0, 0, bytes(600_000)), FRAME_SIZE),
    "4.3: an invalid block": (lambda p: frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff"), COMPRESSION),
    "4.3: PRIORITY within a block": (lambda p: p.headers(1, flags=0) + frame(PRIORITY, 0, 1, bytes(5)), PROTOCOL),
    "4.3: HEADERS of another stream within a block": (lambda p: p.headers(1, flags=0) + p.headers(3), PROTOCOL),
    "4.3: an unknown type within a block": (lambda p: p.headers(1, flags=0) + frame(0x16, 0, 1), PROTOCOL),
    "5.1: DATA on an idle stream": (lambda p: frame(DATA, END_STREAM, 1, b"test"), PROTOCOL),
    "5.1: RST_STREAM on an idle stream": (lambda p: reset(1, ErrorCode.CANCEL), PROTOCOL),
    "5.1: WINDOW_UPDATE on an idle stream": (lambda p: window_update(1, 100), PROTOCOL),
    "5.1: CONTINUATION on an idle stream": (lambda p: frame(CONTINUATION, END_HEADERS, 1, p.block()), PROTOCOL),
    "5.1: CONTINUATION after a request": (
        lambda p: p.headers(1, more=END_STREAM) + frame(CONTINUATION, END_HEADERS, 1, p.block()),
        PROTOCOL,
    ),
    "5.1: DATA after RST_STREAM": (
        lambda p: p.headers(1) + reset(1, ErrorCode.CANCEL) + frame(DATA, END_STREAM, 1, b"test"),
        CLOSED,
    ),
    "5.1: HEADERS after RST_STREAM": (
        lambda p: p.headers(1) + reset(1, ErrorCode.CANCEL) + p.headers(1, more=END_STREAM),
        CLOSED,
    ),
    "5.1: DATA on a closed stream": (lambda p: closed(p) + frame(DATA, END_STREAM, 1, b"test"), CLOSED),
    "5.1: HEADERS on a closed stream": (lambda p: closed(p) + p.headers(1, more=END_STREAM), CLOSED),
    "5.1.1: an even id": (lambda p: p.headers(2, more=END_STREAM), PROTOCOL),
    "5.1.1: a smaller id": (lambda p: p.headers(5) + p.headers(3), PROTOCOL),
    "6.1: DATA on stream 0": (lambda p: frame(DATA, END_STREAM, 0, b"test"), PROTOCOL),
    "6.1: padding as long as DATA": (lambda p: p.headers(1) + frame(DATA, PADDED, 1, b"\x05test"), PROTOCOL),
    "6.1: padding of an empty DATA": (lambda p: p.headers(1) + frame(DATA, PADDED, 1), PROTOCOL),
    "6.2: HEADERS on stream 0": (lambda p: p.headers(0), PROTOCOL),
    "6.2: padding as long as HEADERS": (
        lambda p: frame(HEADERS, PADDED | END_HEADERS, 1, b"\xff" + p.block()[:20]),
        PROTOCOL,
    ),
    "6.2: HEADERS too short for a priority": (
        lambda p: frame(HEADERS, HAS_PRIORITY | END_HEADERS, 1, bytes(4)),
        FRAME_SIZE,
    ),
    "6.2: HEADERS without its padding": (lambda p: frame(HEADERS, PADDED | END_HEADERS, 1), FRAME_SIZE),
    "6.3: PRIORITY on stream 0": (lambda p: frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL),
    "6.3: PRIORITY of another size": (lambda p: frame(PRIORITY, 0, 1, bytes(4)), FRAME_SIZE),
    "6.4: RST_STREAM on stream 0": (lambda p: reset(0, ErrorCode.CANCEL), PROTOCOL),
    "6.4: RST_STREAM of another size": (lambda p: p.headers(1) + frame(RST_STREAM, 0, 1, bytes(3)), FRAME_SIZE),
    "6.5: SETTINGS with ACK and payload": (lambda p: frame(SETTINGS, ACK, 0, bytes(6)), FRAME_SIZE),
    "6.5: SETTINGS on a stream": (lambda p: frame(SETTINGS, 0, 1, SETTING.pack(3, 100)), PROTOCOL),
    "6.5: SETTINGS of another size": (lambda p: frame(SETTINGS, 0, 0, bytes(3)), FRAME_SIZE),
    "6.5.2: ENABLE_PUSH 2": (lambda p: settings_frame({ENABLE_PUSH: 2}), PROTOCOL),
    "6.5.2: a window that is too large": (lambda p: settings_frame({INITIAL_WINDOW_SIZE: 2**31}), FLOW),
    "6.5.2: frames that are too small": (lambda p: settings_frame({MAX_FRAME_SIZE: 16_383}), PROTOCOL),
    "6.5.2: frames that are too large": (lambda p: settings_frame({MAX_FRAME_SIZE: 2**24}), PROTOCOL),
    "6.6: PUSH_PROMISE": (lambda p: frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + p.block()), PROTOCOL),
    "6.7: PING on a stream": (lambda p: frame(PING, 0, 1, bytes(8)), PROTOCOL),
    "6.7: PING of another size": (lambda p: frame(PING, 0, 0, bytes(6)), FRAME_SIZE),
    "6.8: GOAWAY on a stream": (lambda p: frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    "6.8: GOAWAY that is too short": (lambda p: frame(GOAWAY, 0, 0, bytes(7)), FRAME_SIZE),
    "6.9: WINDOW_UPDATE of 0": (lambda p: window_update(0, 0), PROTOCOL),
    "6.9: WINDOW_UPDATE of another size": (lambda p: frame(WINDOW_UPDATE, 0, 0, bytes(3)), FRAME_SIZE),
    "6.9.1: a window of the connection that is too large": (
        lambda p: window_update(0, LARGEST) + window_update(0, LARGEST),
        FLOW,
    ),
    "6.9.2: a window of a stream made too large by settings": (
        lambda p: p.headers(1) + window_update(1, LARGEST - 65_535) + settings_frame({INITIAL_WINDOW_SIZE: 65_536}),
        FLOW,
    ),
    "6.10: CONTINUATION on stream 0": (
        lambda p: p.headers(1, flags=0) + frame(CONTINUATION, END_HEADERS, 0, p.block()),
        PROTOCOL,
    ),
    "6.10: CONTINUATION after the end of a block": (
        lambda p: p.headers(1) + frame(CONTINUATION, END_HEADERS, 1, p.block()),
        PROTOCOL,
    ),
    "6.10: DATA within a block": (lambda p: p.headers(1, flags=0) + frame(DATA, 0, 1, b"test"), PROTOCOL),
    "6.10: CONTINUATION of another stream": (
        lambda p: p.headers(1, flags=0) + frame(CONTINUATION, END_HEADERS, 3, p.block()),
        PROTOCOL,
    ),
    "HPACK 2.3.3: an index beyond the table": (lambda p: frame(HEADERS, END_HEADERS, 1, b"\xff\x20"), COMPRESSION),
    "HPACK 4.2: a change of the size at the end": (
        lambda p: frame(HEADERS, END_HEADERS, 1, p.block() + b"\x20"),
        COMPRESSION,
    ),
    "HPACK 5.2: padding of more than 7 bits": (
        lambda p: frame(HEADERS, END_HEADERS, 1, p.block() + b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff"),
        COMPRESSION,
    ),
    "HPACK 5.2: padding of zeros": (
        lambda p: frame(HEADERS, END_HEADERS, 1, p.block() + b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90"),
        COMPRESSION,
    ),
    "HPACK 5.2: the end-of-string symbol": (
        lambda p: frame(
            HEADERS, END_HEADERS, 1, p.block() + b"\x00\x85\xf2\xb2\x4a\x84\xff\x87\x49\x51\xff\xff\xff\xfa\x7f"
        ),
        COMPRESSION,
    ),
    "HPACK 6.1: index 0": (lambda p: frame(HEADERS, END_HEADERS, 1, p.block() + b"\x80"), COMPRESSION),
    "HPACK 6.3: a size above the setting": (
        lambda p: frame(HEADERS, END_HEADERS, 1, b"\x3f\xe1\x5f" + p.block()),
        COMPRESSION,
    ),
    "HPACK 6.3: many changes of the size": (lambda p: frame(HEADERS, END_HEADERS, 1, b"\x20" * 3), COMPRESSION),
}

ENDS_STREAM: dict[str, tuple[Bytes, ErrorCode]] = {
    "5.1: DATA after the end": (lambda p: p.headers(1, more=END_STREAM) + frame(DATA, END_STREAM, 1, b"test"), CLOSED),
    "5.1: HEADERS after the end": (lambda p: p.headers(1, more=END_STREAM) + p.headers(1, more=END_STREAM), CLOSED),
    "6.3: PRIORITY of another size on an open stream": (
        lambda p: p.headers(1) + frame(PRIORITY, 0, 1, bytes(4)),
        FRAME_SIZE,
    ),
    "6.9: WINDOW_UPDATE of 0 on a stream": (lambda p: p.headers(1) + window_update(1, 0), PROTOCOL),
    "6.9.1: a window of a stream that is too large": (
        lambda p: p.headers(1) + window_update(1, LARGEST) + window_update(1, LARGEST),
        FLOW,
    ),
    "8.1: a second HEADERS frame that does not end the stream": (lambda p: p.headers(1) + p.headers(1), PROTOCOL),
    "8.1.1: less data than content-length says": (
        lambda p: p.headers(1, fields(("content-length", "9"))) + frame(DATA, END_STREAM, 1, b"test"),
        PROTOCOL,
    ),
    "8.1.1: more data than content-length says, in several frames": (
        lambda p: p.headers(1, fields(("content-length", "1"))) + frame(DATA, 0, 1, b"te") + frame(DATA, 1, 1, b"st"),
        PROTOCOL,
    ),
    "8.1.1: trailers before the data is complete": (
        lambda p: p.headers(1, fields(("content-length", "1"))) + p.headers(1, [("x", "y")], more=END_STREAM),
        PROTOCOL,
    ),
    "8.2.1: a name in upper case": (upper_case, PROTOCOL),
    "8.2.1: a space in a name": (lambda p: p.headers(1, fields(("x y", "test"))), PROTOCOL),
    "8.2.1: an empty name": (lambda p: p.headers(1, fields(("", "test"))), PROTOCOL),
    "8.2.1: a line feed in a value": (lambda p: p.headers(1, fields(("x", "a\nb"))), PROTOCOL),
    "8.2.1: a space at the end of a value": (lambda p: p.headers(1, fields(("x", "a "))), PROTOCOL),
    "8.2.2: connection": (lambda p: p.headers(1, fields(("connection", "keep-alive"))), PROTOCOL),
    "8.2.2: te other than trailers": (lambda p: p.headers(1, fields(("te", "trailers, deflate"))), PROTOCOL),
    "8.3: an unknown pseudo-header field": (lambda p: p.headers(1, [(":test", "ok"), *REQUEST]), PROTOCOL),
    "8.3: one of responses": (lambda p: p.headers(1, [(":status", "200"), *REQUEST]), PROTOCOL),
    "8.3: one in trailers": (lambda p: p.headers(1) + p.headers(1, [(":path", "/x")], more=END_STREAM), PROTOCOL),
    "8.3: one after other fields": (
        lambda p: p.headers(1, fields((":scheme", "http"), without=":scheme")),
        PROTOCOL,
    ),
    "8.3.1: an empty path": (lambda p: p.headers(1, [(":path", ""), *fields(without=":path")]), PROTOCOL),
    "8.3.1: no method": (lambda p: p.headers(1, fields(without=":method")), PROTOCOL),
    "8.3.1: no scheme": (lambda p: p.headers(1, fields(without=":scheme")), PROTOCOL),
    "8.3.1: no path": (lambda p: p.headers(1, fields(without=":path")), PROTOCOL),
    "8.3.1: two methods": (lambda p: p.headers(1, [(":method", "POST"), *REQUEST]), PROTOCOL),
    "8.3.1: two paths": (lambda p: p.headers(1, [(":path", "/"), *REQUEST]), PROTOCOL),
    "8.5: CONNECT": (lambda p: p.headers(1, [(":method", "CONNECT"), *fields(without=":method")]), PROTOCOL),
}


@pytest.mark.parametrize("case", ENDS_CONNECTION)
@pytest.mark.parametrize("cut", [False, True])
def test_it_ends_the_connection(case: str, cut: bool) -> None:
    send, code = ENDS_CONNECTION[case]
    early = case.startswith("3.4")
    peer = Peer(greets=not early)
    data = (PREFACE if early else b"") + send(peer)
    peer.taken()
    if cut:  # byte by byte
        for at in range(len(data)):
            peer.connection.receive(data[at : at + 1])
        answer = peer.taken()
    else:
        answer = peer.send(data)
    assert connection_error(answer) is code
    assert peer.connection.over
    assert all(stream.cancelled or stream.ended for stream in peer.opened.values())
    assert peer.send(PREFACE, frame(PING, 0, 0, bytes(8))) == []


@pytest.mark.parametrize("case", ENDS_STREAM)
def test_it_ends_the_stream_and_no_other(case: str) -> None:
    send, code = ENDS_STREAM[case]
    peer = Peer()
    assert stream_error(peer.send(send(peer))) is code
    assert 1 not in peer.connection.streams
    assert peer.request(7) == []
    assert peer.opened[7].fields == [(name.encode(), value.encode()) for name, value in REQUEST]
    assert peer.opened[7].remote_ended


def test_3_4_an_invalid_preface() -> None:
    for data in (b"get / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\rn", b"X"):
        assert connection_error(Peer(greets=False).send(data)) is PROTOCOL


@pytest.mark.parametrize("pieces", [(b"GET / HTTP/1.1\r\n\r\n",), (b"P", b"OST / HTTP/1.1\r\n\r\n")])
def test_a_client_of_http_1_can_read_why_it_is_refused(pieces: tuple[bytes, ...]) -> None:
    peer = Peer(greets=False)
    for piece in pieces:
        assert peer.taken() == []
        peer.connection.receive(piece)
    head, _, text = b"".join(peer.connection.take()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert text == b"this port serves gRPC, over HTTP/2 only\n"
    assert peer.connection.over


@pytest.mark.parametrize("size", [1, 7, 24, 1000])
def test_a_conversation_may_come_in_pieces(size: int) -> None:
    peer = Peer(greets=False)
    data = PREFACE + settings_frame({HEADER_TABLE_SIZE: 4096})
    block = peer.block()
    data += frame(HEADERS, 0, 1, block[:3]) + frame(CONTINUATION, 0, 1, block[3:10])
    data += frame(CONTINUATION, END_HEADERS, 1, block[10:])
    data += (
        frame(DATA, PADDED, 1, b"\x03hello" + bytes(3)) + frame(0x42, 0, 0, b"unknown") + frame(DATA, 0, 1, b" world")
    )
    data += frame(PRIORITY, 0, 1, bytes(5)) + frame(DATA, PADDED | END_STREAM, 1, b"\x01!\0")
    data += frame(GOAWAY, 0, 0, bytes(8) + b"debug") + frame(PING, 0, 0, b"12345678")
    answer: list[Frame] = []
    for at in range(0, len(data), size):
        answer += peer.send(data[at : at + size])
    assert answer[2:] == [Frame(SETTINGS, ACK, 0, b""), Frame(PING, ACK, 0, b"12345678")]
    assert (peer.opened[1].data, peer.opened[1].remote_ended) == (b"hello world!", True)


def test_what_is_allowed_is_taken() -> None:
    peer = Peer()
    allowed = [
        frame(PRIORITY, 0, 9, bytes(5)),  # on an idle stream
        frame(HEADERS, END_HEADERS | HAS_PRIORITY | PADDED, 1, b"\x02" + bytes(5) + peer.block() + bytes(2)),
        frame(SETTINGS, ACK, 0),
        frame(0xFF, 0xFF, 0, b"?"),
        frame(DATA, END_STREAM | 0x40, 1, b"x"),  # with an undefined flag
    ]
    assert peer.send(*allowed) == []
    peer.connection.answer(peer.opened[1], b"answer", b"")
    peer.taken()
    assert peer.send(reset(1, ErrorCode.CANCEL), window_update(1, 9), frame(PRIORITY, 0, 1, bytes(5))) == []
    assert peer.send(settings_frame({0x99: 7})) == [Frame(SETTINGS, ACK, 0, b"")]


def test_frames_on_a_stream_that_the_server_has_reset_are_ignored() -> None:
    peer = Peer()
    peer.send(peer.headers(1))
    peer.connection.answer(peer.opened[1], b"early", b"")
    assert stream_error(peer.taken()) is ErrorCode.NO_ERROR
    more = frame(DATA, 0, 1, b"more"), window_update(1, 5), peer.headers(1, [("a", "b")], more=END_STREAM)
    assert peer.send(*more) == []
    assert peer.request(3) == []
    assert peer.opened[3].fields[0] == (b":method", b"POST")


def test_settings_before_the_end_of_a_huge_frame_are_refused_at_once() -> None:
    peer = Peer()
    assert connection_error(peer.send(frame(SETTINGS, 0, 0, bytes(600))[:9])) is FRAME_SIZE
    peer = Peer()
    assert connection_error(peer.send(frame(DATA, 0, 1, bytes(300_000))[:9])) is FRAME_SIZE
