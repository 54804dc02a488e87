"""The HTTP server: uvicorn with connections that answer inference requests themselves."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluice.gateway.config.restricted import ApiGroup, Restrictions
from sluice.gateway.http.access import AccessControl, AccessRules
from sluice.gateway.http.exchange import Exchange, InferRoute
from sluice.gateway.http.listener import listen
from sluice.gateway.inference.request_template import Template

KEEP_ALIVE_S = 75
LAST_REQUESTS_S = 0.3
"""The time in which a stopping server still answers requests on open connections."""


class Connection(HttpToolsProtocol):
    """A client's connection. Inference requests become exchanges; uvicorn passes all others to the application.

    Both kinds wait in the base class's `pipeline` until the earlier responses have been written. Nothing is read while
    a request waits there or while the client does not read responses, which bounds the memory of a connection.
    """

    def __init__(
        self,
        route: InferRoute,
        *args: Any,
        restrictions: Restrictions | None = None,
        access: AccessRules | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._route = route
        self._access = access
        self._restrictions = restrictions
        self._turn: Exchange | None = None
        self._last_path: tuple[bytes, tuple[str, str] | None] = b"", None
        self.template: Template | None = None
        self._default_headers: list[tuple[bytes, bytes]] = []
        self._common_headers = b""

    def connection_made(self, transport: Any) -> None:
        """Refuse the client when there are too many connections."""
        super().connection_made(transport)
        limit = self.config.backlog  # the limit of connections, see `http_config`
        if len(self.connections) > limit:
            self._refuse(503, f"the server has reached its limit of {limit} connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request in flight and drop the waiting ones."""
        super().connection_lost(exc)
        self.pipeline.clear()
        if self._turn is not None:
            self._turn.disconnect()
        # An exchange refers to its connection: break the cycle, which leaves nothing for the garbage collector.
        self._turn = self.cycle = None  # type: ignore[assignment]

    def on_message_begin(self) -> None:
        """Begin a request; unlike the base class, without a scope, which only the application needs."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        """Choose the exchange or the application for the request."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()  # the request may arrive before the last response is sent
        parser = self.parser
        path = self._match() if parser.get_method() == b"POST" else None
        if self._restrictions is not None and self._restrictions.forbids(ApiGroup.INFERENCE, self.headers):
            path = None
        added = b"" if path is None or self._access is None else self._access.inference_lines(self.headers, self.server)
        if path is None or added is None:
            self._begin_cycle()
            return
        exchange = Exchange(self._route, self, path, self.headers, self.expect_100_continue)
        exchange.added_lines = added
        if not parser.should_keep_alive() or parser.get_http_version() == "1.0":
            exchange.keep_alive = False
        waits = self.cycle is not None and not self.cycle.response_complete
        self.cycle = exchange  # type: ignore[assignment]
        if waits:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))
        else:
            self._turn = exchange
            exchange.send_continue()
            if exchange.ready:
                self._run()

    def _match(self) -> tuple[str, str] | None:
        url, path = self._last_path
        if self.url != url:
            path = self._route.match(self.url)
            self._last_path = self.url, path
        return path

    def _begin_cycle(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers = self.scope["headers"] = headers
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body of the latest request."""
        cycle: object = self.cycle
        if not isinstance(cycle, Exchange):
            super().on_body(body)
        elif not cycle.ready:
            cycle.receive(body)
            if cycle.ready and cycle is self._turn:
                self._run()

    def on_message_complete(self) -> None:
        """Take the end of the body of the latest request."""
        cycle: object = self.cycle
        if not isinstance(cycle, Exchange):
            super().on_message_complete()
        elif not cycle.ready:
            cycle.finish()
            if cycle is self._turn:
                self._run()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start the next request."""
        if not isinstance(cycle, Exchange):
            super()._start_asgi_task(cycle, app)
            return
        self._turn = cycle
        cycle.send_continue()
        # Not directly: many waiting requests that fail at once would nest their calls.
        self.loop.call_soon(self._run)

    def _run(self) -> None:
        exchange = self._turn
        if exchange is not None and exchange.ready and not exchange.started and not self.flow.write_paused:
            exchange.run()

    def on_ready(self) -> None:
        """Answer the current request if it has become ready."""
        self._run()

    def on_response_complete(self) -> None:
        """Continue with the next request."""
        self._turn = None
        super().on_response_complete()
        self._regulate_reading()

    def pause_writing(self) -> None:
        """Stop reading while the client does not read responses."""
        super().pause_writing()
        self._regulate_reading()

    def resume_writing(self) -> None:
        """Continue when the client reads again."""
        super().resume_writing()
        self._regulate_reading()
        self._run()

    def _regulate_reading(self) -> None:
        if self.transport.is_closing():
            return
        if self.pipeline or self.flow.write_paused:
            self.flow.pause_reading()
        else:
            self.flow.resume_reading()

    def common_headers(self) -> bytes:
        """The header lines that every response has; uvicorn renews them once a second."""
        headers = self.server_state.default_headers
        if headers is not self._default_headers:
            self._default_headers = headers
            self._common_headers = b"".join(b"%s: %s\r\n" % header for header in headers)
        return self._common_headers

    def send_400_response(self, msg: str) -> None:
        """Answer a message that is not HTTP with a JSON error."""
        self._refuse(400, msg)

    def _refuse(self, status: int, reason: str) -> None:
        body = b'{"error":"%s"}' % reason.encode()
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


class HttpServer(uvicorn.Server):
    """A uvicorn server on a bound socket; the process handles signals.

    `serve()` runs until `should_exit` is set and the requests in flight have been answered. `tls` makes it an HTTPS
    server.
    """

    def __init__(self, config: uvicorn.Config, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(config)
        self._listener = listener
        self._tls = tls
        self.port: int = listener.getsockname()[1]

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on the bound socket, and on `sockets`."""
        if not self.config.loaded:
            self.config.load()
        self.config.ssl = self._tls
        await super().serve([self._listener, *(sockets or ())])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no connections, answer open ones for a while longer, and then stop as uvicorn does.

        uvicorn alone would at once close connections whose request has not been read yet.
        """
        loop = asyncio.get_running_loop()
        connected = self._connected()
        for server in self.servers:
            server.close()
        joining = asyncio.gather(
            *(loop.connect_accepted_socket(self._protocol, each, ssl=self._tls) for each in connected),
            return_exceptions=True,
        )
        await asyncio.sleep(LAST_REQUESTS_S)
        joining.cancel()
        await super().shutdown(sockets)

    def _connected(self) -> list[socket.socket]:
        """The connections that the loop has not accepted yet, which would be lost with the listener."""
        found = []
        with contextlib.suppress(OSError):  # there are no more
            while True:
                found.append(self._listener.accept()[0])
        return found

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        connection: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return connection

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


def http_config(
    app: Starlette,
    route: InferRoute,
    max_connections: int = 4096,
    *,
    restrictions: Restrictions | None = None,
    access: AccessRules | None = None,
) -> uvicorn.Config:
    """The uvicorn configuration that serves `route` and, for all other requests, the ASGI application `app`.

    With `restrictions`, inference without the key goes to the application, which refuses it; so does inference that
    the rules of `access` refuse.
    """
    return uvicorn.Config(
        app if access is None else AccessControl(app, access),
        http=partial(Connection, route, restrictions=restrictions or None, access=access),  # type: ignore[arg-type]
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


def http_server(config: uvicorn.Config, host: str, port: int, tls: ssl.SSLContext | None = None) -> HttpServer:
    """A server that listens already; port 0 takes a free one. Raises ConfigError if the port cannot be bound."""
    return HttpServer(config, listen("HTTP", host, port, config.backlog), tls)
