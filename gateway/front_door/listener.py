"""Sockets that are bound before their server runs, so that an occupied port is reported at once."""

import socket

from sluice.models.errors import ConfigError


def listen(what: str, host: str, port: int, backlog: int | None = None) -> socket.socket:
    """A listening socket; port 0 takes a free one. The host `::` includes IPv4 where the system allows it.

    Raises ConfigError, which names the purpose `what`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        both = host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((host, port), family=family, backlog=backlog, dualstack_ipv6=both)
    except OSError as error:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        # The rest of the message repeats the address.
        reason = str(error.strerror or error).partition(" (while")[0]
        raise ConfigError(f"{what} port {address} cannot be bound: {reason}") from error
