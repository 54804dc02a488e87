"""Requests that a front end passes on to the HTTP server of the gateway's process."""

from typing import Any, TypeAlias

import orjson

from sluice.gateway.http.server import Connection, Phase

ADDRESSES = b"x-sluice-relayed"
"""The header with both ends of the client's connection. Front ends drop it from the requests of clients."""
HEADER_LINES = 8
HEADER_BYTES = 1024
"""The lines and bytes that front ends may add to a head."""

Address: TypeAlias = tuple[str, int | None] | None
"""An address and a port; None if there is none."""


def addresses_header(client: Address, server: Address) -> tuple[bytes, bytes]:
    """The header that says who has connected to whom."""
    return ADDRESSES, orjson.dumps([client, server])


class RelayedConnection(Connection):
    """A connection from a front end: its requests are those of other connections, which a header names.

    `scheme` is that of clients.
    """

    def __init__(self, *args: Any, client_scheme: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._client_scheme = client_scheme

    def connection_made(self, transport: Any) -> None:
        """Take the connection."""
        super().connection_made(transport)
        self.scheme = self._client_scheme  # type: ignore[assignment]

    def on_headers_complete(self) -> None:
        """Take the addresses out of the head."""
        for index, (name, value) in enumerate(self.headers):
            if name == ADDRESSES:
                del self.headers[index]
                client, server = orjson.loads(value)
                self.client, self.server = client and tuple(client), server and tuple(server)
                break
        self._hosts = self._hosts or 1  # a client of HTTP/1.0 need not name one, and the front end has checked others
        super().on_headers_complete()

    @property
    def _address(self) -> str:
        """The front door of the front end has counted the client's address."""
        return ""

    def sweep(self, now_s: float) -> None:
        """Enforce the time limits, but not on a connection that is kept for the next request.

        Only the front end ends that one: otherwise it might send a request to a connection that has just been closed.
        """
        if self.phase() is not Phase.IDLE:
            super().sweep(now_s)

    def is_idle(self) -> bool:
        """False: a connection between two requests stays, for the same reason."""
        return False

    def eof_received(self) -> bool:  # type: ignore[override]
        """End the connection: the front end does so when the client has gone."""
        self.transport.abort()
        return False
