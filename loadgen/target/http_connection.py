"""One keep-alive connection of HTTP/1.1, with at most one request in flight."""

import asyncio
from collections.abc import Sequence
from typing import Protocol, cast

from sluice.loadgen.target.http_response import ProtocolError, Response, ResponseReader
from sluice.loadgen.target.socket_writer import SocketWriter

_CLOSED = "connection closed before the answer"


class HttpConnectionOwner(Protocol):
    """Hears how the queries of connections end."""

    def answered(self, connection: "HttpConnection", query: int, response: Response) -> None:
        """Take the answer to a query; the connection is free, or about to close if the answer says so."""

    def lost(self, connection: "HttpConnection", queries: Sequence[int], reason: str) -> None:
        """Take note that a connection closed, and of the queries that it had not answered."""


class HttpConnection(asyncio.Protocol):
    """A connection that its owner gives one query at a time."""

    transport: asyncio.Transport

    def __init__(self, owner: HttpConnectionOwner, keep_bodies: bool) -> None:
        self._owner = owner
        self._reader = ResponseReader(keep_bodies)
        self._query: int | None = None
        self._failure = _CLOSED

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; event loops disable Nagle's algorithm on it by default."""
        self.transport = cast(asyncio.Transport, transport)
        self._writer = SocketWriter(self.transport)

    def send(self, query: int, request: bytes) -> None:
        """Write the request of a query. A failure is reported later, as the loss of the connection."""
        self._query = query
        try:
            self._writer.write(request)
        except OSError as error:
            self._failure = f"connection cannot be written: {error.strerror}"
            self.transport.abort()

    def cancel(self, query: int) -> bool:
        """Close the connection: HTTP/1.1 has no other way to give a request up."""
        assert query == self._query
        self._query = None
        self.transport.abort()
        return False

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
            self._owner.answered(self, query, response)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss to the owner."""
        self._owner.lost(self, () if self._query is None else (self._query,), self._failure)
