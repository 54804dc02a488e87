"""Calls and limits of connections, in bytes."""

import asyncio
import gzip
import logging
import random
import zlib
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import grpc
import pytest

from sluice.gateway.config.front_door import FrontDoorSettings
from sluice.gateway.front_door.budget import Budget
from sluice.gateway.grpc.transport.call import SplitMessage
from sluice.gateway.grpc.transport.http2.call import OPEN_BYTES, TURN_MESSAGES
from sluice.gateway.grpc.transport.http2.connection import STREAM_WINDOW, TURN_FRAMES
from sluice.gateway.grpc.transport.http2.grpc_connection import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S, LINGER_BYTES
from sluice.gateway.grpc.transport.http2.large_frames import NEXT_BYTES, LargeFrames
from sluice.gateway.grpc.transport.http2.server import Http2Server
from sluice.gateway.http2.frames import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    frame,
    reset,
    settings_frame,
    window_update,
)
from tests.unit.gateway.grpc.transport.http2.peer import Frame, connection_error
from tests.unit.gateway.grpc.transport.http2.wire import Client, Handlers, prefixed, serve

Status = grpc.StatusCode


def code(status: grpc.StatusCode) -> int:
    number: int = status.value[0]
    return number


def echo(message: bytes, call: Any) -> None:
    call.finish(message)


class Kept:
    """A handler that keeps its calls open."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.cancelled = 0

    def begin(self, message: bytes, call: Any) -> None:
        self.calls.append(call)
        call.on_cancelled = self._cancel

    def _cancel(self) -> None:
        self.cancelled += 1


async def echo_all(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        await context.write(request)


ECHO: Handlers = {
    "M": grpc.unary_unary_rpc_method_handler(echo),
    "S": grpc.stream_stream_rpc_method_handler(echo_all),
}


def keeping(kept: Kept) -> Handlers:
    return {"M": grpc.unary_unary_rpc_method_handler(kept.begin)}


# -- unary calls


def test_answers_of_one_turn_are_written_at_once() -> None:
    kept = Kept()

    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(*(client.call(stream_id, b"%d" % stream_id) for stream_id in (1, 3, 5)))
        before = len(client.transport.writes)
        for call in kept.calls:
            call.finish(b"answer")
        assert len(client.transport.writes) == before
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(client.transport.writes) == before + 1
        for stream_id in (1, 3, 5):
            client.unread = client.received() if stream_id == 1 else client.unread
        found = client.unread
        assert [each.kind for each in found] == [HEADERS, DATA, HEADERS] * 3

    serve(keeping(kept), talk)


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_a_message_may_come_in_frames_of_any_size(size: int) -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        whole = prefixed(bytes(size))
        client.send(client.headers(1))
        for at in range(0, len(whole), 1000):
            client.send(frame(DATA, 0, 1, whole[at : at + 1000]))
        client.send(frame(DATA, END_STREAM, 1))
        client.send(window_update(0, 1 << 20), window_update(1, 1 << 20))
        assert (await client.status(1))[2] == whole
        client.send(client.headers(3), frame(DATA, 0, 3, whole), client.headers(3, flags=0x5)[:0])
        client.send(frame(HEADERS, 0x5, 3, client.encoder.encode([("trailer", "x")])))
        client.send(window_update(3, 1 << 20))
        assert (await client.status(3))[2] == whole

    serve(ECHO, talk)


def test_a_call_with_no_message_or_two_ends_with_unimplemented() -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(client.headers(1, flags=0x5))
        client.send(client.headers(3), frame(DATA, END_STREAM, 3))
        client.send(client.headers(5), frame(DATA, END_STREAM, 5, prefixed(b"a") + prefixed(b"b")))
        client.send(client.headers(7), frame(DATA, END_STREAM, 7, prefixed(b"abc")[:-1]))
        client.send(client.headers(9), frame(DATA, 0, 9, prefixed(b"a")), frame(DATA, 0, 9, prefixed(b"b")))
        for stream_id in (1, 3, 5, 7, 9):
            status, fields, _ = await client.status(stream_id) if stream_id == 1 else (12, {}, b"")
            assert status == code(Status.UNIMPLEMENTED)
        assert fields == {}

    serve(ECHO, talk)


@pytest.mark.parametrize(
    ("fields", "data", "status", "details"),
    [
        ([], b"", Status.UNIMPLEMENTED, "/s/M requires exactly one request message"),
        ([], prefixed(b"a") + prefixed(b"b"), Status.UNIMPLEMENTED, "/s/M requires exactly one request message"),
        ([], prefixed(b"abc")[:-1], Status.UNIMPLEMENTED, "/s/M requires exactly one request message"),
        ([], prefixed(b"", 7), Status.INTERNAL, "expected 0 or 1 as the compressed flag of a message, got 7"),
        (
            [],
            prefixed(bytes(1001)),
            Status.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (1001 vs. 1000)",
        ),
        (
            [],
            b"\0\xff\xff\xff\xff",
            Status.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (4294967295 vs. 1000)",
        ),
        ([], prefixed(b"", 1), Status.INTERNAL, "a message is compressed, but the call has no grpc-encoding"),
        (
            [("grpc-encoding", "gzip")],
            prefixed(gzip.compress(bytes(1001)), 1),
            Status.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (1001 vs. 1000)",
        ),
        (
            [("grpc-encoding", "gzip")],
            prefixed(b"noise", 1),
            Status.INTERNAL,
            "the message cannot be decompressed: Error -3 while decompressing data: incorrect header check",
        ),
        (
            [("grpc-encoding", "br")],
            prefixed(b""),
            Status.UNIMPLEMENTED,
            "grpc-encoding: expected one of identity, deflate, gzip, got 'br'",
        ),
        (
            [("grpc-timeout", "1")],
            prefixed(b""),
            Status.INVALID_ARGUMENT,
            "grpc-timeout: expected up to 8 digits and a unit of HMSmun, got '1'",
        ),
    ],
)
def test_what_is_wrong_with_a_call_is_named(
    fields: list[tuple[str, str]], data: bytes, status: grpc.StatusCode, details: str
) -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(client.headers(1, *fields), frame(DATA, END_STREAM, 1, data))
        got, trailers, answer = await client.status(1)
        assert (got, answer) == (code(status), b"")
        assert trailers["grpc-message"] == details.replace("%", "%25")
        client.send(client.call(3, b"next"))
        assert (await client.status(3))[2] == prefixed(b"next")

    serve(ECHO, talk, max_message_bytes=1000)


@pytest.mark.parametrize(("name", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_messages_may_be_compressed(name: str, compress: Any) -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        data = prefixed(compress(b"hello" * 100), 1)
        client.send(client.headers(1, ("grpc-encoding", name)), frame(DATA, END_STREAM, 1, data))
        assert await client.status(1) == (
            0,
            {
                ":status": "200",
                "content-type": "application/grpc",
                "grpc-accept-encoding": "identity, deflate, gzip",
                "grpc-status": "0",
            },
            prefixed(b"hello" * 100),
        )
        client.send(client.headers(3, ("grpc-encoding", name), path="/s/S"), frame(DATA, 0, 3, data + prefixed(b"x")))
        client.send(frame(DATA, END_STREAM, 3))
        assert (await client.status(3))[2] == prefixed(b"hello" * 100) + prefixed(b"x")

    serve(ECHO, talk)


def test_requests_that_are_none_of_grpc_get_a_status_of_http() -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        block = [(":method", "GET"), (":scheme", "http"), (":path", "/"), ("user-agent", "curl")]
        client.send(frame(HEADERS, 0x5, 1, client.encoder.encode(block)))
        assert (await client.status(1))[1] == {":status": "405", "content-length": "0"}
        client.send(client.headers(3, path="/s/None"), frame(DATA, END_STREAM, 3, prefixed(b"")))
        status, fields, _ = await client.status(3)
        assert (status, fields["grpc-message"]) == (code(Status.UNIMPLEMENTED), "Method not found!")

    serve(ECHO, talk)


def test_a_deadline_ends_the_call_and_tells_its_handler() -> None:
    kept = Kept()

    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(client.call(1, b"", ("grpc-timeout", "100S")), client.call(3, b"", ("grpc-timeout", "1m")))
        assert 99 < kept.calls[0].time_remaining() < 100
        status, fields, _ = await client.status(3)
        assert (status, fields["grpc-message"]) == (code(Status.DEADLINE_EXCEEDED), "Deadline Exceeded")
        assert (kept.cancelled, kept.calls[0].cancelled, kept.calls[1].cancelled) == (1, False, True)
        kept.calls[1].finish(b"too late")
        kept.calls[0].finish(b"in time")
        assert (await client.status(1))[2] == prefixed(b"in time")

    serve(keeping(kept), talk)


def test_a_reset_cancels_at_once() -> None:
    kept = Kept()

    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(client.call(1, b"a"), client.call(3, b"b"))
        client.send(reset(1, ErrorCode.CANCEL))
        assert (kept.cancelled, [call.cancelled for call in kept.calls]) == (1, [True, False])
        kept.calls[0].finish(b"too late")
        kept.calls[1].finish(b"answer")
        assert (await client.status(3))[2] == prefixed(b"answer")
        client.send(client.call(5, b"c"))
        client.transport.close()
        await asyncio.sleep(0)
        assert kept.cancelled == 2

    serve(keeping(kept), talk)


def test_a_client_with_many_small_frames_leaves_others_their_turns() -> None:
    async def talk(server: Http2Server) -> None:
        loop = asyncio.get_running_loop()
        turns: list[bool] = []
        client = Client(server)
        message = prefixed(b"a" * 5 * TURN_FRAMES)
        client.send(client.headers(1), frame(DATA, 0, 1, message[:6]))
        small = b"".join(frame(DATA, 0, 1, message[at : at + 1]) for at in range(6, len(message)))
        client.send(small + frame(DATA, END_STREAM, 1))
        assert not client.transport.reading
        loop.call_soon(turns.append, client.connection.http2.is_behind)
        assert (await client.status(1))[2] == message
        assert turns == [True]
        assert client.transport.reading
        client.send(client.headers(3), *[frame(DATA, 0, 3, b"x")] * 3 * TURN_FRAMES)
        client.transport.close()
        await asyncio.sleep(0)
        assert not client.connection.http2.is_behind

    serve(ECHO, talk)


# -- streams


def test_the_handler_of_a_stream_leaves_others_their_turns() -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        data = prefixed(b"a") * 4 * TURN_MESSAGES
        client.send(client.headers(1, path="/s/S"), frame(DATA, END_STREAM, 1, data))
        await asyncio.sleep(0)
        client.unread = client.received()
        assert sum(each.kind == DATA for each in client.unread) == TURN_MESSAGES
        assert (await client.status(1))[2] == data

    serve(ECHO, talk)


def test_messages_of_a_stream_may_share_frames_and_span_them() -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        messages = [b"", b"a", b"b" * 3000, b"c"]
        data = b"".join(map(prefixed, messages))
        client.send(client.headers(1, path="/s/S"))
        for at in range(0, len(data), 700):
            client.send(frame(DATA, 0, 1, data[at : at + 700]))
        client.send(frame(DATA, END_STREAM, 1))
        status, _, answer = await client.status(1)
        assert (status, answer) == (0, data)

    serve(ECHO, talk)


@pytest.mark.parametrize(
    ("data", "details"),
    [
        (prefixed(b"abc", 9), "expected 0 or 1 as the compressed flag of a message, got 9"),
        (prefixed(b"abc", 1), "a message is compressed, but the call has no grpc-encoding"),
    ],
)
def test_the_handler_of_a_stream_with_a_bad_message_is_cancelled(data: bytes, details: str) -> None:
    ended = asyncio.Event()

    async def read(requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            async for _ in requests:
                pass
        finally:
            ended.set()

    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(client.headers(1, path="/s/S"))
        await asyncio.sleep(0)
        client.send(frame(DATA, 0, 1, data))
        status, fields, _ = await client.status(1)
        assert (status, fields["grpc-message"]) == (code(Status.INTERNAL), details)
        await asyncio.wait_for(ended.wait(), 60)

    serve({"S": grpc.stream_stream_rpc_method_handler(read)}, talk)


def test_a_stream_that_ends_within_a_message_is_an_error() -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(client.headers(1, path="/s/S"), frame(DATA, END_STREAM, 1, prefixed(b"abc")[:-1]))
        status, fields, _ = await client.status(1)
        assert (status, fields["grpc-message"]) == (code(Status.INTERNAL), "the stream ended within a message")

    serve(ECHO, talk)


def test_a_stream_whose_handler_does_not_read_gets_no_more_window() -> None:
    go_on = asyncio.Event()

    async def slow(requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(b"%d" % len(request))
            await go_on.wait()

    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(client.headers(1, path="/s/S"))
        message = prefixed(bytes(100_000))
        for _ in range(STREAM_WINDOW // len(message)):
            client.send(frame(DATA, 0, 1, message))
            await asyncio.sleep(0)
        await asyncio.sleep(0)

        def granted() -> int:
            found = client.received()
            return sum(int.from_bytes(each.payload, "big") for each in found if each[::2] == (WINDOW_UPDATE, 1))

        assert granted() <= 3 * len(message)
        assert server.budget.used > 7 * len(message)
        go_on.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert granted() >= 5 * len(message)

    serve({"S": grpc.stream_stream_rpc_method_handler(slow)}, talk)


def test_a_handler_waits_while_the_client_takes_no_answers() -> None:
    written: list[int] = []

    async def many(requests: AsyncIterator[bytes], context: Any) -> None:
        for number in range(5):
            await context.write(bytes(10))
            written.append(number)

    async def talk(server: Http2Server) -> None:
        client = Client(server, greets=False)
        client.send(PREFACE, settings_frame({INITIAL_WINDOW_SIZE: 20}))
        client.send(client.headers(1, path="/s/S"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert written == [0]
        client.send(window_update(1, 100))
        assert (await client.status(1))[2] == prefixed(bytes(10)) * 5

    serve({"S": grpc.stream_stream_rpc_method_handler(many)}, talk)


def test_a_stream_is_cancelled_while_its_handler_waits_for_room() -> None:
    ended = asyncio.Event()

    async def many(requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            while True:
                await context.write(bytes(10))
        finally:
            ended.set()

    async def talk(server: Http2Server) -> None:
        client = Client(server, greets=False)
        client.send(PREFACE, settings_frame({INITIAL_WINDOW_SIZE: 20}))
        client.send(client.headers(1, path="/s/S"))
        await asyncio.sleep(0)
        client.send(reset(1, ErrorCode.CANCEL))
        await asyncio.wait_for(ended.wait(), 60)

    serve({"S": grpc.stream_stream_rpc_method_handler(many)}, talk)


# -- limits of connections


def settings(**changed: Any) -> FrontDoorSettings:
    return FrontDoorSettings(**changed)


def test_connections_above_the_limits_are_asked_to_go() -> None:
    async def talk(server: Http2Server) -> None:
        first = Client(server)
        first.send(first.headers(1))
        second = Client(server, "5.6.7.8")
        second.send(second.headers(1))
        third = Client(server, "1.2.3.4", greets=False)
        notice = await third.end()
        assert b"the client has reached its limit of 1 connections" in notice.payload
        await asyncio.sleep(0)
        fourth = Client(server, "9.9.9.9", greets=False)
        assert b"the server has reached its limit of 2 connections" in (await fourth.end()).payload
        assert (third.transport.closed, first.transport.closed) == (True, False)
        assert server.front_door.faults.counts["no_connections"] == 2

    serve(keeping(Kept()), talk, settings=settings(max_connections_per_address=1), max_connections=2)


def test_the_idlest_connection_makes_room() -> None:
    async def talk(server: Http2Server) -> None:
        idle = Client(server)
        clients = [Client(server) for _ in range(16)]
        assert idle.transport.aborted or any(each.transport.aborted for each in clients)
        assert not clients[-1].transport.closed

    serve(ECHO, talk, max_connections=16)


def test_connections_are_kept_for_health_when_all_others_are_busy() -> None:
    async def talk(server: Http2Server) -> None:
        busy = [Client(server) for _ in range(15)]
        for each in busy:
            each.send(each.headers(1))
        kept = Client(server)
        kept.send(kept.call(1, b"well", path="/s/Health"))
        assert (await kept.status(1))[2] == prefixed(b"well")
        kept.send(kept.call(3, b"too much"))
        code, fields, _ = await kept.status(3)
        assert (code, fields["grpc-message"]) == (14, "the server has reached its limit of 16 connections")
        assert server.front_door.faults.counts["no_connections"] == 1
        busy[0].transport.close()
        await asyncio.sleep(0)
        kept.send(kept.call(5, b"now"))
        assert (await kept.status(5))[2] == prefixed(b"now")

    serve({**ECHO, "Health": ECHO["M"]}, talk, max_connections=16)


def test_tls_without_http_2_is_left() -> None:
    async def talk(server: Http2Server) -> None:
        assert Client(server, greets=False, protocol_of_tls="").transport.closed
        client = Client(server, protocol_of_tls="h2")
        client.send(client.call(1, b"over TLS"))
        assert (await client.status(1))[2] == prefixed(b"over TLS")

    serve(ECHO, talk)


def sweep(server: Http2Server, *seconds: float) -> None:
    for each in seconds:
        server.front_door.sweep(server.loop.time() + each)


@pytest.mark.parametrize("sent", [b"", PREFACE[:10], PREFACE, PREFACE + settings_frame({}) + b"\0\0\x08\x06"])
def test_a_client_that_sends_no_whole_frame_is_asked_to_go(sent: bytes) -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server, greets=False)
        client.send(sent)
        sweep(server, 0, 9)
        assert not client.connection.http2.over
        sweep(server, 11)
        assert b"no complete frame within 10 s" in (await client.end()).payload
        assert server.front_door.faults.counts["too_slow"] == 1
        sweep(server, 12, 15)
        assert client.transport.closed

    serve(ECHO, talk)


def test_a_client_that_waits_for_the_server_to_begin_gets_its_settings() -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server, greets=False)
        sweep(server, 0)
        assert not client.received()
        sweep(server, 1)
        assert [each.kind for each in client.received()] == [SETTINGS, WINDOW_UPDATE]
        client.send(PREFACE, settings_frame({}), client.call(1, b"late"))
        assert [each.kind for each in client.received()] == [SETTINGS, HEADERS, DATA, HEADERS]

    serve(ECHO, talk)


def test_a_header_block_that_does_not_end_is_too_slow_even_with_frames() -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(client.headers(1, flags=0))
        for second in range(12):
            sweep(server, second)
            client.send(frame(9, 0, 1))
        assert client.connection.http2.over

    serve(ECHO, talk)


def acknowledge(client: Client) -> list[Frame]:
    """Answer the pings that have come; returns all frames."""
    found = client.received()
    client.send(*(frame(PING, ACK, 0, each.payload) for each in found if each.kind == PING))
    return found


def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    kept = Kept()

    async def talk(server: Http2Server) -> None:
        _, idle, busy = clients = Client(server), Client(server), Client(server)
        idle.send(idle.call(1, b""))
        kept.calls[0].finish(b"")
        busy.send(busy.call(1, b""))

        def pass_by(*seconds: float) -> list[bool]:
            for each in seconds:
                sweep(server, each)
                for client in clients:
                    acknowledge(client)
            return [client.transport.closed for client in clients]

        assert pass_by(0, 59) == [False, False, False]
        assert pass_by(61) == [True, False, False]
        idle.send(idle.call(3, b""))
        kept.calls[2].finish(b"")
        assert pass_by(70, 150, 300, 369) == [True, False, False]
        assert pass_by(371) == [True, True, False]

    serve(keeping(kept), talk, settings=settings())


def test_a_call_that_crosses_the_end_of_an_idle_connection_is_answered() -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        sweep(server, 0, 61)
        client.send(client.call(1, b"late"))
        found = acknowledge(client)
        assert [each.kind for each in found] == [GOAWAY, PING, HEADERS, DATA, HEADERS]
        assert client.transport.closed

    serve(ECHO, talk, settings=settings())


def test_a_client_that_ignores_the_end_of_an_idle_connection_is_left() -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        sweep(server, 0, 61, 62, 80)
        assert not client.transport.closed
        sweep(server, 82)
        assert client.transport.closed

    serve(ECHO, talk, settings=settings())


def test_an_old_connection_is_asked_to_go_and_ends_with_its_last_call() -> None:
    kept = Kept()

    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(client.call(1, b""))
        sweep(server, 0, 3599)
        assert GOAWAY not in [each.kind for each in client.received()]
        sweep(server, 3601)
        notice, ping = client.received()[-2:]
        assert (notice.kind, ping.kind) == (GOAWAY, PING)
        client.send(frame(PING, ACK, 0, ping.payload))
        assert not client.transport.closed
        kept.calls[0].finish(b"the last")
        assert (await client.status(1))[2] == prefixed(b"the last")
        assert client.transport.closed

    serve(keeping(kept), talk, settings=settings())


def test_a_client_that_does_not_answer_a_ping_is_left() -> None:
    kept = Kept()

    async def talk(server: Http2Server) -> None:
        gone, there = Client(server), Client(server)
        for each in (gone, there):
            each.send(each.call(1, b""))
        sweep(server, 0, KEEPALIVE_S + 1)
        there.send(frame(PING, ACK, 0, next(each.payload for each in there.received() if each.kind == PING)))
        sweep(server, KEEPALIVE_S + 2, KEEPALIVE_S + KEEPALIVE_TIMEOUT_S + 2)
        assert (gone.transport.aborted, there.transport.aborted, kept.cancelled) == (True, False, 1)

    serve(keeping(kept), talk, settings=settings())


def test_a_client_that_does_not_read_is_left() -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.transport.buffered = 500_000
        client.connection.pause_writing()
        assert (client.transport.reading, server.budget.used) == (False, 500_000)
        client.connection.resume_writing()
        assert (client.transport.reading, server.budget.used) == (True, 0)
        client.connection.pause_writing()
        sweep(server, 0)
        client.transport.buffered = 400_000
        sweep(server, 11)
        assert not client.transport.aborted
        client.transport.buffered = 399_000
        sweep(server, 22)
        assert client.transport.aborted
        assert server.front_door.faults.counts["too_slow"] == 1

    serve(ECHO, talk)


def test_a_call_whose_answer_is_not_taken_is_left_and_a_stream_is_not() -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(settings_frame({INITIAL_WINDOW_SIZE: 0}))
        answer = b"a" * 50_000
        client.send(client.call(1, answer), client.call(3, answer), client.call(5, answer, path="/s/S"))
        client.send(window_update(1, 5), window_update(3, 5))
        await client.until(lambda sent: sum(each.kind == DATA for each in sent) == 2)
        sweep(server, 0, 9)
        client.send(window_update(1, 20_000))
        sweep(server, 11)
        await client.until(lambda sent: (RST_STREAM, 3) in {(each.kind, each.stream_id) for each in sent})
        assert list(client.connection.http2.streams) == [1, 5]
        assert server.front_door.faults.counts["too_slow"] == 1
        client.send(window_update(1, 50_000))
        assert (await client.status(1))[0] == 0

    serve(ECHO, talk)


def test_a_call_whose_answer_waits_for_those_of_others_is_not_left() -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(settings_frame({INITIAL_WINDOW_SIZE: 1 << 20}))
        client.send(*(client.call(stream_id, b"a" * 200_000) for stream_id in (1, 3)))
        sweep(server, 0)
        for now_s in range(11, 44, 11):
            client.send(window_update(0, 20_000))
            sweep(server, now_s)
        assert list(client.connection.http2.streams) == [1, 3]
        sweep(server, 55)
        assert not client.connection.http2.streams
        assert server.front_door.faults.counts["too_slow"] == 2

    serve(ECHO, talk)


def test_a_call_whose_message_does_not_come_ends() -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(client.headers(1), frame(DATA, 0, 1, prefixed(b"abc")[:6]), client.headers(3, path="/s/S"))
        sweep(server, 0, 119)
        assert len(client.connection.http2.streams) == 2
        sweep(server, 121)
        status, fields, _ = await client.status(1)
        assert (status, fields["grpc-message"]) == (
            code(Status.DEADLINE_EXCEEDED),
            "the message of the call did not arrive in time",
        )
        assert list(client.connection.http2.streams) == [3]

    serve(ECHO, talk)


def test_calls_that_wait_for_their_message_count_and_are_refused_when_the_buffer_is_full() -> None:
    async def talk(server: Http2Server) -> None:
        many, other = Client(server), Client(server)
        many.send(*(many.headers(stream_id) for stream_id in range(1, 181, 2)))
        assert server.budget.used == 90 * OPEN_BYTES
        many.send(many.headers(181, path="/s/S"))
        other.send(other.headers(1), frame(DATA, 0, 1, prefixed(bytes(50_000))[:40_000]))
        other.send(frame(DATA, END_STREAM, 1, bytes(10_005)))
        assert [each.stream_id for each in many.received() if each.kind == HEADERS] == [*range(1, 181, 2)]
        assert list(many.connection.http2.streams) == [181]

    serve(ECHO, talk, budget=Budget(100_000))


def test_large_messages_wait_while_the_buffer_is_nearly_full_and_the_largest_is_refused_when_it_is_full() -> None:
    async def talk(server: Http2Server) -> None:
        small, large, larger = (Client(server) for _ in range(3))
        for client, size in ((large, 300_000), (larger, 600_000)):
            client.send(client.headers(1))
            client.send(frame(DATA, 0, 1, prefixed(bytes(900_000))[:250_000]))
            client.send(*[frame(DATA, 0, 1, bytes(50_000))] * ((size - 250_000) // 50_000))
        assert (large.transport.reading, larger.transport.reading) == (True, False)
        small.send(small.call(1, b"small"))
        assert (await small.status(1))[2] == prefixed(b"small")
        large.send(frame(DATA, 0, 1, bytes(150_000)))
        status, fields, _ = await larger.status(1)
        assert (status, fields["retry-after"]) == (code(Status.UNAVAILABLE), "1")
        assert (large.transport.reading, larger.transport.reading) == (True, True)
        assert server.front_door.faults.counts["no_memory"] == 1
        large.send(frame(DATA, 0, 1, bytes(250_000)), frame(DATA, END_STREAM, 1, bytes(200_005)))
        large.send(window_update(0, 1 << 20), window_update(1, 1 << 20))
        assert len((await large.status(1))[2]) == 900_005

    serve(ECHO, talk, budget=Budget(1_000_000))


def test_a_client_that_takes_no_answers_is_left_when_another_needs_the_room() -> None:
    async def talk(server: Http2Server) -> None:
        greedy, other = Client(server), Client(server)
        for stream_id in range(1, 11, 2):
            greedy.send(greedy.call(stream_id, bytes(200_000)))
        await asyncio.sleep(0)
        assert server.budget.used > 700_000
        other.send(other.call(1, bytes(200_000)), other.call(3, b"x"))
        assert greedy.transport.aborted
        other.send(window_update(0, 1 << 20))
        assert (await other.status(3))[2] == prefixed(b"x")

    serve(ECHO, talk, budget=Budget(1_000_000))


def test_a_flood_is_counted_and_its_client_hears_why_before_the_connection_ends() -> None:
    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(frame(PING, 0, 0, bytes(8)) * 10)
        assert connection_error([await client.end()]) is ErrorCode.ENHANCE_YOUR_CALM
        assert (client.transport.ended, client.transport.closed) == (True, False)
        assert server.front_door.faults.counts["flood"] == 1
        client.send(bytes(LINGER_BYTES))
        assert not client.transport.closed
        client.send(b"x")
        assert client.transport.aborted
        other = Client(server, greets=False)
        other.send(b"GET / HTTP/1.1\r\n\r\n")
        assert server.front_door.faults.counts["malformed"] == 1

    serve(ECHO, talk)


def test_an_error_of_the_server_ends_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def talk(server: Http2Server) -> None:
        client, other = Client(server), Client(server)
        client.connection.http2.receive = None  # type: ignore[method-assign, assignment]
        client.send(b"x")
        assert connection_error([await client.end()]) is ErrorCode.INTERNAL_ERROR
        other.send(other.call(1, b"x"))
        assert (await other.status(1))[2] == prefixed(b"x")

    with caplog.at_level(logging.CRITICAL):
        serve(ECHO, talk)


# -- the end


def test_calls_that_come_while_the_server_stops_are_refused_until_the_client_knows() -> None:
    kept = Kept()

    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(client.call(1, b"open"))
        stopping = asyncio.create_task(server.stop(60))
        await asyncio.sleep(0)
        new = Client(server)
        for each, stream_id in ((client, 3), (new, 1)):
            each.send(each.call(stream_id, b"late"))
            status, fields, _ = await each.status(stream_id)
            assert (status, fields["grpc-message"], fields["retry-after"]) == (
                code(Status.UNAVAILABLE),
                "the server is stopping",
                "1",
            )
        new.transport.close()
        notice, ping = await client.until(lambda frames: len(frames) >= 2)
        assert (notice.kind, ping.kind) == (GOAWAY, PING)
        client.send(client.call(5, b"crosses the notice"))
        assert (await client.status(5))[1]["grpc-message"] == "the server is stopping"
        client.send(frame(PING, ACK, 0, ping.payload))
        last: Frame = await client.end()
        assert int.from_bytes(last.payload[:4], "big") == 5
        assert b"the server is stopping" in (await Client(server, greets=False).end()).payload
        kept.calls[0].finish(b"answer")
        assert (await client.status(1))[2] == prefixed(b"answer")
        await stopping
        assert client.transport.closed

    serve(keeping(kept), talk)


# -- large messages


LARGE = bytes(range(256)) * 2000
FRAME = 200_000


class Taken:
    """A method that takes large messages in memory which it provides, and answers with the SHA of what it got."""

    def __init__(self) -> None:
        self.splits: list[bool] = []
        self.messages: list[bytes] = []

    def begin(self, message: Any, call: Any) -> None:
        is_split = isinstance(message, SplitMessage)
        self.splits.append(is_split)
        self.messages.append(message.joined() if is_split else message)
        call.finish(b"%d" % len(self.messages[-1]))

    @staticmethod
    def memory(size: int, first: bytes) -> tuple[int, memoryview] | None:
        return (50, memoryview(bytearray(size - 50))) if len(first) >= 50 else None


def large_call(client: Client, stream_id: int, message: bytes = LARGE) -> list[bytes]:
    """The frames of a call with a large message."""
    whole = prefixed(message)
    parts = [whole[at : at + FRAME] for at in range(0, len(whole), FRAME)]
    last = len(parts) - 1
    return [
        client.headers(stream_id),
        *(frame(DATA, END_STREAM if at == last else 0, stream_id, part) for at, part in enumerate(parts)),
    ]


@pytest.mark.parametrize("cut", [1000, NEXT_BYTES, 70_000, 1 << 20])
def test_large_messages_are_received_into_their_memory_however_they_are_cut(cut: int) -> None:
    taken = Taken()

    async def talk(server: Http2Server) -> None:
        client = Client(server)
        for stream_id in (1, 3, 5):
            sent = b"".join(large_call(client, stream_id))
            for at in range(0, len(sent), cut):
                client.send(sent[at : at + cut])
            assert (await client.status(stream_id))[2] == prefixed(b"%d" % len(LARGE))
        client.send(client.call(7, b"small"))
        assert (await client.status(7))[2] == prefixed(b"5")

    serve({"M": grpc.unary_unary_rpc_method_handler(taken.begin)}, talk, memory=taken.memory)
    assert taken.splits == [True, True, True, False]
    assert taken.messages == [LARGE, LARGE, LARGE, b"small"]


def test_frames_of_large_messages_may_take_turns() -> None:
    taken = Taken()
    others = [LARGE[::-1], LARGE]

    async def talk(server: Http2Server) -> None:
        client = Client(server)
        calls = [large_call(client, stream_id, message) for stream_id, message in zip((1, 3), others, strict=True)]
        sent = b"".join(b"".join(turn) for turn in zip(*calls, strict=True))
        client.send(sent[:300_000])
        assert isinstance(client.transport.get_protocol(), LargeFrames)
        client.send(sent[300_000:])
        await client.until(lambda found: len(taken.messages) == 2)
        for stream_id in range(5, 105, 2):
            client.send(client.call(stream_id, bytes(100)))
        await client.until(lambda found: len(taken.messages) == 52)

    serve({"M": grpc.unary_unary_rpc_method_handler(taken.begin)}, talk, memory=taken.memory)
    assert sorted(taken.messages[:2]) == sorted(others)


def test_many_small_calls_after_a_large_one_are_read_as_before() -> None:
    taken = Taken()

    async def talk(server: Http2Server) -> None:
        client = Client(server)
        sent = b"".join(large_call(client, 1))
        client.send(sent[:100_000])
        client.send(sent[100_000:])
        client.send(*(client.call(stream_id, bytes(100)) for stream_id in range(3, 203, 2)))
        assert client.transport.get_protocol() is client.connection
        await client.until(lambda found: len(taken.messages) == 101)

    serve({"M": grpc.unary_unary_rpc_method_handler(taken.begin)}, talk, memory=taken.memory)


@pytest.mark.parametrize("ends", ["reset", "deadline", "lost"])
def test_a_call_that_ends_within_a_large_message_leaves_the_connection_alone(ends: str) -> None:
    taken = Taken()

    async def talk(server: Http2Server) -> None:
        client = Client(server)
        more = (("grpc-timeout", "1m"),) if ends == "deadline" else ()
        head, first, *rest = [client.headers(1, *more), *large_call(Client(server), 1)[1:]]
        sent = head + first
        client.send(sent[:100_000])
        client.send(sent[100_000:150_000])
        assert server.front_door.budget.used > 140_000
        if ends == "lost":
            client.transport.close()
            return
        if ends == "deadline":
            assert (await client.status(1))[0] == code(Status.DEADLINE_EXCEEDED)
            client.send(sent[150_000:], *rest)
        else:
            client.send(sent[150_000:], reset(1, ErrorCode.CANCEL))
        client.send(*large_call(client, 3))
        assert (await client.status(3))[2] == prefixed(b"%d" % len(LARGE))

    serve({"M": grpc.unary_unary_rpc_method_handler(taken.begin)}, talk, memory=taken.memory)
    assert taken.messages == ([] if ends == "lost" else [LARGE])


@pytest.mark.parametrize("seed", range(20))
def test_messages_of_any_size_in_any_frames_cut_anywhere_arrive_whole(seed: int) -> None:
    source = random.Random(seed)
    taken = Taken()
    messages = [source.randbytes(source.choice((0, 40, 5000, 70_000, 300_000))) for _ in range(6)]

    async def talk(server: Http2Server) -> None:
        client = Client(server)
        client.send(*(client.headers(2 * number + 1) for number in range(len(messages))))
        left = {2 * number + 1: prefixed(message) for number, message in enumerate(messages)}
        sent = b""
        while left:
            stream_id = source.choice(list(left))
            size = source.choice((1, 7, 100, 16_384, 100_000, 250_000))
            part, left[stream_id] = left[stream_id][:size], left[stream_id][size:]
            is_last = not left[stream_id]
            padding = source.choice((0, 0, 0, 9))
            payload = bytes((padding,)) + part + bytes(padding) if padding else part
            flags = (END_STREAM if is_last else 0) | (0x8 if padding else 0)
            sent += frame(DATA, flags, stream_id, payload)
            if is_last:
                del left[stream_id]
        cuts = sorted(source.randrange(len(sent)) for _ in range(source.choice((0, 5, 100))))
        for begin, end in pairwise([0, *cuts, len(sent)]):
            client.send(sent[begin:end])
        await client.until(lambda found: len(taken.messages) == len(messages))

    serve({"M": grpc.unary_unary_rpc_method_handler(taken.begin)}, talk, memory=taken.memory)
    assert sorted(taken.messages) == sorted(messages)
