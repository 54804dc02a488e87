"""A target over HTTP/1.1: keep-alive connections that carry one request at a time, encoded before the run.

General clients cost 70 to 900 µs a request. This one costs some 10 µs, so that the run measures the server.
"""

import asyncio
import http.client
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import cast
from urllib.parse import SplitResult, urlsplit

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.record import Status
from sluice.loadgen.records.samples import TargetModel
from sluice.loadgen.target.base import EXPLAIN_EVERY, MAX_OUTSTANDING, QueryListener, Request, TargetUnreachable
from sluice.loadgen.target.http_response import ProtocolError, Response, ResponseReader
from sluice.loadgen.target.v2 import EncodedRequest, decode_metadata, decode_output, encode_request, model_path
from sluice.models.client_tls import NO_TLS, ClientTls, connection_hint
from sluice.models.errors import ConfigError

_CONNECT_TIMEOUT_S = 5.0
_OPENED_AT_START = 8
_SHED = (429, 503, 504)
_OK = Status.OK  # looking up a member of an enum takes half a microsecond
_MAX_REASON_CHARACTERS = 200


class HttpTarget:
    """A V2 server at `http://host:port` or `https://host:port`, with at most `connections` requests in flight.

    Further queries wait for a connection. With `max_outstanding` queries waiting and in flight the next is dropped. One
    of `explain_every` queries asks for the server's times by stage; none does with 0.
    """

    def __init__(
        self,
        url: str,
        connections: int,
        headers: Iterable[tuple[str, str]] = (),
        tls: ClientTls = NO_TLS,
        max_outstanding: int = MAX_OUTSTANDING,
        explain_every: int = EXPLAIN_EVERY,
    ) -> None:
        parts = _split(url)
        self._tls = tls.context() if parts.scheme == "https" else None
        self._headers = tuple(headers)
        self._host, self._port = str(parts.hostname), parts.port or (80 if self._tls is None else 443)
        self._authority = parts.netloc
        self._connections = connections
        self._max_outstanding = max_outstanding
        self._explain_every = explain_every
        self._free: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._in_flight: dict[int, _Connection] = {}
        self._waiting: OrderedDict[int, int] = OrderedDict()
        self._requests: dict[int, EncodedRequest] = {}
        self._closed = False

    async def metadata(self, model: str) -> TargetModel:
        """Read a model's metadata."""
        status, body = await asyncio.to_thread(self._get, model_path(model))
        if status != 200:
            raise ConfigError(f"--model {model}: {self._authority} answered {status} {_reason(body)}")
        return decode_metadata(body)

    async def prepare(self, requests: Mapping[int, Request], listener: QueryListener, keep_answers: bool) -> None:
        """Encode all requests and open the first connections."""
        self._listener = listener
        self._keep_answers = keep_answers
        self._requests = {key: self.encode(request) for key, request in requests.items()}
        try:
            await asyncio.gather(*(self._connect() for _ in range(min(_OPENED_AT_START, self._connections))))
        except OSError as error:
            hint = connection_hint(error, self._tls is not None)
            raise TargetUnreachable(f"--target {self._authority}: cannot connect: {error}{hint}") from error

    def issue(self, query: int, request: int) -> None:
        """Send on a free connection, or wait for one."""
        if len(self._in_flight) + len(self._waiting) >= self._max_outstanding:
            self._listener.done(query, Status.DROPPED, reason=f"{self._max_outstanding} queries were outstanding")
        elif self._free:
            self._send(self._free.pop(), query, request)
        else:
            self._waiting[query] = request
            self._listener.queued(query)
            self._grow()

    def cancel(self, query: int) -> None:
        """Close the connection of a query, and open another one in its place."""
        connection = self._in_flight.pop(query, None)
        if connection is not None:
            connection.abandon()
            self._open.discard(connection)
            self._grow()
        elif self._waiting.pop(query, None) is None:
            return
        self._listener.done(query, Status.CANCELLED)

    async def close(self) -> None:
        """Abort all connections."""
        self._closed = True
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in self._open:
            connection.transport.abort()
        await asyncio.sleep(0)

    def encode(self, request: Request) -> EncodedRequest:
        """The bytes of a request."""
        return encode_request(self._authority, request, self._headers)

    def decode(self, answer: object, output: str) -> npt.NDArray[np.generic]:
        """Decode one output of a kept answer."""
        response = cast(Response, answer)
        return decode_output(response.body, response.head.json_bytes, output)

    def answered(self, connection: "_Connection", query: int, response: Response) -> None:
        """Settle the query of a connection and free the connection."""
        head = response.head
        del self._in_flight[query]
        if not head.close:
            self._give_work(connection)
        if head.status == 200:
            self._listener.done(query, _OK, response if self._keep_answers else None, stages=head.stages)
        else:
            status = Status.SHED if head.status in _SHED else Status.ERROR
            self._listener.done(query, status, None, f"HTTP {head.status}: {_reason(response.body)}", head.stages)

    def lost(self, connection: "_Connection", query: int | None, reason: str) -> None:
        """Remove a connection that closed, and fail its query."""
        self._open.discard(connection)
        if connection in self._free:
            self._free.remove(connection)
        if self._closed:
            return
        if query is not None:
            del self._in_flight[query]
            self._listener.done(query, Status.ERROR, reason=reason)
        if self._waiting:
            self._grow()

    def _send(self, connection: "_Connection", query: int, request: int) -> None:
        encoded, every = self._requests[request], self._explain_every
        connection.send(query, encoded.explained() if every and query % every == 0 else encoded.content)
        self._in_flight[query] = connection
        self._listener.sent(query)

    def _give_work(self, connection: "_Connection") -> None:
        if self._waiting:
            self._send(connection, *self._waiting.popitem(last=False))
        else:
            self._free.append(connection)

    def _grow(self) -> None:
        if len(self._open) + len(self._opening) < self._connections:
            task = asyncio.get_running_loop().create_task(self._grow_by_one())
            self._opening.add(task)
            task.add_done_callback(self._grown)

    async def _grow_by_one(self) -> None:
        try:
            await self._connect()
        except OSError as error:
            # Each failed attempt settles a query, which bounds the attempts on a dead target.
            if self._waiting:
                query, _ = self._waiting.popitem(last=False)
                self._listener.done(query, Status.ERROR, reason=f"cannot connect: {error}")

    def _grown(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        if self._waiting and not self._closed:
            self._grow()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(
            lambda: _Connection(self, self._keep_answers), self._host, self._port, ssl=self._tls
        )
        _, connection = await asyncio.wait_for(opening, _CONNECT_TIMEOUT_S)
        if connection.transport.is_closing():
            raise ConnectionResetError("the target closed the connection at once")
        self._open.add(connection)
        self._give_work(connection)

    def _get(self, path: str) -> tuple[int, bytes]:
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_TIMEOUT_S)
        else:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=_CONNECT_TIMEOUT_S, context=self._tls
            )
        try:
            connection.request("GET", path, headers=dict(self._headers))
            response = connection.getresponse()
            return response.status, response.read()
        except OSError as error:
            reason = f"{error or type(error).__name__}{connection_hint(error, self._tls is not None)}"
            raise TargetUnreachable(f"--target {self._authority}: {reason}") from error
        except http.client.HTTPException as error:
            problem = f"not an HTTP server; for a gRPC port give grpc://{self._authority}"
            raise TargetUnreachable(f"--target {self._authority}: {problem}") from error
        finally:
            connection.close()


class _Connection(asyncio.Protocol):
    """One keep-alive connection with at most one query in flight."""

    transport: asyncio.Transport

    def __init__(self, target: HttpTarget, keep_bodies: bool) -> None:
        self._target = target
        self._reader = ResponseReader(keep_bodies)
        self._query: int | None = None
        self._failure = "connection closed before the answer"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; event loops disable Nagle's algorithm on it by default."""
        self.transport = cast(asyncio.Transport, transport)

    def send(self, query: int, request: bytes) -> None:
        """Write the request of a query."""
        self.transport.write(request)
        self._query = query

    def abandon(self) -> None:
        """Close the connection without an answer to its query, which the target no longer waits for."""
        self._query = None
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read a piece of an answer."""
        try:
            response = self._reader.feed(data)
            if response is not None and self._query is None:
                raise ProtocolError("answer without a request")
        except ProtocolError as error:
            self._failure = str(error)
            self.transport.abort()
            return
        if response is not None:
            query, self._query = cast(int, self._query), None
            if response.head.close:
                self.transport.close()
            self._target.answered(self, query, response)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss to the target."""
        self._target.lost(self, self._query, self._failure)


def _split(url: str) -> SplitResult:
    """The parts of a target's URL; raises `ConfigError` for one without a host, or with more than a port."""
    try:
        parts = urlsplit(url)
        if parts.hostname and parts.path in ("", "/") and parts.port != 0:
            return parts
    except ValueError:  # a port that is no number
        pass
    raise ConfigError(f"--target: expected http://host:port or https://host:port, got {url}")


def _reason(body: bytes) -> str:
    """The beginning of an error body as text."""
    return body[:_MAX_REASON_CHARACTERS].decode("utf-8", "replace").strip()
