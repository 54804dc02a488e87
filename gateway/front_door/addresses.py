"""The addresses to listen on: a host means the same for all ports of a server."""

import ipaddress
import socket

from sluice.models.errors import ConfigError


def listening_address(host: str) -> str:
    """The address that a host stands for; a name is looked up, IPv4 first. Raises ConfigError for an unknown name."""
    try:
        ipaddress.ip_address(host)
        return host
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"host: expected an address or a name that is known, got '{host}': {reason}") from error
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


def ipv6_blocker(port: int) -> socket.socket | None:
    """A socket that keeps a port of all IPv6 addresses taken; None if there is no IPv6, or the port is taken already.

    Port 0 takes a free one.
    """
    try:
        blocker = socket.socket(socket.AF_INET6)
    except OSError:
        return None
    try:
        blocker.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        blocker.bind(("::", port))
    except OSError:
        blocker.close()
        return None
    return blocker
