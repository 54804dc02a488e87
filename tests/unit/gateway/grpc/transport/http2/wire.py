"""Clients of the server over HTTP/2 that talk to it in bytes, over transports without sockets."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import hpack

from sluice.gateway.config.front_door import FrontDoorSettings
from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.front_door.listener import listen
from sluice.gateway.grpc.transport.call import MessageMemory
from sluice.gateway.grpc.transport.http2.grpc_connection import GrpcConnection
from sluice.gateway.grpc.transport.http2.server import Http2Server
from sluice.gateway.grpc.transport.server import Refusal
from sluice.gateway.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    frame,
    settings_frame,
)
from tests.unit.gateway.grpc.transport.http2.peer import REQUEST, Frame, frames

Handlers = dict[str, Any]


class PlayedTransport:
    """A transport whose client takes everything, or nothing while it is `full`."""

    def __init__(self, protocol: GrpcConnection, address: str, protocol_of_tls: str | None) -> None:
        self._protocol = protocol
        self._reader: GrpcConnection | asyncio.BufferedProtocol = protocol
        self._address = address
        self._tls = protocol_of_tls
        self.writes: list[bytes] = []
        self.reading = True
        self.closed = self.aborted = self.ended = False
        self.buffered = 0

    def get_extra_info(self, name: str) -> Any:
        if name == "peername":
            return self._address, 5
        if name == "ssl_object" and self._tls is not None:
            return self
        return None

    def selected_alpn_protocol(self) -> str | None:
        return self._tls or None

    def set_protocol(self, protocol: GrpcConnection | asyncio.BufferedProtocol) -> None:
        self._reader = protocol

    def get_protocol(self) -> GrpcConnection | asyncio.BufferedProtocol:
        return self._reader

    def deliver(self, data: bytes) -> None:
        """Pass on bytes of the client as an event loop does."""
        while data:
            reader = self._reader
            if isinstance(reader, GrpcConnection):
                reader.data_received(data)
                return
            memory = memoryview(reader.get_buffer(-1))
            size = min(len(memory), len(data))
            memory[:size] = data[:size]
            data = data[size:]
            reader.buffer_updated(size)

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def writelines(self, parts: list[bytes]) -> None:
        self.writes.append(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.aborted = True
        self.close()


class Client:
    """A connection to a server, with the frames that have come and have not been asked for."""

    def __init__(
        self, server: Http2Server, address: str = "1.2.3.4", greets: bool = True, protocol_of_tls: str | None = None
    ) -> None:
        self.connection = GrpcConnection(server)
        self.transport = PlayedTransport(self.connection, address, protocol_of_tls)
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.unread: list[Frame] = []
        self._taken = 0
        self.connection.connection_made(cast("asyncio.Transport", self.transport))
        if greets:
            self.send(PREFACE, settings_frame({}))
            self.received()

    def send(self, *parts: bytes) -> None:
        self.transport.deliver(b"".join(parts))

    def received(self) -> list[Frame]:
        """The frames that have come since this was last asked."""
        self.connection.flush()
        found = self.unread + frames(b"".join(self.transport.writes[self._taken :]))
        self._taken = len(self.transport.writes)
        self.unread = []
        return found

    def headers(self, stream_id: int, *more: tuple[str, str], path: str = "/s/M", flags: int = END_HEADERS) -> bytes:
        fields = [(name, path if name == ":path" else value) for name, value in REQUEST]
        return frame(HEADERS, flags, stream_id, self.encoder.encode([*fields, *more]))

    def call(self, stream_id: int, message: bytes, *more: tuple[str, str], path: str = "/s/M") -> bytes:
        """The frames of a unary call."""
        return self.headers(stream_id, *more, path=path) + frame(DATA, END_STREAM, stream_id, prefixed(message))

    async def until(self, condition: Callable[[list[Frame]], bool]) -> list[Frame]:
        """The frames that come until the condition holds for them."""
        async with asyncio.timeout(60):
            while True:
                self.unread = self.received()
                if condition(self.unread):
                    found, self.unread = self.unread, []
                    return found
                await asyncio.sleep(0)

    async def status(self, stream_id: int) -> tuple[int, dict[str, str], bytes]:
        """The status of a call, its trailing fields with its message, and the data of its answer."""

        def is_last(each: Frame) -> bool:
            return each.stream_id == stream_id and each.kind == HEADERS and bool(each.flags & END_STREAM)

        found = await self.until(lambda frames: any(map(is_last, frames)))
        fields: dict[str, str] = {}
        for each in found:
            if each.kind == HEADERS:  # of all streams, for the sake of the table
                decoded = {str(name): str(value) for name, value in self.decoder.decode(each.payload)}
                if each.stream_id == stream_id:
                    fields |= decoded
        data = b"".join(each.payload for each in found if (each.kind, each.stream_id) == (DATA, stream_id))
        return int(fields.get("grpc-status", -1)), fields, data

    async def end(self) -> Frame:
        """The GOAWAY frame that comes next."""
        found = await self.until(lambda frames: any(each.kind == GOAWAY for each in frames))
        return next(each for each in found if each.kind == GOAWAY)

    async def reset(self, stream_id: int) -> int:
        """The code of the reset that comes next."""
        found = await self.until(
            lambda frames: any((each.kind, each.stream_id) == (RST_STREAM, stream_id) for each in frames)
        )
        return next(int.from_bytes(each.payload, "big") for each in found if each.kind == RST_STREAM)


def prefixed(message: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


def serve(
    handlers: Handlers,
    talk: Callable[[Http2Server], Awaitable[None]],
    *,
    settings: FrontDoorSettings | None = None,
    budget: Budget | None = None,
    max_connections: int | None = None,
    max_message_bytes: int = 1 << 20,
    refusal: Refusal | None = None,
    memory: MessageMemory | None = None,
) -> None:
    """Run a server of the service `s` while `talk` talks to it. `memory` is for the large messages of its method M."""

    async def run() -> None:
        front_door = FrontDoor(settings or FrontDoorSettings(), budget, max_connections=max_connections)
        listener = listen("gRPC", "127.0.0.1", 0)
        server = Http2Server(listener, front_door, max_message_bytes, refusal, health=["/s/Health"])
        server.add_registered_method_handlers("s", handlers)
        if memory is not None:
            server.receive_into("/s/M", memory)
        await server.start()
        try:
            await talk(server)
        finally:
            await server.stop(None)
            assert front_door.budget.used == 0

    asyncio.run(run())
