"""Both gRPC servers for tests, on a real channel."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from sluice.gateway.config.front_door import FrontDoorSettings, GrpcServerKind
from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.front_door.listener import listen
from sluice.gateway.grpc.transport.grpcio.server import GrpcioServer
from sluice.gateway.grpc.transport.http2.server import Http2Server
from sluice.gateway.grpc.transport.server import GrpcServer, Refusal

Handlers = dict[str, Any]
Talk = Callable[[grpc.aio.Channel, GrpcServer], Awaitable[None]]


class Serving:
    """Serves handlers of the service `s`, whose messages are bytes, with one of the servers."""

    def __init__(self, kind: GrpcServerKind) -> None:
        self.kind = kind

    def build(
        self,
        handlers: Handlers,
        refusal: Refusal | None = None,
        budget: Budget | None = None,
        max_message_bytes: int = 4 << 20,
        settings: FrontDoorSettings | None = None,
    ) -> tuple[GrpcServer, int]:
        """A server that is not started, and its port."""
        settings = settings or FrontDoorSettings()
        server: GrpcServer
        if self.kind is GrpcServerKind.GRPCIO:
            options = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", max_message_bytes))
            server = GrpcioServer(options, refusal, budget, settings.grpc_message_s)
            port = server.add_port("127.0.0.1:0")
        else:
            listener = listen("gRPC", "127.0.0.1", 0)
            server = Http2Server(listener, FrontDoor(settings, budget), max_message_bytes, refusal)
            port = listener.getsockname()[1]
        server.add_registered_method_handlers("s", handlers)
        return server, port

    def __call__(self, handlers: Handlers, talk: Talk, budget: Budget | None = None) -> None:
        """Serve while `talk` uses a channel."""

        async def run() -> None:
            server, port = self.build(handlers, budget=budget)
            await server.start()
            try:
                async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                    await talk(channel, server)
            finally:
                await server.stop(None)

        asyncio.run(run())
        assert waiting_threads() == []


def waiting_threads() -> list[threading.Thread]:
    """Threads of servers that have not ended a while after they should have."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("grpc")]
    for thread in threads:
        thread.join(60)
    return [thread for thread in threads if thread.is_alive()]
