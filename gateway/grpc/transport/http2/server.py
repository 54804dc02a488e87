"""A gRPC server over HTTP/2 on the running event loop."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import grpc

from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.grpc.transport.http2.call import Http2Call
from sluice.gateway.grpc.transport.http2.call_head import CallHead
from sluice.gateway.grpc.transport.http2.connection import ConnectionLimits, Http2Connection
from sluice.gateway.grpc.transport.http2.grpc_connection import GrpcConnection
from sluice.gateway.grpc.transport.server import LAST_CALLS_S, GrpcServer, Method, Refusal, refuse
from sluice.gateway.http2.frames import ErrorCode

BACKLOG = 4096
"""Connections that the kernel keeps until they are accepted; it lowers the number to its own limit."""
SWEEP_S = 1.0
THREADS = 1
"""Threads that decompress messages."""
LAST_WRITES_S = 0.2
"""The time for clients to take the last frames of a connection that is ended by force."""

_UNKNOWN = Method(None, None)
_LATER = (("retry-after", "1"),)


class Http2Server(GrpcServer):
    """Serves on a socket that listens already. `tls` makes it a TLS server.

    Messages, also decompressed ones, have at most `max_message_bytes`. The front door bounds the connections. When only
    those are left that it keeps for health, new ones serve the methods `health` alone.
    """

    def __init__(
        self,
        listener: socket.socket,
        front_door: FrontDoor,
        max_message_bytes: int,
        refusal: Refusal | None = None,
        tls: ssl.SSLContext | None = None,
        health: Collection[str] = (),
        refusal_code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE,
    ) -> None:
        super().__init__()
        self.front_door = front_door
        self.budget = front_door.budget
        self.max_message_bytes = max_message_bytes
        self.tls = tls
        self.threads = ThreadPoolExecutor(THREADS, "grpc")
        self.serving = False
        settings = front_door.settings
        self.limits = ConnectionLimits(
            settings.grpc_streams, settings.grpc_head_bytes, settings.head_lines, settings.grpc_ping_s
        )
        self._listener = listener
        self._refusal = refusal
        self._refusal_code = refusal_code
        self._health = health
        self._to_flush: list[GrpcConnection] = []
        self._acceptor: asyncio.Server | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._stopping = False
        self._gone: asyncio.Event
        self.loop: asyncio.AbstractEventLoop

    @property
    def connections(self) -> list[GrpcConnection]:
        """The open connections."""
        return [each for each in self.front_door.connections if isinstance(each, GrpcConnection)]

    async def start(self) -> None:
        """Start accepting calls."""
        self.loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self.serving = True
        self._acceptor = await self.loop.create_server(
            self._connect,
            sock=self._listener,
            ssl=self.tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=None if self.tls is None else self.front_door.settings.head_timeout_s,
        )
        self._sweeping = self.loop.call_later(SWEEP_S, self._sweep)

    def _connect(self) -> asyncio.Protocol:
        # It has the methods of a protocol, which is all that loops want. Native classes have no interpreted bases.
        return cast(asyncio.Protocol, GrpcConnection(self))

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, interrupt streams, and cancel calls that are still open after `grace` seconds.

        For a while, calls are still taken and refused with a status, on new connections as well. Then clients are asked
        to send no more calls; those that they have sent by then are refused likewise.
        """
        if self._stopping:
            return
        self._stopping = True
        if self._acceptor is None:
            self._listener.close()
            return
        for connection in self.connections:
            connection.interrupt()
        await asyncio.sleep(min(LAST_CALLS_S, grace or 0))
        self.serving = False
        self._acceptor.close()
        for connection in self.connections:
            connection.drain()
        await self._all_gone(grace or 0)
        for connection in self.connections:
            connection.http2.end_with(ErrorCode.NO_ERROR, "the server is stopping")
            connection.flush()
        await self._all_gone(LAST_WRITES_S)
        for connection in self.connections:
            connection.abort()
        await self._all_gone(LAST_WRITES_S)
        if self._sweeping is not None:
            self._sweeping.cancel()
        self.threads.shutdown(wait=False)

    async def _all_gone(self, timeout_s: float) -> None:
        """Wait until all connections are gone, but no longer than that."""
        self._gone.clear()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), timeout_s)

    def on_lost(self) -> None:
        """A connection is gone."""
        if self._stopping and not self.connections:
            self._gone.set()

    def _sweep(self) -> None:
        self._sweeping = self.loop.call_later(SWEEP_S, self._sweep)
        self.front_door.sweep(self.loop.time())

    # -- calls

    def open_call(
        self, connection: Http2Connection[CallHead], stream_id: int, head: CallHead, ended: bool
    ) -> Http2Call:
        """Begin a call, or refuse it because of its headers."""
        method = self.methods.get(head.method, _UNKNOWN)
        call = Http2Call(self, connection, stream_id, head, method)
        if head.http_status:
            call.remote_ended = ended
            call.refuse(head.http_status)
        elif head.refusal is not None:
            call.remote_ended = ended
            call.end(*head.refusal)
        elif self._stopping:
            call.remote_ended = ended
            refuse(call)
        elif method is _UNKNOWN:
            call.remote_ended = ended
            call.end(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        elif self._refusal is not None and (reason := self._refusal(head.method, head.metadata)):
            call.remote_ended = ended
            call.end(self._refusal_code, reason)
        elif method.take_over is not None:
            call.remote_ended = ended
            if connection.streams:
                call.end(grpc.StatusCode.FAILED_PRECONDITION, f"{head.method} needs a connection of its own")
            else:
                connection.give(call)
        else:
            call.begin()
        return call

    def open_health_call(
        self, connection: Http2Connection[CallHead], stream_id: int, head: CallHead, ended: bool
    ) -> Http2Call:
        """As `open_call`, on a connection that came when only those for health were left.

        Other methods are refused until there is room again.
        """
        front_door = self.front_door
        if not front_door.is_full or head.method in self._health:
            return self.open_call(connection, stream_id, head, ended)
        front_door.faults.counts["no_connections"] += 1
        call = Http2Call(self, connection, stream_id, head, _UNKNOWN)
        call.remote_ended = ended
        reason = f"the server has reached its limit of {front_door.max_connections} connections"
        call.end(grpc.StatusCode.UNAVAILABLE, reason, _LATER)
        return call

    # -- writing

    def flush_later(self, connection: GrpcConnection) -> None:
        """Write what a connection has to send when this turn of the event loop is over."""
        if not self._to_flush:
            self.loop.call_soon(self._flush)
        self._to_flush.append(connection)

    def _flush(self) -> None:
        to_flush, self._to_flush = self._to_flush, []
        for connection in to_flush:
            connection.flush()
