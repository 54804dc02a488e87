"""Calls whose message is late."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from sluice.gateway.front_door.budget import Budget
from sluice.gateway.grpc.transport.grpcio.server import GrpcioServer
from tests.unit.gateway.grpc.grpc_channel import refusal
from tests.unit.gateway.instant_gateway import TIMEOUT_S


async def never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


def serve(talk: Callable[[GrpcioServer, Any, list[bytes]], Awaitable[None]], budget: Budget | None = None) -> None:
    """A server whose calls wait for their message for 2 s."""
    begun: list[bytes] = []

    async def run() -> None:
        server = GrpcioServer((), budget=budget, message_timeout_s=2)
        handler = grpc.unary_unary_rpc_method_handler(lambda body, call: begun.append(body))
        server.add_registered_method_handlers("s", {"M": handler})
        port = server.add_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await asyncio.wait_for(talk(server, channel, begun), TIMEOUT_S)
        finally:
            await server.stop(0)

    asyncio.run(run())


def test_a_call_without_a_message_ends() -> None:
    async def talk(server: GrpcioServer, channel: Any, begun: list[bytes]) -> None:
        late = channel.stream_unary("/s/M")(never())
        await until_waiting(server, 1)
        for _ in range(3):
            server.arrivals.turn()
        code, details, _ = await refusal(late)
        assert (code, details) == (grpc.StatusCode.DEADLINE_EXCEEDED, "the message of the call did not arrive in time")
        assert begun == []

    serve(talk)


def test_slow_calls_end_when_the_memory_of_the_process_grows() -> None:
    async def talk(server: GrpcioServer, channel: Any, begun: list[bytes]) -> None:
        late = channel.stream_unary("/s/M")(never())
        await until_waiting(server, 1)
        server.arrivals.turn()
        parts = b"a" * (64 << 20)  # stands for the parts of messages that the core keeps
        server.arrivals.turn()
        code, _, metadata = await refusal(late)
        assert (code, metadata["retry-after"], len(parts)) == (grpc.StatusCode.UNAVAILABLE, "1", 64 << 20)

    serve(talk, Budget(16 << 20))


async def until_waiting(server: GrpcioServer, count: int) -> None:
    while len(server.arrivals) < count:  # noqa: ASYNC110 (a thread of the core delivers the call)
        await asyncio.sleep(0)
