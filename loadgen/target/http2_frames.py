"""The frames of HTTP/2 that a client of gRPC sends and reads (RFC 9113)."""

import struct
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

import hpack

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
"""Kinds of frames."""
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32
"""Flags of frames."""
HEAD = struct.Struct(">HBBBI")
"""The head of a frame: the length in two parts, the kind, the flags and the stream."""
FRAME_BYTES = 16_384
"""Length of the longest frame that every endpoint takes."""
LARGEST_WINDOW = (1 << 31) - 1
FIRST_WINDOW = 65_535
TABLE_SIZE, ENABLE_PUSH, MAX_STREAMS, STREAM_WINDOW, MAX_FRAME = 1, 2, 3, 4, 5
"""Identifiers of settings."""
REFUSED_STREAM, CANCEL = 7, 8
"""Codes of RST_STREAM: for a stream that the server has not begun with, and for one that nobody needs any more."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_REQUEST_ID = b"\x00\x10x-sluice-request"
_LONGEST_SHORT_STRING = 127
"""Lengths from here on take several bytes, or are of strings with Huffman coding (RFC 7541, section 5.2)."""
_SETTING = struct.Struct(">HI")


class Http2Error(Exception):
    """The server broke the rules of HTTP/2, or speaks another protocol; the connection cannot be used any more."""


class Fields(NamedTuple):
    """The header fields of an answer that a client of gRPC looks at; `grpc_status` is -1 when absent."""

    http_status: int = 200
    grpc_status: int = -1
    message: str = ""
    retry_after: bool = False
    stages: str = ""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A complete frame."""
    return frame_head(len(payload), kind, flags, stream) + payload


def frame_head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """The nine bytes before the payload of a frame."""
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream)


def settings(pairs: tuple[tuple[int, int], ...]) -> bytes:
    """A frame with settings."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in pairs))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """The settings of a frame, by their identifiers; raises `Http2Error` for a frame of a wrong length."""
    if len(payload) % _SETTING.size:
        raise Http2Error(f"HTTP/2: SETTINGS of {len(payload)} bytes; expected a multiple of {_SETTING.size}")
    return list(_SETTING.iter_unpack(payload))


def window_update(stream: int, increment: int) -> bytes:
    """A frame that lets the server send `increment` bytes more."""
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


GREETING = (
    _PREFACE
    # Without a dynamic table, equal header blocks have equal bytes, so that each is decoded once.
    + settings(((TABLE_SIZE, 0), (ENABLE_PUSH, 0), (STREAM_WINDOW, LARGEST_WINDOW)))
    + window_update(0, LARGEST_WINDOW - FIRST_WINDOW)
)
"""The first bytes of a client whose windows are never full."""


def unpadded(payload: bytes, flags: int) -> bytes:
    """The payload of DATA or HEADERS without padding and priority; raises `Http2Error` for one that is too short."""
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload or payload[0] >= end:
            raise Http2Error("HTTP/2: more padding than payload")
        start, end = 1, end - payload[0]
    if flags & PRIORITY:
        start += 5
    return payload[start:end]


def without_id(block: bytes) -> bytes:
    """A header block without the id that Sluice gives to each request, so that blocks are equal again.

    The field is cut out where it is a literal without Huffman coding whose value is short, as Sluice sends it.
    """
    start = block.find(_REQUEST_ID)
    value = start + len(_REQUEST_ID)
    if start < 0 or value >= len(block) or block[value] >= _LONGEST_SHORT_STRING:
        return block
    return block[:start] + block[value + 1 + block[value] :]


@lru_cache(maxsize=256)  # most answers have the same fields
def read_fields(block: bytes) -> Fields:
    """The fields of a header block; raises `Http2Error` for one that cannot be decoded without a dynamic table."""
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = decoder.header_table_size = 0
    fields = Fields()
    try:
        for name, value in decoder.decode(block):
            match name:
                case ":status":
                    fields = fields._replace(http_status=int(value))
                case "grpc-status":
                    fields = fields._replace(grpc_status=int(value))
                case "grpc-message":
                    fields = fields._replace(message=unquote(value))
                case "retry-after":
                    fields = fields._replace(retry_after=True)
                case "x-sluice-stages":
                    fields = fields._replace(stages=value)
    except (hpack.HPACKError, UnicodeError, ValueError) as error:
        raise Http2Error(f"HTTP/2: unreadable header block: {error}") from error
    return fields
