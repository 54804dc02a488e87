"""The HTTP server on real sockets: clients that go away, send ahead, or are too many."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.http_server import HttpServer, http_server
from models.tensor import DataType
from tests.unit.gateway.front import Front, front, identity

WIDTH = 50_000


@pytest.fixture
def served() -> Front:
    return front(identity("m", ("x", DataType.FP32, (WIDTH,))))


def serve(served: Front, talk: Callable[[HttpServer], Awaitable[None]], max_connections: int = 16) -> None:
    async def run() -> None:
        server = http_server(served.app, "127.0.0.1", 0, max_connections)
        serving = asyncio.create_task(server.serve())
        try:
            await talk(server)
        finally:
            server.should_exit = True
            await serving

    asyncio.run(run())


def post(head: bytes, body: bytes) -> bytes:
    lines = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nInference-Header-Content-Length: %d\r\n" % len(head)
    return lines + b"Content-Length: %d\r\n\r\n" % (len(head) + len(body)) + head + body


REQUEST = post(
    b'{"inputs":[{"name":"x","shape":[1,%d],"datatype":"FP32","parameters":{"binary_data_size":%d}}]}'
    % (WIDTH, 4 * WIDTH),
    bytes(4 * WIDTH),
)


def test_a_client_that_disconnects_cancels_its_request_even_after_a_large_body(served: Front) -> None:
    served.runtime.hold = True

    async def talk(server: HttpServer) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(REQUEST)
        await asyncio.wait_for(served.runtime.arrived.wait(), 10)
        assert served.runtime.cancelled == []
        writer.close()
        await asyncio.wait_for(served.runtime.gone.wait(), 10)
        assert served.runtime.cancelled == [1]

    serve(served, talk)


def test_requests_sent_ahead_are_answered_in_order(served: Front) -> None:
    async def talk(server: HttpServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(REQUEST + b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n" + REQUEST)
        kinds = []
        for _ in range(3):
            head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).lower()
            length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            kinds.append((head.split(b"\r\n")[0], length > 0))
        assert kinds == [(b"http/1.1 200 ok", True), (b"http/1.1 200 ok", False), (b"http/1.1 200 ok", True)]
        writer.close()

    serve(served, talk)


def test_clients_beyond_the_limit_are_told_so(served: Front) -> None:
    async def talk(server: HttpServer) -> None:
        first: Any = await asyncio.open_connection("127.0.0.1", server.port)
        first[1].write(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await first[0].readline()).startswith(b"HTTP/1.1 200")
        second, writer = await asyncio.open_connection("127.0.0.1", server.port)
        answer = await asyncio.wait_for(second.read(), 10)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.endswith(b'{"error":"the server has 1 connections, which is its limit"}')
        writer.close()
        first[1].close()

    serve(served, talk, max_connections=1)


def test_a_port_that_is_taken_is_an_error_at_once(served: Front) -> None:
    async def talk(server: HttpServer) -> None:
        with pytest.raises(OSError, match="Address already in use"):
            http_server(served.app, "127.0.0.1", server.port)

    serve(served, talk)
