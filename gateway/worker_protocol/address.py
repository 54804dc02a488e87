"""Addresses of worker servers."""

from sluice.models.errors import PartitionError

_MOST_PORT = 65535


def split_address(address: str, least_port: int = 1) -> tuple[str, int]:
    """The host and the port of an address such as `10.0.0.5:9001` or `[::1]:9001`. Raises PartitionError."""
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdecimal() and len(port) < 6 and least_port <= int(port) <= _MOST_PORT
    if not bare or not is_port or (":" in bare) != host.startswith("["):
        raise PartitionError(f"expected an address HOST:PORT, such as 10.0.0.5:9001, got '{address:.200}'")
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    """The address of a host and a port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
