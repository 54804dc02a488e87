"""A target over HTTP/1.1: keep-alive connections that carry one request at a time, encoded before the run.

General clients cost 70 to 900 µs a request. This one costs some 10 µs, so that the run measures the server.
"""

import asyncio
import http.client
from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.record import Status
from sluice.loadgen.records.samples import TargetModel
from sluice.loadgen.target.address import parse_address
from sluice.loadgen.target.base import EXPLAIN_EVERY, MAX_OUTSTANDING, QueryListener, TargetRequest, TargetUnreachable
from sluice.loadgen.target.http_connection import HttpConnection
from sluice.loadgen.target.http_get import UnixHttpConnection, get
from sluice.loadgen.target.http_response import Response
from sluice.loadgen.target.pool import CONNECT_TIMEOUT_S, ConnectionPool, connect_failure
from sluice.loadgen.target.v2 import (
    STATISTICS_PATH,
    EncodedRequest,
    decode_metadata,
    decode_output,
    encode_request,
    model_path,
)
from sluice.models.client_tls import NO_TLS, ClientTls, connection_hint
from sluice.models.errors import ConfigError

_OPENED_AT_START = 8
_SHED = (429, 503, 504)
_FORBIDDEN = (401, 403)
"""A proxy before a V2 server may answer so."""
_OK = Status.OK  # looking up a member of an enum takes half a microsecond
_MAX_REASON_CHARACTERS = 200


class HttpTarget(ConnectionPool[HttpConnection]):
    """A V2 server at `http://host:port`, `https://host:port` or `unix:///path`.

    At most `connections` requests are in flight, and further queries wait for a connection. With `max_outstanding`
    queries waiting and in flight the next is dropped. One of `explain_every` queries asks for the server's times by
    stage; none does with 0.
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
        super().__init__(connections, max_outstanding)
        self._address = address = parse_address(url)
        self._tls = tls.context() if address.scheme == "https" else None
        self._headers = tuple(headers)
        self._port = address.port or (80 if self._tls is None else 443)
        self._place = address.path or address.authority
        self._explain_every = explain_every
        self._requests: dict[int, EncodedRequest] = {}

    async def metadata(self, model: str) -> TargetModel:
        """Read a model's metadata."""
        status, body = await self._get(model_path(model))
        if status != 200 and not body.lstrip().startswith(b"{") and status not in _FORBIDDEN:
            raise TargetUnreachable(
                f"--target {self._place}: does not speak V2: it answered {status} {_reason(body)}; a server of another "
                "protocol takes --path and --bodies"
            )
        if status != 200:
            raise ConfigError(f"--model {model}: {self._place} answered {status} {_reason(body)}")
        return decode_metadata(body)

    async def statistics(self) -> bytes | None:
        """Read the statistics of all models."""
        try:
            status, body = await self._get(STATISTICS_PATH)
        except TargetUnreachable:
            return None  # the figures of the run stay valid when the server dies under load
        return body if status == 200 else None

    async def prepare(self, requests: Mapping[int, TargetRequest], listener: QueryListener, keep_answers: bool) -> None:
        """Encode all requests and open the first connections."""
        self._listener = listener
        self._keep_answers = keep_answers
        self._requests = {key: self.encode(request) for key, request in requests.items()}
        try:
            await self._open_first(_OPENED_AT_START)
        except OSError as error:
            hint = connection_hint(error, self._tls is not None)
            raise TargetUnreachable(
                f"--target {self._place}: cannot connect: {connect_failure(error)}{hint}"
            ) from error

    def encode(self, request: TargetRequest) -> EncodedRequest:
        """The bytes of a request."""
        return encode_request(self._address.authority, request, self._headers)

    def decode(self, answer: object, output: str) -> npt.NDArray[np.generic]:
        """Decode one output of a kept answer."""
        response = cast(Response, answer)
        return decode_output(response.body, response.head.json_bytes, output)

    def answered(self, connection: HttpConnection, query: int, response: Response) -> None:
        """Settle the query of a connection and free the connection."""
        head = response.head
        del self._in_flight[query]
        if not head.close:
            self.freed(connection)
        if head.status == 200:
            self._listener.done(query, _OK, response if self._keep_answers else None, stages=head.stages)
        else:
            status = Status.SHED if head.status in _SHED else Status.ERROR
            self._listener.done(query, status, None, f"HTTP {head.status}: {_reason(response.body)}", head.stages)

    def _send(self, query: int, request: int) -> HttpConnection:
        encoded, every = self._requests[request], self._explain_every
        connection = self._free.pop()
        connection.send(query, encoded.explained() if every and query % every == 0 else encoded.content)
        return connection

    async def _connect(self) -> HttpConnection:
        loop = asyncio.get_running_loop()
        address = self._address
        if address.path:
            return (await loop.create_unix_connection(self._new_connection, address.path))[1]
        return (await loop.create_connection(self._new_connection, address.host, self._port, ssl=self._tls))[1]

    def _new_connection(self) -> HttpConnection:
        return HttpConnection(self, self._keep_answers)

    async def _get(self, path: str) -> tuple[int, bytes]:
        """The status and the body of an answer; raises `TargetUnreachable`."""
        try:
            return await get(self._single_connection(), path, dict(self._headers), CONNECT_TIMEOUT_S)
        except TimeoutError as error:
            raise TargetUnreachable(f"--target {self._place}: no answer in {CONNECT_TIMEOUT_S:g} s") from error
        except OSError as error:
            reason = f"{error or type(error).__name__}{connection_hint(error, self._tls is not None)}"
            raise TargetUnreachable(f"--target {self._place}: {reason}") from error
        except http.client.HTTPException as error:
            problem = f"not an HTTP server; for a gRPC port give grpc://{self._place}"
            raise TargetUnreachable(f"--target {self._place}: {problem}") from error

    def _single_connection(self) -> http.client.HTTPConnection:
        host, port = self._address.host, self._port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=CONNECT_TIMEOUT_S, context=self._tls)
        if self._address.path:
            return UnixHttpConnection(self._address.path, CONNECT_TIMEOUT_S)
        return http.client.HTTPConnection(host, port, timeout=CONNECT_TIMEOUT_S)


def _reason(body: bytes) -> str:
    """The beginning of an error body as text."""
    return " ".join(body[:_MAX_REASON_CHARACTERS].decode("utf-8", "replace").split())
