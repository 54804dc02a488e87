"""The HTTP server: uvicorn with connections that tell when their client goes away."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CONNECTION = "sluice.connection"
"""Key of a request's `Connection` in its ASGI scope."""

KEEP_ALIVE_S = 75


class Connection(HttpToolsProtocol):
    """A client's connection. `on_disconnect`, if set, is called when it is lost."""

    on_disconnect: Callable[[], object] | None = None
    lost = False

    def watch(self, on_disconnect: Callable[[], object]) -> None:
        """Call `on_disconnect` if the client goes away; for a request whose body has been read."""
        self.on_disconnect = on_disconnect
        # A large body leaves the transport paused, and a paused transport does not see the end of the connection.
        if not self.pipeline:
            self.flow.resume_reading()

    def connection_made(self, transport: Any) -> None:
        """Refuse the client when there are too many."""
        super().connection_made(transport)
        limit = self.config.backlog  # as long as connections may be many, see `http_server`
        if len(self.connections) > limit:
            self._refuse(503, f"the server has {limit} connections, which is its limit")

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits."""
        self.lost = True
        super().connection_lost(exc)
        if self.on_disconnect is not None:
            self.on_disconnect()

    def on_message_begin(self) -> None:
        """Let the application find this connection."""
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP in the form of all errors."""
        self._refuse(400, msg)

    def _refuse(self, status: int, reason: str) -> None:
        body = b'{"error":"%s"}' % reason.encode()
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


class HttpServer(uvicorn.Server):
    """A uvicorn server on a socket that is bound already; signals are left to the process.

    `serve()` runs until `should_exit` is set and the requests in flight have been answered.
    """

    def __init__(self, config: uvicorn.Config, listener: socket.socket) -> None:
        super().__init__(config)
        self._listener = listener
        self.port: int = listener.getsockname()[1]

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on the bound socket, and on `sockets`."""
        await super().serve([self._listener, *(sockets or ())])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


def http_server(app: Any, host: str, port: int, max_connections: int = 4096) -> HttpServer:
    """A server of the ASGI application `app`, listening from now on; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=max_connections)
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=max_connections,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    return HttpServer(config, listener)
