"""The metrics on a port of their own, as Triton has them."""

import asyncio
import contextlib
from collections.abc import Sequence

import orjson

from sluice.gateway.config.restricted import ApiGroup, Restrictions
from sluice.gateway.front_door.listener import listen
from sluice.gateway.http.access import AccessRules
from sluice.gateway.observability.metrics import ServerMetrics

MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 16 << 10
HEAD_TIMEOUT_S = 10.0
"""Time for a client to send its request and to read the answer."""


class MetricsServer:
    """Answers only `GET /metrics` over HTTP, one request per connection. The port is bound by the constructor.

    The rules of `access` must allow a request, and it must have the key of the group, if that has one. Port 0 takes a
    free one. Raises ConfigError if the port cannot be bound.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        host: str,
        port: int,
        access: AccessRules | None = None,
        restrictions: Restrictions | None = None,
    ) -> None:
        self._metrics = metrics
        self._access = access or AccessRules()
        self._restrictions = restrictions or Restrictions()
        self._listener = listen("metrics", host, port)
        self.port: int = self._listener.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}

    async def start(self) -> None:
        """Start answering."""
        self._server = await asyncio.start_server(self._connected, sock=self._listener, limit=MAX_HEAD_BYTES)

    async def stop(self) -> None:
        """Stop answering and close all connections."""
        if self._server is not None:
            self._server.close()
        self._listener.close()
        for writer in self._open:
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
                    for piece in await self._answer(await reader.readuntil(b"\r\n\r\n"), writer):
                        writer.write(piece)
                        await writer.drain()
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> Sequence[bytes]:
        """The answer to a request in pieces."""
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
        headers = {name.strip().lower().decode("latin-1"): value.strip().decode("latin-1") for name, _, value in lines}
        host = headers["host"].encode("latin-1") if "host" in headers else None
        if not self._access.knows_host(host, writer.get_extra_info("sockname")[:2]):
            return _error("421 Misdirected Request", "expected a name of this server as the host")
        if path != b"/metrics":
            return _error("404 Not Found", "Not Found")
        if refusal := self._restrictions.refusal(ApiGroup.METRICS, headers):
            return _error("403 Forbidden", refusal)
        if method not in (b"GET", b"HEAD"):
            return _error("405 Method Not Allowed", "Method Not Allowed")
        body, content_type = await self._metrics.scrape_as(headers.get("accept", ""))
        head = _head("200 OK", content_type, sum(map(len, body)))
        return [head, *body] if method == b"GET" else [head]


def _error(status: str, reason: str) -> Sequence[bytes]:
    body = orjson.dumps({"error": reason})
    return _head(status, "application/json", len(body)), body


def _head(status: str, content: str, length: int) -> bytes:
    lines = f"HTTP/1.1 {status}\r\ncontent-type: {content}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    return lines.encode()
