"""Sockets that are bound before their server runs, so that an occupied port is reported at once."""

import socket

from sluice.models.errors import ConfigError


def listen(what: str, host: str, port: int, backlog: int | None = None, *, reuse_port: bool = False) -> socket.socket:
    """A listening socket; port 0 takes a free one. The host `::` includes IPv4 where the system allows it.

    With `reuse_port`, others of this user may listen there as well. Raises ConfigError, which names the purpose `what`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        both = host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(
            (host, port), family=family, backlog=backlog, dualstack_ipv6=both, reuse_port=reuse_port
        )
    except OSError as error:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        # The rest of the message repeats the address.
        reason = str(error.strerror or error).partition(" (while")[0]
        raise ConfigError(f"{what} port {address} cannot be bound: {reason}") from error


def listen_shared(what: str, host: str, port: int, count: int, backlog: int | None = None) -> list[socket.socket]:
    """Sockets that listen on one port, among which the kernel distributes the connections. Otherwise as `listen`."""
    if port:  # another server of this user would not be in the way of shared sockets
        listen(what, host, port, 0).close()
    sockets = [listen(what, host, port, backlog, reuse_port=True)]
    try:
        port = sockets[0].getsockname()[1]
        while len(sockets) < count:
            sockets.append(listen(what, host, port, backlog, reuse_port=True))
    except ConfigError:
        for each in sockets:
            each.close()
        raise
    return sockets
