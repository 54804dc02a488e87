"""The metrics on a port of their own, as Triton has them, and the page beside them."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

import orjson

from sluice.gateway.config.restricted import ApiGroup, Restrictions
from sluice.gateway.front_door.listener import listen
from sluice.gateway.http.access import AccessRules
from sluice.gateway.http.exchange import error_response
from sluice.gateway.http.page_files import EVENT_HEADERS, EVENT_TYPE, PageFiles, read_question, send_events, wants_html
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.overview.document import Question
from sluice.gateway.overview.live import LiveOverview
from sluice.models.errors import ServingError

MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 16 << 10
HEAD_TIMEOUT_S = 10.0
"""Time for a client to send its request and to read the answer."""
STREAM_BYTES = 64 << 10
"""Bytes of a stream that may wait for a viewer that does not read, here and in the kernel each."""

_EXPLANATION = "/v2/sluice/requests/"
_JSON = {"content-type": "application/json"}


class PageAccess(NamedTuple):
    """The parts of the page: its files, the document of what the server does now, and explanations of requests as JSON.

    `explain` raises ServingError for a request that is not remembered.
    """

    files: PageFiles
    overview: LiveOverview
    explain: Callable[[str], bytes]


class _Request(NamedTuple):
    method: bytes
    path: str
    query: dict[str, str]
    headers: dict[str, str]


class _Answer(NamedTuple):
    status: str
    headers: Mapping[str, str]
    body: bytes


class MetricsServer:
    """Answers `GET /metrics` over HTTP, one request per connection, and with `page` the routes that the page needs.

    The port is bound by the constructor. The rules of `access` must allow a request, and it must have the key of the
    group, if that has one. Port 0 takes a free one. Raises ConfigError if the port cannot be bound.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        host: str,
        port: int,
        access: AccessRules | None = None,
        restrictions: Restrictions | None = None,
        page: PageAccess | None = None,
    ) -> None:
        self._metrics = metrics
        self._access = access or AccessRules()
        self._restrictions = restrictions or Restrictions()
        self._page = page
        self._listener = listen("metrics", host, port)
        self.port: int = self._listener.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._streams: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Start answering."""
        self._server = await asyncio.start_server(self._connected, sock=self._listener, limit=MAX_HEAD_BYTES)

    async def stop(self) -> None:
        """Stop answering and close all connections."""
        if self._server is not None:
            self._server.close()
        self._listener.close()
        for writer in (*self._open, *self._streams):
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:  # the oldest makes room, since it may only be idle
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.close()
        self._open[writer] = None
        try:
            # A client that is too slow, sends too much or disconnects gets no answer.
            with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
                async with asyncio.timeout(HEAD_TIMEOUT_S):
                    request = _read_head(await reader.readuntil(b"\r\n\r\n"))
                    answer = await self._answer(request, writer)
                    if isinstance(answer, _Answer):
                        writer.write(_response(answer, with_body=request.method != b"HEAD"))
                        await writer.drain()
                if not isinstance(answer, _Answer):
                    await self._stream(answer, reader, writer)
        finally:
            self._open.pop(writer, None)
            self._streams.discard(writer)
            writer.close()

    async def _answer(self, request: _Request, writer: asyncio.StreamWriter) -> _Answer | AsyncGenerator[bytes]:
        """The answer to a request, or the documents to stream."""
        host = request.headers["host"].encode("latin-1") if "host" in request.headers else None
        if not self._access.knows_host(host, writer.get_extra_info("sockname")[:2]):
            return _error("421 Misdirected Request", "expected a name of this server as the host")
        group = self._group(request.path)
        if group is None:
            return _error("404 Not Found", "Not Found")
        if refusal := self._restrictions.refusal(group, request.headers):
            return _error("403 Forbidden", refusal)
        if request.method not in (b"GET", b"HEAD"):
            return _error("405 Method Not Allowed", "Method Not Allowed")
        if group is ApiGroup.METRICS:
            body = await self._metrics.scrape()
            return _Answer("200 OK", {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, body)
        assert self._page is not None, "there is a page, since there is a group"
        try:
            return await self._of_page(request, self._page)
        except ServingError as error:
            status, _, body = error_response(error)
            return _Answer(f"{status} {_REASONS.get(status, 'Error')}", _JSON, body)

    def _group(self, path: str) -> ApiGroup | None:
        """The group of a path; None for a path that is not answered here."""
        if path == "/metrics":
            return ApiGroup.METRICS
        if self._page is None:
            return None
        if path.startswith(_EXPLANATION):
            return ApiGroup.EXPLAIN
        is_page = path in ("/", "/v2/sluice/now", "/v2/sluice/now/events") or path.startswith("/page/")
        return ApiGroup.PAGE if is_page else None

    async def _of_page(self, request: _Request, page: PageAccess) -> _Answer | AsyncGenerator[bytes]:
        path = request.path
        if path.startswith(_EXPLANATION):
            return _Answer("200 OK", _JSON, page.explain(unquote(path.removeprefix(_EXPLANATION))))
        if path == "/v2/sluice/now":
            body = await page.overview.document(self._question(request))
            return _Answer("200 OK", {**_JSON, "cache-control": "no-store"}, body)
        if path == "/v2/sluice/now/events":
            question = self._question(request)
            if request.method == b"HEAD":
                return _Answer("200 OK", {"content-type": EVENT_TYPE, **EVENT_HEADERS}, b"")
            page.overview.check_room()
            return page.overview.stream(question)
        if path == "/" and not (wants_html(request.headers.get("accept", "")) and page.files.has_index):
            return _Answer("200 OK", {**_JSON, "vary": "accept"}, orjson.dumps({"status": "alive"}))
        found = await page.files.find("index.html" if path == "/" else unquote(path.removeprefix("/page/")))
        if found is None:
            return _error("404 Not Found", "Not Found")
        if request.headers.get("if-none-match") == found.headers["etag"]:
            return _Answer("304 Not Modified", found.headers, b"")
        return _Answer("200 OK", found.headers, found.body)

    def _question(self, request: _Request) -> Question:
        explains = not self._restrictions.refusal(ApiGroup.EXPLAIN, request.headers)
        return read_question(request.query, explains=explains)

    async def _stream(
        self, documents: AsyncGenerator[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send documents as events until the viewer goes, is too slow, or the server stops."""
        self._open.pop(writer, None)
        self._streams.add(writer)
        writer.transport.set_write_buffer_limits(STREAM_BYTES)
        head = _head("200 OK", {"content-type": EVENT_TYPE, **EVENT_HEADERS})

        async def send(event: bytes) -> None:
            nonlocal head
            writer.write(head + event)
            head = b""
            await writer.drain()

        async def gone() -> None:
            while await reader.read(MAX_HEAD_BYTES):
                pass

        await send_events(documents, send, gone())


_REASONS = {400: "Bad Request", 404: "Not Found", 500: "Internal Server Error", 503: "Service Unavailable"}


def _read_head(head: bytes) -> _Request:
    method, _, rest = head.partition(b" ")
    path, _, query = rest.partition(b" ")[0].partition(b"?")
    lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    headers = {name.strip().lower().decode("latin-1"): value.strip().decode("latin-1") for name, _, value in lines}
    asked = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    return _Request(method, path.decode("latin-1"), asked, headers)


def _error(status: str, reason: str) -> _Answer:
    return _Answer(status, _JSON, orjson.dumps({"error": reason}))


def _response(answer: _Answer, *, with_body: bool) -> bytes:
    body = answer.body
    head = _head(answer.status, {**answer.headers, "content-length": str(len(body))})
    return head + body if with_body else head


def _head(status: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items()), "connection: close"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
