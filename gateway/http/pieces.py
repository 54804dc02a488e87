"""Responses whose large bodies are sent in pieces, between which the event loop has its turn."""

from collections.abc import Mapping, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class PiecesResponse(Response):
    """A response of known length whose body is never put together."""

    def __init__(self, pieces: Sequence[bytes], headers: Mapping[str, str]) -> None:
        super().__init__(headers={**headers, "content-length": str(sum(map(len, pieces)))})
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it over ASGI."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
