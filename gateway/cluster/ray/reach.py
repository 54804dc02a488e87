"""The question if anything listens at the address of a Ray cluster: Ray itself takes half a minute to say no."""

import socket

TIMEOUT_S = 2.0


def answers(address: str) -> bool:
    """True if something listens at a host and port, or for `auto`, which only Ray can look up."""
    host, _, port = address.rpartition(":")
    if not host:
        return True
    try:
        with socket.create_connection((host, int(port)), TIMEOUT_S):
            return True
    except OSError:
        return False
