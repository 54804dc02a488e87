"""Random frames and damaged ones: no error escapes, what is kept is bounded, and other connections go on."""

import asyncio
import logging
from typing import Any

import grpc
import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.gateway.config.front_door import FrontDoorSettings
from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.front_door.listener import listen
from sluice.gateway.grpc.transport.http2.call import OPEN_BYTES
from sluice.gateway.grpc.transport.http2.server import Http2Server
from sluice.gateway.http2.frames import (
    DATA,
    GOAWAY,
    HEADERS,
    PREFACE,
    SETTING,
    ConnectionFault,
    StreamFault,
    frame,
    reset,
    settings_frame,
    window_update,
)
from sluice.gateway.http2.header_blocks import HeaderDecoder, encode_fields
from tests.unit.gateway.grpc.transport.http2.peer import REQUEST, frames
from tests.unit.gateway.grpc.transport.http2.wire import Client, prefixed

EXAMPLES = 500
STREAMS = 8
HEADER_BYTES = 4096
MESSAGE_BYTES = 10_000
SETTINGS = FrontDoorSettings(grpc_streams=STREAMS, grpc_head_bytes=HEADER_BYTES)
PATHS = ("/s/M", "/s/S", "/s/Later", "/s/None")


def mostly(good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(good, good, good, bad)


def block(path: str, more: list[tuple[bytes, bytes]]) -> bytes:
    fields = [(name.encode(), (path if name == ":path" else value).encode()) for name, value in REQUEST]
    return encode_fields([*fields, *more])


IDS = mostly(st.integers(0, 12).map(lambda number: 2 * number + 1), st.integers(0, 2**31 - 1))
FLAGS = mostly(st.sampled_from([0, 1, 4, 5]), st.integers(0, 255))
MORE = st.lists(
    st.sampled_from(
        [
            (b"grpc-timeout", b"0S"),
            (b"grpc-timeout", b"x"),
            (b"grpc-encoding", b"gzip"),
            (b"x-bin", b"AA"),
            (b"x-bin", b"!"),
            (b"content-length", b"5"),
            (b"X", b""),
            (b":path", b"/"),
            (b"x", b"v" * 3000),
        ]
    ),
    max_size=2,
)
BLOCKS = mostly(st.builds(block, st.sampled_from(PATHS), MORE), st.binary(max_size=40))
MESSAGES = st.binary(max_size=30).flatmap(
    lambda data: st.sampled_from([prefixed(data), prefixed(data, 1), data, prefixed(data)[:-1], prefixed(data) * 3])
)
FRAMES = st.one_of(
    st.builds(frame, st.just(HEADERS), FLAGS, IDS, BLOCKS),
    st.builds(frame, st.just(HEADERS), st.just(4), IDS, BLOCKS),
    st.builds(frame, st.just(DATA), FLAGS, IDS, MESSAGES),
    st.builds(frame, st.integers(0, 11), FLAGS, IDS, st.binary(max_size=20)),
    st.builds(window_update, IDS, st.integers(0, 2**32 - 1)),
    st.builds(reset, IDS, st.sampled_from([0, 8])),
    st.builds(
        settings_frame,
        st.dictionaries(st.integers(0, 9), st.sampled_from([0, 1, 65_535, 16_384, 2**31 - 1, 2**31]), max_size=3),
    ),
    st.binary(max_size=20),
    st.just(b"\0\x01\0\0"),
)
GREETS = mostly(st.just(True), st.just(False))
DAMAGE = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3)


@given(st.lists(FRAMES, max_size=25), DAMAGE, st.lists(st.integers(1, 60), max_size=10), GREETS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_client_can_only_harm_itself(
    sent: list[bytes], damage: list[tuple[int, int]], cuts: list[int], greets: bool
) -> None:
    data = bytearray((PREFACE + settings_frame({}) if greets else b"") + b"".join(sent))
    for at, value in damage:
        if data:
            data[at % len(data)] = value
    pieces = [bytes(data[sum(cuts[:index]) : sum(cuts[: index + 1])]) for index in range(len(cuts))]
    asyncio.run(converse([*pieces, bytes(data[sum(cuts) :])]))


async def converse(pieces: list[bytes]) -> None:
    later: list[Any] = []

    async def echo_all(requests: Any, context: Any) -> None:
        async for request in requests:
            await context.write(request)

    front_door = FrontDoor(SETTINGS, Budget(1 << 20))
    server = Http2Server(listen("gRPC", "127.0.0.1", 0), front_door, MESSAGE_BYTES)
    handlers = {
        "M": grpc.unary_unary_rpc_method_handler(lambda message, call: call.finish(message)),
        "S": grpc.stream_stream_rpc_method_handler(echo_all),
        "Later": grpc.unary_unary_rpc_method_handler(lambda message, call: later.append(call)),
    }
    server.add_registered_method_handlers("s", handlers)
    await server.start()
    noisy, good = Client(server, greets=False), Client(server)
    http2 = noisy.connection.http2
    for piece in pieces:
        noisy.send(piece)
        await asyncio.sleep(0)
        assert len(http2.streams) <= STREAMS
        assert len(http2._rest) <= 9 + max(HEADER_BYTES, 384)
        assert len(http2._block) <= HEADER_BYTES
        assert 0 <= http2.kept <= 2 * sum(map(len, pieces)) + 64 * len(pieces) * 200 + OPEN_BYTES * STREAMS
        assert http2.unsent_bytes >= 0
        assert http2.held >= 0
    front_door.sweep(server.loop.time())
    for call in later:
        call.finish(b"later")
    good.send(good.call(1, b"good"))
    assert (await good.status(1))[2] == prefixed(b"good")
    written = b"".join(noisy.transport.writes)
    if http2.over:
        # A damaged preface may look like a request of HTTP/1.
        assert written.startswith(b"HTTP/1.1 400 ") or frames(written)[-1].kind == GOAWAY
        assert noisy.transport.ended or noisy.transport.closed
    else:
        frames(written)  # whole frames only
    for client in (noisy, good):
        client.transport.close()
    await asyncio.sleep(0)
    await server.stop(0)
    assert (front_door.budget.used, http2.kept, http2.held, http2.streams) == (0, 0, 0, {})
    assert all(call.ended or call.cancelled for call in later)


@given(st.lists(st.one_of(BLOCKS, st.binary(max_size=300)), max_size=6))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_remembered_block_means_what_a_new_decoder_would_read(blocks: list[bytes]) -> None:
    decoder: HeaderDecoder[list[tuple[bytes, bytes]]] = HeaderDecoder(HEADER_BYTES, 100, list)
    plain = hpack.Decoder(2 * HEADER_BYTES)
    for each in (each for each in blocks for _ in range(2)):
        try:
            expected = [(name, value) for name, value in plain.decode(each, raw=True)]
        except (hpack.HPACKError, IndexError):
            with pytest.raises(ConnectionFault):
                decoder.request(each)
            return
        try:
            assert decoder.request(each) == expected
        except ConnectionFault:
            assert each[:3].count(b"\x20") or each[0] >> 5 == 1  # many changes of the table's size
            return
        except StreamFault:
            pass


def test_the_log_has_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        asyncio.run(converse([PREFACE, settings_frame({}), b"\xff" * 30, SETTING.pack(1, 2)]))
    assert caplog.records == []
