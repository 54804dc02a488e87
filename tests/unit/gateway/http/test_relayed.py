"""Connections from front ends to the HTTP server of the gateway's process."""

import asyncio
import socket
from functools import partial
from typing import Any

from sluice.gateway.config.front_door import FrontDoorSettings
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.http.relayed import RelayedConnection, addresses_header
from sluice.gateway.http.server import HttpServer, http_config
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import TIMEOUT_S, identity, instant_gateway

LONG_S = 1e5


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the client's address."""
    body = repr(scope["client"]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def test_a_connection_stays_between_requests_until_the_front_end_ends_it() -> None:
    async def run() -> None:
        served = instant_gateway(identity("s", ("x", DataType.FP32, (1,))))
        door = FrontDoor(FrontDoorSettings(), max_connections=1)
        connection = partial(RelayedConnection, client_scheme="http")
        server = HttpServer(http_config(application, served.route, door, connection=connection), None, front_door=door)
        serving = asyncio.create_task(server.serve())
        await server.accepting.wait()
        ours, theirs = socket.socketpair()
        server.attach(theirs)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        for number in range(1, 4):
            name, value = addresses_header(("192.0.2.7", number), ("192.0.2.1", 80))
            writer.write(b"GET /v2 HTTP/1.1\r\nhost: h\r\n%b: %b\r\n\r\n" % (name, value))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
            assert await reader.readuntil(b")") == b"('192.0.2.7', %d)" % number
            for now_s in (number * LONG_S, number * LONG_S + LONG_S / 2):
                door.sweep(now_s)
        writer.close()
        server.should_exit = True
        await serving

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))
