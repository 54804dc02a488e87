"""Addresses of targets: what follows `--target`."""

from typing import NamedTuple
from urllib.parse import urlsplit

from sluice.models.errors import ConfigError

EXPECTED = (
    "http://host:port, https://…, grpc://…, grpcs://…, unix:///path (HTTP), grpc+unix:///path, "
    "inproc:module:factory or sim:FILE.yaml"
)
_UNIX = ("unix", "http+unix", "grpc+unix")


class Address(NamedTuple):
    """The place of a server: a host and a port, or the path of a Unix socket.

    `port` is 0 where the URL has none. `authority` is the place as clients name it.
    """

    scheme: str
    host: str
    port: int
    path: str
    authority: str


def parse_address(url: str) -> Address:
    """The address of a URL; raises `ConfigError` for one that has no place, or more than a place."""
    try:
        parts = urlsplit(url)
        if parts.scheme in _UNIX:
            if not parts.netloc and parts.path.strip("/") and not parts.query and not parts.fragment:
                return Address(parts.scheme, "localhost", 0, parts.path, "localhost")
        elif parts.hostname and parts.path in ("", "/") and not parts.query and not parts.fragment and parts.port != 0:
            return Address(parts.scheme, parts.hostname, parts.port or 0, "", parts.netloc)
    except ValueError:  # a port that is no number
        pass
    raise ConfigError(f"--target: expected {EXPECTED}, got {url}")
