"""Requests that a front end passes on, to a server that a test plays."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sluice.gateway.front_ends.relay import Relay
from sluice.models.errors import BackendUnavailable

MAX_CALLS = 2
Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello"
SCOPE = {
    "method": "POST",
    "raw_path": b"/v2/models/a%20b/load",
    "query_string": b"x=1",
    "client": ("192.0.2.7", 5),
    "server": ("192.0.2.1", 80),
}


class Client:
    """A client's side of one ASGI call."""

    def __init__(self, *body: bytes, leaves: bool = False) -> None:
        self._messages = [
            {"type": "http.request", "body": each, "more_body": index < len(body) - 1}
            for index, each in enumerate(body)
        ]
        self._leaves = leaves
        self.sent: list[dict[str, Any]] = []
        self.received = 0

    async def receive(self) -> dict[str, Any]:
        self.received += 1
        if self._messages:
            return self._messages.pop(0)
        if not self._leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    @property
    def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        first, *rest = self.sent
        return first["status"], dict(first["headers"]), b"".join(each["body"] for each in rest)


@asynccontextmanager
async def relayed(play: Play) -> AsyncIterator[tuple[Relay, list[asyncio.Task[None]]]]:
    """A relay, and the servers of its connections, which have ended as they should after the block."""
    playing: list[asyncio.Task[None]] = []

    async def serve(taken: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=taken)
        try:
            await play(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    def hand_over(theirs: socket.socket) -> None:
        playing.append(asyncio.ensure_future(serve(theirs.dup())))

    relay = Relay(hand_over, MAX_CALLS)
    yield relay, playing
    relay.close()
    await asyncio.gather(*playing)
    await asyncio.sleep(0.01)


async def head_of(reader: asyncio.StreamReader) -> tuple[bytes, dict[bytes, bytes]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
    return first, {name: value for name, _, value in (line.partition(b": ") for line in lines)}


def test_a_request_is_passed_on_with_the_ends_of_its_connection() -> None:
    heads: list[tuple[bytes, dict[bytes, bytes]]] = []
    bodies: list[bytes] = []

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            heads.append(await head_of(reader))
            bodies.append(await reader.readexactly(6))
            writer.write(OK)

    async def run() -> None:
        async with relayed(play) as (relay, playing):
            headers = [
                (b"host", b"me"),
                (b"connection", b"keep-alive"),
                (b"x-sluice-relayed", b"a lie"),
                (b"x-sluice-call", b"1"),
                (b"content-length", b"6"),
            ]
            for _ in range(2):  # over one connection
                client = Client(b"abc", b"def")
                await relay({**SCOPE, "headers": headers}, client.receive, client.send)
                assert client.answer == (200, {b"content-type": b"text/plain", b"content-length": b"5"}, b"hello")
            assert len(playing) == 1

    asyncio.run(run())
    first, head = heads[0]
    assert first == b"POST /v2/models/a%20b/load?x=1 HTTP/1.1"
    addresses = json.loads(head.pop(b"x-sluice-relayed"))
    assert addresses == [["192.0.2.7", 5], ["192.0.2.1", 80]]
    assert head == {b"host": b"me", b"content-length": b"6"}
    assert bodies == [b"abcdef", b"abcdef"]


def test_chunks_are_passed_on_in_both_directions() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, head = await head_of(reader)
        assert head[b"transfer-encoding"] == b"chunked"
        assert await reader.readuntil(b"0\r\n\r\n") == b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\n1\r\ne\r\n0\r\n\r\n")

    async def run() -> None:
        async with relayed(play) as (relay, _):
            client = Client(b"abc", b"de")
            await relay({**SCOPE, "headers": [(b"transfer-encoding", b"chunked")]}, client.receive, client.send)
            assert client.answer == (200, {}, b"abcde")

    asyncio.run(run())


def test_a_body_that_waits_for_the_server_is_sent_when_it_asks() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, head = await head_of(reader)
        assert head[b"expect"] == b"100-continue"
        assert client.received == 0
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(3) == b"abc"
        writer.write(OK)

    client = Client(b"abc")

    async def run() -> None:
        async with relayed(play) as (relay, _playing):
            headers = [(b"expect", b"100-continue"), (b"content-length", b"3")]
            await relay({**SCOPE, "headers": headers}, client.receive, client.send)

    asyncio.run(run())
    assert client.answer[2] == b"hello"


def test_an_answer_to_head_has_no_body_and_a_closing_server_closes_the_client_too() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 503 No\r\ncontent-length: 5\r\nconnection: close\r\n\r\n")
        await writer.drain()

    async def run() -> None:
        async with relayed(play) as (relay, playing):
            for number in (1, 2):
                client = Client(b"")
                await relay({**SCOPE, "method": "HEAD", "headers": []}, client.receive, client.send)
                assert client.answer == (503, {b"content-length": b"5", b"connection": b"close"}, b"")
                assert len(playing) == number

    asyncio.run(run())


def test_the_server_hears_that_a_client_has_left() -> None:
    left = asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        assert await reader.read() == b""
        left.set()

    async def run() -> None:
        async with relayed(play) as (relay, _playing):
            client = Client(b"", leaves=True)
            await relay({**SCOPE, "headers": []}, client.receive, client.send)
            await left.wait()
            assert client.sent == []

    asyncio.run(run())


def test_a_client_that_leaves_while_it_is_answered_is_no_error() -> None:
    class Leaving(Client):
        """A client whose connection has ended, of which `receive` hears after `send`."""

        def __init__(self) -> None:
            super().__init__(b"", leaves=True)
            self.has_left = asyncio.Event()

        async def receive(self) -> dict[str, Any]:
            if not self._messages:
                await self.has_left.wait()
            return await super().receive()

        async def send(self, message: dict[str, Any]) -> None:
            asyncio.get_running_loop().call_soon(self.has_left.set)
            raise RuntimeError("the handler is closed")

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(OK)

    async def run() -> None:
        async with relayed(play) as (relay, _playing):
            client = Leaving()
            await relay({**SCOPE, "headers": []}, client.receive, client.send)

    asyncio.run(run())


def test_without_an_answer_clients_get_503() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.close()

    async def run() -> None:
        async with relayed(play) as (relay, _):
            client = Client(b"")
            await relay({**SCOPE, "headers": []}, client.receive, client.send)
            status, headers, body = client.answer
            assert (status, headers[b"retry-after"], json.loads(body)) == (
                503,
                b"1",
                {"error": "the server is stopping"},
            )
            with pytest.raises(BackendUnavailable, match="the server is stopping"):
                await relay.infer(b"/v2/models/a/infer", [], b"abc", None, None)

    asyncio.run(run())


def test_the_number_of_calls_that_are_passed_on_at_a_time_is_bounded() -> None:
    given = 0
    most = 0

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal given, most
        while True:
            try:
                _, head = await head_of(reader)
            except EOFError:
                return
            assert head[b"x-sluice-call"] == b"1"
            assert await reader.readexactly(3) == b"abc"
            given += 1
            most = max(most, given)
            await asyncio.sleep(0.001)
            given -= 1
            writer.write(OK)

    async def run() -> None:
        async with relayed(play) as (relay, playing):
            answers = await asyncio.gather(*(relay.call(b"abc") for _ in range(5 * MAX_CALLS)))
            assert answers == [b"hello"] * (5 * MAX_CALLS)
            assert (len(playing), most) == (MAX_CALLS, MAX_CALLS)

    asyncio.run(run())


def test_an_inference_request_is_passed_on_with_its_decoded_body() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, head = await head_of(reader)
        assert first == b"POST /v2/models/a/infer HTTP/1.1"
        assert head == {b"x-id": b"7", b"content-length": b"3", b"x-sluice-relayed": b"[null,null]"}
        assert await reader.readexactly(3) == b"abc"
        writer.write(OK)

    async def run() -> None:
        async with relayed(play) as (relay, _playing):
            headers = [
                (b"x-id", b"7"),
                (b"content-encoding", b"gzip"),
                (b"content-length", b"50"),
                (b"expect", b"100-continue"),
            ]
            answer = await relay.infer(b"/v2/models/a/infer", headers, b"abc", None, None)
            assert answer == (200, [(b"content-type", b"text/plain")], b"hello", True)

    asyncio.run(run())
