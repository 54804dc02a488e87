"""The answer to a request that the connection itself refuses, which also ends the connection."""

import asyncio
from http import HTTPStatus
from typing import ClassVar, Protocol

import orjson


class RefusedConnection(Protocol):
    """The connection of a client that is refused."""

    def common_headers(self) -> bytes:
        """The header lines that every response has."""
        ...

    def end_with(self, response: bytes) -> None:
        """Send the last response of the connection."""
        ...


class RefusedRequest:
    """Takes the place of a request in the order of responses; nothing that the client sends after it is read."""

    __slots__ = (
        "_client",
        "_reason",
        "_status",
        "disconnected",
        "held",
        "keep_alive",
        "ready",
        "response_complete",
        "started",
    )

    message_event: ClassVar[asyncio.Event] = asyncio.Event()
    """The event that uvicorn sets when the connection is lost; nothing waits for it."""

    def __init__(self, client: RefusedConnection, status: int, reason: str) -> None:
        self._client = client
        self._status = status
        self._reason = reason
        self.held = 0
        self.ready = True
        self.keep_alive = self.started = self.response_complete = self.disconnected = False

    def run(self) -> None:
        """Send the answer."""
        self.started = self.response_complete = True
        self._client.end_with(refusal(self._status, self._reason, self._client.common_headers()))

    def send_continue(self) -> None:
        """Nothing more is expected."""

    def disconnect(self) -> None:
        """Nothing is to be cancelled."""


def refusal(status: int, reason: str, headers: bytes = b"") -> bytes:
    """A whole response with a JSON error, after which the connection is closed."""
    body = orjson.dumps({"error": reason})
    wait = b"retry-after: 1\r\n" if status == 503 else b""
    return (
        b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%s%sconnection: close\r\n\r\n%s"
        % (
            status,
            HTTPStatus(status).phrase.encode(),
            len(body),
            wait,
            headers,
            body,
        )
    )
