"""The port that has the metrics, and the page beside them."""

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from sluice.gateway.config.restricted import ApiGroup, RestrictedSettings, Restrictions
from sluice.gateway.http.metrics_server import MAX_CONNECTIONS, MAX_HEAD_BYTES, MetricsServer, PageAccess
from sluice.gateway.http.page_files import PageFiles
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.overview.live import LiveOverview
from sluice.models.errors import ConfigError, NotFoundError
from sluice.models.pipelines.pipeline import Pipeline, Stage, TensorSource
from tests.support.gateway.overview import PlayedServer
from tests.unit.gateway.instant_gateway import until

TIMEOUT_S = 30


class Exposition:
    async def scrape(self) -> bytes:
        return b"sluice_requests_total 3\n"


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


class Page:
    """A metrics port with the page, and a played server behind it."""

    def __init__(self, folder: Path, restrictions: Restrictions | None = None) -> None:
        (folder / "index.html").write_text("<!doctype html>")
        (folder / "page.css").write_text("body{}")
        played = PlayedServer(MODEL)
        self.registry = played.registry
        self.overview = LiveOverview(played.sources)
        access = PageAccess(PageFiles(folder), self.overview, self._explain)
        self.server = MetricsServer(
            cast(ServerMetrics, Exposition()), "127.0.0.1", 0, restrictions=restrictions, page=access
        )

    def _explain(self, id: str) -> bytes:
        if id != "a b":
            raise NotFoundError(f"request '{id}' is not remembered")
        return b'{"id":"a b"}'

    def ask(self, *lines: str) -> bytes:
        """The answer to a request, which the server ends."""

        async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
            writer.write("\r\n".join([*lines, "", ""]).encode())
            return await asyncio.wait_for(reader.read(), TIMEOUT_S)

        return self.talk(conversation)

    def talk(
        self, conversation: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, bytes]]
    ) -> bytes:
        async def run() -> bytes:
            await self.server.start()
            reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
            try:
                return await conversation(reader, writer)
            finally:
                writer.close()
                await self.server.stop()

        return asyncio.run(run())


MODEL = Pipeline("m", 1, (), (), (Stage("m", {"x": TensorSource("request", "x")}, model="m:1"),), {}, 8)


def test_the_page_its_files_and_the_document_are_on_this_port_too(tmp_path: Path) -> None:
    html = Page(tmp_path).ask("GET / HTTP/1.1", "Accept: text/html")
    assert html.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\n")
    assert b"\r\ncontent-security-policy: default-src 'self';" in html
    assert html.endswith(b"\r\n\r\n<!doctype html>")
    assert Page(tmp_path).ask("GET / HTTP/1.1").endswith(b'{"status":"alive"}')
    without = Page(tmp_path)
    (tmp_path / "index.html").unlink()
    assert without.ask("GET / HTTP/1.1", "Accept: text/html").endswith(b'{"status":"alive"}')
    css = Page(tmp_path).ask("GET /page/page.css HTTP/1.1")
    assert css.endswith(b"\r\n\r\nbody{}")
    etag = css.partition(b"etag: ")[2].partition(b"\r\n")[0].decode()
    again = Page(tmp_path).ask("GET /page/page.css HTTP/1.1", f"If-None-Match: {etag}")
    assert again.startswith(b"HTTP/1.1 304 Not Modified\r\n")
    assert again.endswith(b"content-length: 0\r\nconnection: close\r\n\r\n")
    head = Page(tmp_path).ask("HEAD /page/page.css HTTP/1.1")
    assert head == css.removesuffix(b"body{}")
    events = Page(tmp_path).ask("HEAD /v2/sluice/now/events HTTP/1.1")
    assert events.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n")
    document = Page(tmp_path).ask("GET /v2/sluice/now?pipeline=m HTTP/1.1")
    assert document.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncache-control: no-store\r\n")
    assert json.loads(document.partition(b"\r\n\r\n")[2])["pipeline"]["name"] == "m:1"
    explained = Page(tmp_path).ask("GET /v2/sluice/requests/a%20b HTTP/1.1")
    assert explained.endswith(b'\r\n\r\n{"id":"a b"}')


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/page/nothing", b"404 Not Found"),
        ("/page/%2e%2e/secret", b"404 Not Found"),
        ("/v2/models/m", b"404 Not Found"),
        ("/v2/sluice/requests/gone", b"404 Not Found"),
        ("/v2/sluice/now?since=x", b"400 Bad Request"),
        ("/v2/sluice/now/events?bars_since=x", b"400 Bad Request"),
    ],
)
def test_what_this_port_does_not_have_is_refused(tmp_path: Path, target: str, expected: bytes) -> None:
    answer = Page(tmp_path).ask(f"GET {target} HTTP/1.1")
    assert answer.startswith(b"HTTP/1.1 " + expected + b"\r\ncontent-type: application/json\r\n")
    assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])
    assert Page(tmp_path).ask("POST /v2/sluice/now HTTP/1.1").startswith(b"HTTP/1.1 405 ")


def test_the_groups_hold_on_this_port_as_well(tmp_path: Path) -> None:
    keys = Restrictions([RestrictedSettings((ApiGroup.PAGE, ApiGroup.EXPLAIN), "page-key", "s3cret")])
    for target in ("/", "/page/page.css", "/v2/sluice/now", "/v2/sluice/now/events", "/v2/sluice/requests/a"):
        assert Page(tmp_path, keys).ask(f"GET {target} HTTP/1.1", "Accept: text/html").startswith(b"HTTP/1.1 403 ")
    assert Page(tmp_path, keys).ask("GET /metrics HTTP/1.1").startswith(b"HTTP/1.1 200 ")
    assert Page(tmp_path, keys).ask("GET /v2/sluice/now HTTP/1.1", "Page-Key: s3cret").startswith(b"HTTP/1.1 200 ")


def test_events_come_until_the_server_stops_and_make_no_room_for_others(tmp_path: Path) -> None:
    page = Page(tmp_path)

    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"GET /v2/sluice/now/events HTTP/1.1\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        assert b"\r\ncontent-type: text/event-stream; charset=utf-8\r\n" in head
        assert (await asyncio.wait_for(reader.readuntil(b"\n\n"), TIMEOUT_S)).startswith(b"data: {")
        others = [await asyncio.open_connection("127.0.0.1", page.server.port) for _ in range(MAX_CONNECTIONS + 1)]
        assert page.overview.viewers == 1
        page.registry.start_draining()
        rest = await asyncio.wait_for(reader.read(), TIMEOUT_S)
        for _, each in others:
            each.close()
        return rest

    last = page.talk(conversation)
    assert json.loads(last.removeprefix(b"data: "))["server"]["state"] == "draining"
    assert page.overview.viewers == 0


def test_a_viewer_that_leaves_this_port_costs_nothing_more(tmp_path: Path) -> None:
    page = Page(tmp_path)

    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"GET /v2/sluice/now/events HTTP/1.1\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"\n\n"), TIMEOUT_S)
        writer.close()
        await until(lambda: not page.overview.viewers)
        return b""

    page.talk(conversation)
