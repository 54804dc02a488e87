"""Tells clients apart by a header of HTTP, or by the metadata of gRPC."""

from collections.abc import Iterable

MAX_CLIENT_LENGTH = 128
"""Characters of a client's name that count; the rest is cut off."""


class ClientKey:
    """The name, in lower case, of the header whose value names the client of a request."""

    __slots__ = ("_header", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._header = name.encode()

    def in_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The client that the headers of an HTTP request name; "" if none does. The first one counts."""
        for name, value in headers:
            if name == self._header:
                return value[:MAX_CLIENT_LENGTH].decode("latin-1")
        return ""

    def in_metadata(self, metadata: Iterable[tuple[str, str]]) -> str:
        """The client that the metadata of a gRPC call names; "" if none does. The first one counts."""
        for name, value in metadata:
            if name == self._name:
                return value[:MAX_CLIENT_LENGTH]
        return ""
