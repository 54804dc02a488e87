"""Calls whose clients have gone before the server has their message."""

import asyncio
from typing import Any, cast

import grpc
import grpc.aio

from sluice.gateway.config.front_door import GrpcServerKind
from sluice.gateway.grpc.transport.grpcio.call import GrpcioCall
from sluice.gateway.grpc.transport.grpcio.server import GrpcioServer
from sluice.gateway.grpc.transport.server import GrpcServer
from tests.unit.gateway.grpc.transport.serving import Handlers, Serving
from tests.unit.gateway.grpc.transport.test_server import unary


class GoneCall:
    """A call whose client gave it up before the server had its message."""

    method = "/s/M"
    cancelled = True
    ended: grpc.StatusCode | None = None

    def end(self, code: grpc.StatusCode) -> None:
        self.ended = code


class Message:
    """An event that brings a message."""

    def __init__(self) -> None:
        self.batch_operations = [self]

    def message(self) -> bytes:
        return b"x"


def test_nothing_is_begun_for_a_call_that_was_given_up_before_its_message_came() -> None:
    begun: list[bytes] = []

    def plainly(message: bytes, call: Any) -> None:
        begun.append(message)

    async def with_a_task(message: bytes, call: Any) -> bytes:
        begun.append(message)
        return message

    for behaviour in (plainly, with_a_task):
        handlers = unary(behaviour)

        async def talk(channel: grpc.aio.Channel, server: GrpcServer, handlers: Handlers = handlers) -> None:
            call = GoneCall()
            cast(GrpcioServer, server)._received(cast(GrpcioCall, call), server.methods["/s/M"], Message())
            await asyncio.sleep(0)
            assert (call.ended, begun) == (grpc.StatusCode.CANCELLED, [])

        Serving(GrpcServerKind.GRPCIO)(handlers, talk)
