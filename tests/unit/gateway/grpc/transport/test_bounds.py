"""Calls whose message is late, large or not to be parsed."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from sluice.gateway.front_door.budget import Budget
from sluice.gateway.grpc.transport.call import ServerCall
from sluice.gateway.grpc.transport.server import GrpcServer
from tests.unit.gateway.grpc.grpc_channel import refusal
from tests.unit.gateway.instant_gateway import TIMEOUT_S

KEEP, PARSE, STREAM = "/test.Bounds/Keep", "/test.Bounds/Parse", "/test.Bounds/Stream"


async def never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


def parse(message: bytes) -> bytes:
    raise ValueError("it is noise")


def serve(talk: Callable[[GrpcServer, Any, list[ServerCall]], Awaitable[None]], budget: Budget | None = None) -> None:
    """A server with a method that keeps its calls open, and two that cannot parse what they get."""
    kept: list[ServerCall] = []

    async def stream(requests: Any, context: Any) -> None:
        async for _ in requests:
            pass

    async def run() -> None:
        server = GrpcServer((), budget=budget, message_timeout_s=2)
        server.add_registered_method_handlers(
            "test.Bounds",
            {
                "Keep": grpc.unary_unary_rpc_method_handler(lambda body, call: kept.append(call)),
                "Parse": grpc.unary_unary_rpc_method_handler(refuse, parse),
                "Stream": grpc.stream_stream_rpc_method_handler(stream, parse),
            },
        )
        port = server.add_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await asyncio.wait_for(talk(server, channel, kept), TIMEOUT_S)
        finally:
            await server.stop(0)

    asyncio.run(run())


async def refuse(body: bytes, call: ServerCall) -> bytes:
    return body


def test_a_call_without_a_message_ends() -> None:
    async def talk(server: GrpcServer, channel: Any, kept: list[ServerCall]) -> None:
        late = channel.stream_unary(KEEP)(never())
        await until_waiting(server, 1)
        for _ in range(3):
            server.arrivals.turn()
        code, details, _ = await refusal(late)
        assert (code, details) == (grpc.StatusCode.DEADLINE_EXCEEDED, "the message of the call did not arrive in time")
        assert kept == []

    serve(talk)


def test_slow_calls_end_when_the_memory_of_the_process_grows() -> None:
    async def talk(server: GrpcServer, channel: Any, kept: list[ServerCall]) -> None:
        late = channel.stream_unary(KEEP)(never())
        await until_waiting(server, 1)
        server.arrivals.turn()
        parts = b"a" * (64 << 20)  # stands for the parts of messages that the core keeps
        server.arrivals.turn()
        code, _, metadata = await refusal(late)
        assert (code, metadata["retry-after"], len(parts)) == (grpc.StatusCode.UNAVAILABLE, "1", 64 << 20)

    serve(talk, Budget(16 << 20))


async def until_waiting(server: GrpcServer, count: int) -> None:
    while len(server.arrivals) < count:  # noqa: ASYNC110 (a thread of the core delivers the call)
        await asyncio.sleep(0)


def test_messages_count_in_the_budget_until_their_calls_end() -> None:
    budget = Budget(1000)

    async def talk(server: GrpcServer, channel: Any, kept: list[ServerCall]) -> None:
        keep = channel.unary_unary(KEEP)
        calls = []
        for number in (1, 2):
            calls.append(keep(b"a" * 400))
            while len(kept) < number:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert budget.used == 800
        code, details, metadata = await refusal(keep(b"c" * 400))
        assert (code, metadata["retry-after"]) == (grpc.StatusCode.UNAVAILABLE, "1")
        assert "no memory left" in details
        kept[0].finish(b"")
        assert await calls[0] == b""
        kept[1].watch()
        calls[1].cancel()
        while budget.used:  # noqa: ASYNC110
            await asyncio.sleep(0)
        kept[1].end(grpc.StatusCode.CANCELLED)
        assert budget.used == 0

    serve(talk, budget)


def test_a_message_that_cannot_be_parsed_is_an_invalid_argument_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def talk(server: GrpcServer, channel: Any, kept: list[ServerCall]) -> None:
        code, details, _ = await refusal(channel.unary_unary(PARSE)(b"\xff"))
        assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "the message cannot be parsed: it is noise")
        stream = channel.stream_stream(STREAM)()
        await stream.write(b"\xff")
        assert await stream.code() == grpc.StatusCode.INVALID_ARGUMENT

    with caplog.at_level(logging.WARNING):
        serve(talk)
    assert caplog.records == []
