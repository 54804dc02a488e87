"""Calls whose message is large or cannot be parsed."""

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio
import pytest

from sluice.gateway.front_door.budget import Budget
from sluice.gateway.grpc.transport.server import GrpcServer
from tests.unit.gateway.grpc.grpc_channel import refusal
from tests.unit.gateway.grpc.transport.serving import Serving


def test_messages_count_in_the_budget_until_their_calls_end(serve: Serving) -> None:
    budget = Budget(1000)
    kept: list[Any] = []

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        keep = channel.unary_unary("/s/M", None, None)
        calls = []
        for number in (1, 2):
            calls.append(keep(b"a" * 400))
            while len(kept) < number:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert budget.used == 800
        code, details, metadata = await refusal(keep(b"c" * 400))
        assert (code, metadata["retry-after"]) == (grpc.StatusCode.UNAVAILABLE, "1")
        assert "no memory left" in details
        kept[0].finish(b"")
        assert await calls[0] == b""
        calls[1].cancel()
        while budget.used:  # noqa: ASYNC110
            await asyncio.sleep(0)
        kept[1].end(grpc.StatusCode.CANCELLED)
        assert budget.used == 0

    serve({"M": grpc.unary_unary_rpc_method_handler(lambda body, call: kept.append(call))}, talk, budget)


def test_a_message_that_cannot_be_parsed_is_an_invalid_argument_without_a_traceback(
    serve: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    def parse(message: bytes) -> bytes:
        raise ValueError("it is noise")

    async def answer(body: bytes, call: Any) -> bytes:
        return body

    async def stream(requests: Any, context: Any) -> None:
        async for _ in requests:
            pass

    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        code, details, _ = await refusal(channel.unary_unary("/s/Parse", None, None)(b"\xff"))
        assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "the message cannot be parsed: it is noise")
        call = channel.stream_stream("/s/Stream", None, None)(None)
        await call.write(b"\xff")
        assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT

    handlers = {
        "Parse": grpc.unary_unary_rpc_method_handler(answer, parse),
        "Stream": grpc.stream_stream_rpc_method_handler(stream, parse),
    }
    with caplog.at_level(logging.WARNING):
        serve(handlers, talk)
    assert [record for record in caplog.records if record.name.startswith("sluice")] == []
