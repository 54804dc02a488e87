"""The port that has the metrics and nothing else."""

import asyncio
import socket
from typing import cast

import pytest

from sluice.gateway.http.metrics_server import MAX_CONNECTIONS, MAX_HEAD_BYTES, MetricsServer
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.observability.openmetrics import TEXT
from sluice.models.errors import ConfigError

TIMEOUT_S = 30


class Exposition:
    async def scrape_as(self, accept: str) -> tuple[list[bytes], str]:
        assert not accept
        return [b"sluice_requests_total", b" 3\n"], TEXT


def answered(*sent: bytes) -> list[bytes]:
    """The answers to the bytes sent, each on a connection of its own, until that is closed."""

    async def ask() -> list[bytes]:
        server = MetricsServer(cast(ServerMetrics, Exposition()), "127.0.0.1", 0)
        await server.start()
        replies = []
        for each in sent:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(each)
            try:
                replies.append(await asyncio.wait_for(reader.read(), TIMEOUT_S))
            except ConnectionResetError:
                replies.append(b"")
            writer.close()
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        return replies

    return asyncio.run(ask())


def test_metrics_are_reported_and_nothing_else() -> None:
    metrics, head, other, posted = answered(
        b"GET /metrics?x=1 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"HEAD /metrics HTTP/1.1\r\n\r\n",
        b"GET /v2/models/stats HTTP/1.1\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\n\r\n",
    )
    assert metrics == (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\ncontent-length: 24\r\n"
        b"connection: close\r\n\r\nsluice_requests_total 3\n"
    )
    assert head == metrics.removesuffix(b"sluice_requests_total 3\n")
    assert other.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert posted.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")


def test_a_port_that_is_taken_is_reported_with_what_it_was_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"^metrics port 127.0.0.1:{port} cannot be bound: Address already in use$"
        ):
            MetricsServer(cast(ServerMetrics, Exposition()), "127.0.0.1", port)


def test_a_client_that_sends_too_much_gets_no_answer_and_the_next_one_does() -> None:
    too_much, next_one = answered(b"GET /metrics" + b"x" * 4 * MAX_HEAD_BYTES, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert too_much == b""
    assert next_one.endswith(b"sluice_requests_total 3\n")


def test_clients_that_send_nothing_make_room() -> None:
    async def ask() -> bytes:
        server = MetricsServer(cast(ServerMetrics, Exposition()), "127.0.0.1", 0)
        await server.start()
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MAX_CONNECTIONS)]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        reply = await asyncio.wait_for(reader.read(), TIMEOUT_S)
        assert await asyncio.wait_for(idle[0][0].read(), TIMEOUT_S) == b""
        for _, each in (*idle, (reader, writer)):
            each.close()
        await server.stop()
        return reply

    assert asyncio.run(ask()).startswith(b"HTTP/1.1 200 OK")
