import socket

import pytest

from sluice.gateway.front_door.listener import listen
from sluice.models.errors import ConfigError


def test_a_free_port_is_listened_on() -> None:
    with listen("HTTP", "127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        pass


def test_an_address_that_cannot_be_bound_is_reported_with_its_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^HTTP port 127.0.0.1:{port} cannot be bound: Address already in use$"):
            listen("HTTP", "127.0.0.1", port)
    # 192.0.2.0/24 is for documentation: nobody has an address of it.
    with pytest.raises(ConfigError, match=r"^HTTP port 192\.0\.2\.1:0 cannot be bound: Cannot assign requested add"):
        listen("HTTP", "192.0.2.1", 0)
