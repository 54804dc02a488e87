"""Content encodings of HTTP bodies: gzip and deflate. They are too slow for the event loop."""

import re
import zlib

from sluice.gateway.front_door.budget import Budget
from sluice.models.errors import RequestError, UnsupportedRequest

ENCODINGS = b"gzip, deflate"
"""The supported encodings, as in a header."""

MIN_BYTES = 1024
"""Smaller responses are not compressed: they fit into one packet either way."""

_STEP = 64 << 10
_LEVEL = 1
_FORMAT = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
_EITHER_FORMAT = 32 + zlib.MAX_WBITS
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


def decompress(body: bytes | bytearray, max_bytes: int, budget: Budget | None = None) -> bytes | bytearray:
    """Decode a body; takes at most `max_bytes` of memory.

    The memory counts in the budget until the function returns. Raises RequestError, and RejectedError when the budget
    has no room.
    """
    stream = zlib.decompressobj(_EITHER_FORMAT)
    decoded = bytearray()
    taken = 0
    try:
        for begin in range(0, len(body), _STEP):
            if stream.eof:
                raise RequestError("the body cannot be decompressed: there is data after its end")
            rest = bytes(body[begin : begin + _STEP])
            while rest:
                if budget is not None and len(decoded) + _STEP > taken:
                    budget.grow(_STEP)
                    taken += _STEP
                decoded += stream.decompress(rest, min(_STEP, max_bytes + 1 - len(decoded)))
                if len(decoded) > max_bytes:
                    raise RequestError(f"the decompressed body exceeds the limit of {max_bytes} bytes")
                rest = stream.unconsumed_tail
        if not stream.eof:
            raise RequestError("the body cannot be decompressed: it is truncated")
        if stream.unused_data:
            raise RequestError("the body cannot be decompressed: there is data after its end")
        return decoded
    except zlib.error as error:
        raise RequestError(f"the body cannot be decompressed: {error}") from error
    finally:
        if budget is not None:
            budget.shrink(taken)


def compress(encoding: bytes, body: bytes) -> bytes:
    """Compress a body with an encoding from `accepted_encoding`."""
    return zlib.compress(body, _LEVEL, _FORMAT[encoding])
