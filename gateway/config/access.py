"""Who may talk to a server: its own names, the origins of web pages, and groups that are closed on a network."""

import ipaddress
import re
import socket
from collections.abc import Collection
from functools import lru_cache

import msgspec

from sluice.gateway.config.restricted import ApiGroup

ANY = "*"
"""Stands for every host, or every origin."""

MANAGEMENT = (
    ApiGroup.MODEL_REPOSITORY,
    ApiGroup.SHARED_MEMORY,
    ApiGroup.TRACE,
    ApiGroup.LOGGING,
    ApiGroup.PARTITIONS,
    ApiGroup.EXPLAIN,
)
"""The groups that change a server or show the requests of others: closed on a network unless configured."""

_HOST = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+")


class CorsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The web pages, by their origins, that may read from the server and ask for inference."""

    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for each in self.origins:
            if each != ANY and not _ORIGIN.fullmatch(each.lower()):
                raise ValueError(f"origins: expected origins such as https://app.example:8443, or '*', got '{each}'")


def check_hosts(hosts: Collection[str]) -> None:
    """Raise ValueError for an entry that is not a name or an address of a host, without a port."""
    for each in hosts:
        if each != ANY and not _HOST.fullmatch(each.lower()) and _address(each) is None:
            raise ValueError(
                f"allowed_hosts: expected names or addresses without a port, such as models.example, or '*', "
                f"got '{each}'"
            )


def host_names(host: str, allowed: Collection[str]) -> frozenset[bytes] | None:
    """The hosts that requests may name, in lower case, at a server that listens on `host`; None for any.

    A server that only this machine reaches has few names. Any other is checked only if there are `allowed` ones.
    """
    if ANY in allowed or not (allowed or is_loopback(host)):
        return None
    names = {"localhost", "127.0.0.1", "[::1]", socket.gethostname(), *(_in_header(each) for each in (host, *allowed))}
    return frozenset(name.lower().encode() for name in names)


@lru_cache
def is_loopback(host: str) -> bool:
    """True if only this machine reaches a server that listens on `host`; a name counts by all its addresses."""
    if (address := _address(host)) is None:
        try:
            found = {str(each[4][0]) for each in socket.getaddrinfo(host or None, 0, flags=socket.AI_PASSIVE)}
        except (OSError, UnicodeError):
            return False
        return all(_is_local(ipaddress.ip_address(each.partition("%")[0])) for each in found)
    return _is_local(address)


def _is_local(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _in_header(host: str) -> str:
    """A host as it is in the header `Host`: IPv6 addresses are in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
