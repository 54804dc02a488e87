"""The number of front ends, and their sockets."""

import os
import socket

import pytest

from sluice.gateway.front_door.listener import listen, listen_shared
from sluice.gateway.front_ends.front_ends import front_end_count
from sluice.models.errors import ConfigError


@pytest.mark.parametrize(
    ("setting", "cores", "count"),
    [(0, 64, 0), (3, 1, 3), ("auto", 2, 0), ("auto", 7, 0), ("auto", 8, 2), ("auto", 16, 4), ("auto", 256, 8)],
)
def test_the_number_of_front_ends(setting: int | str, cores: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert front_end_count(setting) == count


def test_sockets_on_one_port_get_connections_each() -> None:
    sockets = listen_shared("HTTP", "127.0.0.1", 0, 3, 128)
    ports = {each.getsockname()[1] for each in sockets}
    assert len(ports) == 1
    (port,) = ports
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(64)]
    accepted = []
    for each in sockets:
        each.setblocking(False)
        taken = 0
        try:
            while True:
                each.accept()[0].close()
                taken += 1
        except BlockingIOError:
            accepted.append(taken)
    assert sum(accepted) == 64
    assert min(accepted) > 0
    for each in (*clients, *sockets):
        each.close()


def test_a_port_that_is_taken_is_refused_although_sockets_could_share_it() -> None:
    taken = listen("HTTP", "127.0.0.1", 0, 16, reuse_port=True)
    port = taken.getsockname()[1]
    with pytest.raises(ConfigError, match=f"HTTP port 127.0.0.1:{port} cannot be bound"):
        listen_shared("HTTP", "127.0.0.1", port, 2, 16)
    taken.close()
    for each in listen_shared("HTTP", "127.0.0.1", port, 2, 16):
        each.close()
