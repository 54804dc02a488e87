"""Conversations with the gRPC server on a real channel."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2_grpc

from sluice.gateway.config.front_door import GrpcServerKind
from sluice.gateway.grpc.service import grpc_server
from tests.unit.gateway.instant_gateway import InstantGateway


def converse_on_channel(
    served: InstantGateway,
    talk: Callable[[grpc.aio.Channel], Awaitable[None]],
    kind: GrpcServerKind = GrpcServerKind.SLUICE,
) -> None:
    """Serve on a free port and let `talk` use a channel."""

    async def run() -> None:
        server, port = grpc_server(
            served.dataplane, served.control, "127.0.0.1", 0, 1 << 20, restrictions=served.restrictions, kind=kind
        )
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await talk(channel)
        finally:
            await server.stop(None)

    asyncio.run(run())


def converse(
    served: InstantGateway,
    talk: Callable[[Any], Awaitable[None]],
    kind: GrpcServerKind = GrpcServerKind.SLUICE,
) -> None:
    """Serve on a free port and let `talk` use a stub of the protocol's service."""
    converse_on_channel(served, lambda channel: talk(service_pb2_grpc.GRPCInferenceServiceStub(channel)), kind)


async def refusal(reply: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """The status, details and trailing metadata that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await reply
    error = caught.value
    metadata: Any = error.trailing_metadata()
    return error.code(), error.details() or "", dict(metadata)
