"""The headers of a call, and the header blocks of statuses (gRPC over HTTP/2)."""

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import grpc

from sluice.gateway.http2.frames import ErrorCode, StreamFault
from sluice.gateway.http2.header_blocks import Fields, encode_fields, encode_string, literal_name

ENCODINGS = ("identity", "deflate", "gzip")
"""Encodings of messages that are understood."""
MAX_DETAILS_BYTES = 4096
"""Messages of statuses that are longer when they are escaped are cut: clients take 8 KiB of metadata."""

_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_RESERVED = frozenset(
    (b"te", b"content-type", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"content-length")
)
"""Fields of the protocol, which are no metadata."""
_UNESCAPED = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""Characters of a status message beside letters and digits."""
_CUT_ESCAPE = re.compile(r"%.?$")
_NOT_PRINTABLE = re.compile(rb"[^\x20-\x7e]")
_NAMES: dict[str, bytes] = {}
"""Encoded names of trailing metadata, which are few."""

Status = tuple[grpc.StatusCode, str]


class CallHead:
    """The meaning of the headers of a call, which is shared by calls with the same headers.

    `http_status` is set if the request is none of gRPC, `refusal` if the call ends with a status because of its
    headers. `timeout_s` is None without a deadline, `content_length` -1 if the client did not say.
    """

    __slots__ = ("content_length", "encoding", "http_status", "metadata", "method", "refusal", "timeout_s")

    def __init__(self, fields: Fields) -> None:
        self.method = ""
        self.encoding = "identity"
        self.timeout_s: float | None = None
        self.content_length = -1
        self.http_status = 0
        self.refusal: Status | None = None
        metadata: list[tuple[str, Any]] = []
        content_type = b""
        for name, value in fields:
            if name == b":path":
                self.method = _text(value)
            elif name == b":method":
                if value != b"POST":
                    self.http_status = 405
            elif name == b"content-type":
                content_type = value
            elif name == b"grpc-timeout":
                self._set_timeout(value)
            elif name == b"grpc-encoding":
                self._set_encoding(value)
            elif name == b"content-length":
                self._set_length(value)
            elif not name.startswith(b":") and name not in _RESERVED:
                if name.endswith(b"-bin"):
                    metadata += [(name.decode(), _binary(name, each)) for each in value.split(b",")]
                else:
                    metadata.append((name.decode(), _text(value)))
        self.metadata = tuple(metadata)
        if not self.http_status and not _is_grpc(content_type):
            self.http_status = 415

    def _set_timeout(self, value: bytes) -> None:
        match = _TIMEOUT.fullmatch(value)
        if match is None:
            reason = f"grpc-timeout: expected up to 8 digits and a unit of HMSmun, got '{_text(value):.20}'"
            self.refusal = grpc.StatusCode.INVALID_ARGUMENT, reason
        else:
            self.timeout_s = int(match[1]) * _SECONDS[match[2]]

    def _set_encoding(self, value: bytes) -> None:
        self.encoding = _text(value)
        if self.encoding not in ENCODINGS:
            reason = f"grpc-encoding: expected one of {', '.join(ENCODINGS)}, got '{self.encoding:.40}'"
            self.refusal = grpc.StatusCode.UNIMPLEMENTED, reason

    def _set_length(self, value: bytes) -> None:
        length = int(value) if value.isdigit() and len(value) < 19 else -1
        if length < 0 or self.content_length not in (-1, length):
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"expected one content-length, got {value[:40]!r}")
        self.content_length = length


def _is_grpc(content_type: bytes) -> bool:
    return content_type.startswith(b"application/grpc") and content_type[16:17] in (b"", b"+", b";")


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _binary(name: bytes, value: bytes) -> bytes:
    """The bytes of a value in Base64, with or without padding."""
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error as error:
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"expected Base64 as the value of {name[:80]!r}") from error


def status_block(code: grpc.StatusCode, details: str) -> bytes:
    """The header block of a status without metadata."""
    fields = [(b"grpc-status", str(code.value[0]).encode())]
    if details:
        escaped = quote_from_bytes(details.encode(errors="replace"), _UNESCAPED)
        if len(escaped) > MAX_DETAILS_BYTES:
            whole = unquote_to_bytes(_CUT_ESCAPE.sub("", escaped[:MAX_DETAILS_BYTES])).decode(errors="ignore")
            escaped = quote_from_bytes(f"{whole}…".encode(), _UNESCAPED)
        fields.append((b"grpc-message", escaped.encode()))
    return encode_fields(fields)


def metadata_block(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    """The header block of trailing metadata."""
    block = b""
    for name, value in metadata:
        start = _NAMES.get(name)
        if start is None:
            start = literal_name(name.lower().encode())
            if len(_NAMES) < 64:
                _NAMES[name] = start
        if name.endswith("-bin"):
            data = value.encode() if isinstance(value, str) else value
            encoded = base64.b64encode(data).rstrip(b"=")
        elif isinstance(value, str) and value.isascii() and value.isprintable():
            encoded = value.strip().encode()
        else:
            encoded = _NOT_PRINTABLE.sub(b"?", value.encode() if isinstance(value, str) else value).strip()
        block += start + encode_string(encoded)
    return block


def http_block(status: int) -> bytes:
    """The header block of an answer to a request that is none of gRPC."""
    return encode_fields(((b":status", str(status).encode()), (b"content-length", b"0")))
