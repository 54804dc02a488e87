"""Content encodings of HTTP bodies: gzip and deflate. They are too slow for the event loop."""

import re
import zlib

from sluice.models.errors import UnsupportedRequest

ENCODINGS = b"gzip, deflate"
"""The supported encodings, as in a header."""

MIN_BYTES = 1024
"""Smaller responses are not compressed: they fit into one packet either way."""

_LEVEL = 1
_FORMAT = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
_ACCEPTED = re.compile(rb"\s*(?P<name>[^\s;,]+)\s*(?:;\s*q\s*=\s*(?P<weight>[0-9.]{1,5})\s*)?")


class UnsupportedEncoding(UnsupportedRequest):
    """The body has an unsupported encoding."""


def is_encoded(value: bytes) -> bool:
    """True if a body with this Content-Encoding must be decoded. Raises UnsupportedEncoding."""
    name = value.strip().lower()
    if name in (b"", b"identity"):
        return False
    if name not in _FORMAT:
        raise UnsupportedEncoding(
            f"Content-Encoding '{value[:80].decode('latin-1')}' is not supported; expected {ENCODINGS.decode()} or none"
        )
    return True


def accepted_encoding(value: bytes) -> bytes:
    """The supported encoding of the greatest weight in an Accept-Encoding header; b"" for none."""
    best, chosen = 0.0, b""
    for part in value.lower().split(b","):
        match = _ACCEPTED.fullmatch(part)
        if match is None or match["name"] not in _FORMAT:
            continue
        try:
            weight = float(match["weight"] or 1)
        except ValueError:
            continue
        if weight > best:
            best, chosen = weight, match["name"]
    return chosen


def compress(encoding: bytes, body: bytes) -> bytes:
    """Compress a body with an encoding from `accepted_encoding`."""
    return zlib.compress(body, _LEVEL, _FORMAT[encoding])
