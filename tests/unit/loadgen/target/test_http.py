"""The client of HTTP/1.1 against small servers that answer when a test wants it."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.loadgen.records.record import Status
from sluice.loadgen.target.base import TargetRequest, TargetUnreachable
from sluice.loadgen.target.http import HttpTarget
from sluice.models.client_tls import ClientTls
from sluice.models.errors import ConfigError
from tests.support.certificates import certificate
from tests.unit.loadgen.target.listener import Listener

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
REQUEST = TargetRequest("m", {"x": np.array([[1.0, 2.0]], np.float32)})

Answer = Callable[["PlayedServer", bytes, asyncio.StreamWriter], Awaitable[None]]


async def at_once(server: "PlayedServer", head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(ANSWER)


async def when_opened(server: "PlayedServer", head: bytes, writer: asyncio.StreamWriter) -> None:
    await server.gate.wait()
    writer.write(ANSWER)


class PlayedServer:
    """A server that counts connections, keeps the heads of requests, and answers them as a test wants."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.connections = 0
        self.gate = asyncio.Event()
        self.changed = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self.changed:
            self.connections += 1
            self.changed.notify_all()
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.partition(b"\r\nContent-Length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
                async with self.changed:
                    self.heads.append(head)
                    self.changed.notify_all()
                await self.answer(self, head, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(condition)


@asynccontextmanager
async def playing(answer: Answer = at_once, context: ssl.SSLContext | None = None) -> Any:
    played = PlayedServer(answer)
    async with await asyncio.start_server(played.serve, "127.0.0.1", 0, ssl=context) as listening:
        scheme = "http" if context is None else "https"
        yield played, f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def prepared(url: str, listener: Listener, request: TargetRequest = REQUEST, **settings: Any) -> HttpTarget:
    target = HttpTarget(url, **({"connections": 4} | settings))
    await target.prepare({0: request}, listener, keep_answers=False)
    return target


def test_one_query_of_three_asks_for_the_times_of_stages() -> None:
    async def run() -> list[bytes]:
        async with playing() as (server, url):
            listener = Listener()
            target = await prepared(url, listener, explain_every=3, connections=1)
            for query in range(7):
                target.issue(query, 0)
            await listener.wait(7)
            await target.close()
            assert isinstance(server, PlayedServer)
            return server.heads

    heads = asyncio.run(run())
    assert [b"x-sluice-explain: 1" in head for head in heads] == [True, False, False, True, False, False, True]


def test_headers_and_options_go_with_every_query() -> None:
    async def run() -> list[bytes]:
        async with playing() as (server, url):
            listener = Listener()
            target = await prepared(url, listener, headers=[("admin-key", "secret")])
            target.issue(1, 0)
            await listener.wait(1)
            await target.close()
            return list(server.heads)

    (head,) = asyncio.run(run())
    assert b"\r\nadmin-key: secret\r\n" in head


def test_a_cancelled_query_ends_at_once_and_its_connection_is_replaced() -> None:
    async def run() -> None:
        async with playing(when_opened) as (server, url):
            listener = Listener()
            target = await prepared(url, listener, connections=2)
            for query in range(4):  # two are sent, and two wait
                target.issue(query, 0)
            assert listener.waited == [2, 3]
            await server.until(lambda: len(server.heads) == 2)
            target.cancel(0)
            target.cancel(3)
            target.cancel(3)
            assert {query: ended.status for query, ended in listener.ended.items()} == {
                0: Status.CANCELLED,
                3: Status.CANCELLED,
            }
            await server.until(lambda: server.connections == 3)
            server.gate.set()
            await listener.wait(4)
            assert listener.ended[1].status is Status.OK
            assert listener.ended[2].status is Status.OK
            target.cancel(1)  # it has ended: nothing happens
            await target.close()

    asyncio.run(run())


def test_queries_beyond_the_bound_are_dropped_whether_they_would_wait_or_not() -> None:
    async def run(connections: int) -> dict[int, str]:
        async with playing(when_opened) as (server, url):
            listener = Listener()
            target = await prepared(url, listener, connections=connections, max_outstanding=3)
            for query in range(5):
                target.issue(query, 0)
            dropped = {query: ended.reason for query, ended in listener.ended.items()}
            server.gate.set()
            await listener.wait(5)
            await target.close()
            return dropped

    for connections in (1, 8):
        assert asyncio.run(run(connections)) == dict.fromkeys((3, 4), "3 queries were outstanding")


def test_a_unix_socket_serves_as_well(tmp_path: Path) -> None:
    async def run() -> Listener:
        played, listener = PlayedServer(at_once), Listener()
        async with await asyncio.start_unix_server(played.serve, str(tmp_path / "s")):
            for scheme in ("unix", "http+unix"):
                target = await prepared(f"{scheme}://{tmp_path}/s", listener)
                target.issue(len(listener.ended), 0)
                await listener.wait(len(listener.ended) + 1)
                await target.close()
        return listener

    listener = asyncio.run(run())
    assert [ended.status for ended in listener.ended.values()] == [Status.OK, Status.OK]


def test_a_unix_socket_without_a_server_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetUnreachable, match=f"^--target {tmp_path}/s: .*No such file"):
        asyncio.run(HttpTarget(f"unix://{tmp_path}/s", 1).metadata("m"))


@pytest.mark.parametrize("url", ["unix://", "unix://host/s", "http://", "http://x:y", "http://x:1/v2", "http://x:0"])
def test_an_address_without_a_place_or_with_more_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=f"^--target: expected http://host:port, .*, got {url}$"):
        HttpTarget(url, 1)


def test_a_request_larger_than_the_socket_takes_arrives_whole() -> None:
    async def run(context: ssl.SSLContext | None = None, tls: ClientTls | None = None) -> Listener:
        large = TargetRequest("m", {"x": np.zeros((4000, 1000), np.float32)})
        async with playing(at_once, context) as (_, url):
            listener = Listener()
            target = await prepared(url, listener, large, **({} if tls is None else {"tls": tls}))
            for query in range(3):
                target.issue(query, 0)
            await listener.wait(3)
            await target.close()
            return listener

    assert [ended.status for ended in asyncio.run(run()).ended.values()] == [Status.OK] * 3


def test_over_tls_requests_arrive_as_well(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")

    async def run() -> Listener:
        async with playing(at_once, context) as (_, url):
            listener = Listener()
            target = await prepared(url, listener, tls=ClientTls(str(tmp_path / "server.pem")))
            for query in range(10):
                target.issue(query, 0)
            await listener.wait(10)
            await target.close()
            return listener

    assert [ended.status for ended in asyncio.run(run()).ended.values()] == [Status.OK] * 10


def test_a_server_that_closes_after_each_answer_gets_all_queries() -> None:
    async def and_close(server: PlayedServer, head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def run() -> Listener:
        async with playing(and_close) as (_, url):
            listener = Listener()
            target = await prepared(url, listener, connections=2)
            for query in range(20):
                target.issue(query, 0)
            await listener.wait(20)
            await target.close()
            return listener

    assert [ended.status for ended in asyncio.run(run()).ended.values()] == [Status.OK] * 20


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (404, b'{"error": "no m"}', ConfigError, r'--model m: .* answered 404 \{"error": "no m"\}$'),
        (401, b"no key", ConfigError, "--model m: .* answered 401 no key$"),
        (501, b"<p>\n  Error\n</p>", TargetUnreachable, "does not speak V2: it answered 501 <p> Error </p>; a server"),
    ],
)
def test_a_server_of_another_protocol_differs_from_an_unknown_model(
    status: int, body: bytes, error: type[Exception], message: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        writer.close()

    async def ask() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await HttpTarget(f"http://127.0.0.1:{port}", 1).metadata("m")

    with pytest.raises(error, match=message):
        asyncio.run(ask())
