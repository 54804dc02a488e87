"""Sockets that listen before a server runs on them, so that a port that is taken is told at once."""

import socket

from sluice.models.errors import ConfigError


def listen(what: str, host: str, port: int, backlog: int | None = None) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises ConfigError, which says `what` it was for."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        # What follows the reason is an address once more.
        reason = str(error.strerror or error).partition(" (while")[0]
        raise ConfigError(f"{what} port {address} cannot be bound: {reason}") from error
