"""One host for all ports: the addresses that HTTP and gRPC listen on are the same."""

import asyncio
import socket

import pytest

from sluice.gateway.front_door.addresses import listening_address
from sluice.gateway.front_door.listener import listen
from sluice.gateway.grpc.service import grpc_server
from sluice.models.errors import ConfigError
from tests.unit.gateway.instant_gateway import instant_gateway

BOTH = ("127.0.0.1", "::1")
needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="IPv6 is off")


def answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=5).close()
    except OSError:
        return False
    return True


@needs_ipv6
@pytest.mark.parametrize(
    ("host", "expected"), [("0.0.0.0", [True, False]), ("::", [True, True]), ("127.0.0.1", [True, False])]
)
def test_a_host_means_the_same_for_both_protocols(host: str, expected: list[bool]) -> None:
    async def bound() -> tuple[list[bool], list[bool]]:
        served = instant_gateway()
        with listen("HTTP", host, 0) as listener:
            http = [answers(address, listener.getsockname()[1]) for address in BOTH]
        server, port = grpc_server(served.dataplane, served.control, host, 0, 1 << 20)
        await server.start()
        try:
            return http, [answers(address, port) for address in BOTH]
        finally:
            await server.stop(None)

    assert asyncio.run(bound()) == (expected, expected)


def test_a_taken_port_is_an_error_on_all_addresses_too() -> None:
    async def bind(port: int) -> None:
        served = instant_gateway()
        grpc_server(served.dataplane, served.control, "0.0.0.0", port, 1 << 20)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^gRPC port 0.0.0.0:{port} cannot be bound"):
            asyncio.run(bind(port))


def test_a_name_is_looked_up_and_ipv4_comes_first() -> None:
    assert listening_address("localhost") == "127.0.0.1"
    assert [listening_address(each) for each in ("::", "0.0.0.0", "fd00::1")] == ["::", "0.0.0.0", "fd00::1"]
    with pytest.raises(ConfigError, match=r"^host: expected an address or a name that is known, got 'no\.invalid': "):
        listening_address("no.invalid")
