"""The end of the server on the core of grpcio, as clients see it who ask until then."""

import asyncio
import threading
from collections.abc import Callable
from typing import cast

import grpc
import grpc.aio
import pytest

from sluice.gateway.config.front_door import GrpcServerKind
from sluice.gateway.grpc.transport.grpcio.server import GrpcioServer
from sluice.gateway.grpc.transport.server import GrpcServer
from tests.unit.gateway.grpc.grpc_channel import refusal
from tests.unit.gateway.grpc.transport.serving import Serving
from tests.unit.gateway.grpc.transport.test_server import unary
from tests.unit.gateway.grpc.transport.test_stop import STOPPING, echo

Patience = Callable[[GrpcServer, int], None]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Patience:
    """Makes a server that stops take calls until `count` of them have come."""
    last_calls_s, sleep = 12.5, asyncio.sleep

    def be_patient(server: GrpcServer, count: int) -> None:
        async def wait(delay_s: float) -> None:
            if delay_s != last_calls_s:
                await sleep(delay_s)
                return
            async with asyncio.timeout(60):
                while len(cast(GrpcioServer, server)._late or ()) < count:
                    await sleep(0)

        monkeypatch.setattr("sluice.gateway.grpc.transport.grpcio.server.LAST_CALLS_S", last_calls_s)
        monkeypatch.setattr(asyncio, "sleep", wait)

    return be_patient


def test_calls_that_come_while_a_server_stops_are_refused(patience: Patience) -> None:
    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        call = channel.unary_unary("/s/M", None, None)
        assert await call(b"before") == b"before"
        patience(server, 100)
        stopping = asyncio.create_task(server.stop(60))
        await asyncio.sleep(0)
        assert [await refusal(reply) for reply in [call(b"late") for _ in range(100)]] == [STOPPING] * 100
        await stopping

    Serving(GrpcServerKind.GRPCIO)(unary(echo), talk)


def test_a_client_that_asks_again_at_once_is_refused_once_and_reaches_nobody_then(patience: Patience) -> None:
    async def talk(channel: grpc.aio.Channel, server: GrpcServer) -> None:
        call = channel.unary_unary("/s/M", None, None)
        assert await call(b"before") == b"before"
        patience(server, 1)
        stopping = asyncio.create_task(server.stop(60))
        await asyncio.sleep(0)
        assert await refusal(call(b"late")) == STOPPING
        code, details, _ = await refusal(call(b"too late"))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "the server is stopping" not in details
        await stopping

    Serving(GrpcServerKind.GRPCIO)(unary(echo), talk)


def test_the_thread_of_a_server_whose_loop_was_closed_ends_with_the_next_call() -> None:
    async def start() -> int:
        server = GrpcioServer(())
        port = server.add_port("127.0.0.1:0")
        await server.start()
        return port

    port = asyncio.run(start())
    timeout_s = 0.2
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        while any(thread.name == "grpc" for thread in threading.enumerate()):
            assert timeout_s < 60
            with pytest.raises(grpc.RpcError):
                channel.unary_unary("/s/M", None, None)(b"", timeout=timeout_s)
            timeout_s *= 2  # on a busy machine it takes longer to reach the server
