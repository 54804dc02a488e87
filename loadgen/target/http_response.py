"""A fast reader of the one kind of HTTP/1.1 response that inference servers send: status, length and body."""

import re
from functools import lru_cache
from typing import NamedTuple

MAX_HEAD_BYTES = 64 << 10
MAX_BODY_BYTES = 1 << 30
MAX_ERROR_BYTES = 1 << 20
"""Most bytes of the body of an answer whose status is not 200; it is kept to tell the reason."""

# Anchored to the start of a line: `Inference-Header-Content-Length:` ends in the same letters.
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,19})[ \t]*\r\n", re.IGNORECASE)
_JSON_LENGTH = re.compile(rb"\r\ninference-header-content-length:[ \t]*(\d{1,19})[ \t]*\r\n", re.IGNORECASE)
_STAGES = re.compile(rb"\r\nx-sluice-stages:[ \t]*([^\r\n]*)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*\r\n", re.IGNORECASE)
_KEEP_ALIVE = re.compile(rb"\r\nconnection:[ \t]*keep-alive[ \t]*\r\n", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r\n)")
_HTTP_1_0 = b"HTTP/1.0"  # closes the connection after an answer that does not say otherwise
_REQUEST_ID = b"\r\nx-sluice-request:"
_END = b"\r\n\r\n"


class ProtocolError(Exception):
    """The bytes are not a response that this client reads; the connection cannot be used any more."""


class Head(NamedTuple):
    """The head of a response.

    `json_bytes`, the length of the JSON before binary tensors, is -1 when absent; `stages`, the server's times by
    stage, is "" when absent.
    """

    status: int
    body_bytes: int
    json_bytes: int
    close: bool
    stages: str = ""


class Response(NamedTuple):
    """A complete response; `body` is empty when bodies are not kept and the status is 200."""

    head: Head
    body: bytes


class ResponseReader:
    """Reads the response to one request at a time from pieces as they arrive."""

    def __init__(self, keep_bodies: bool) -> None:
        self._keep_bodies = keep_bodies
        self._unread = b""
        self._head: Head | None = None
        self._missing = 0
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> Response | None:
        """Take the next piece; returns the response that it completes, if any.

        Raises `ProtocolError`, after which the reader cannot be used.
        """
        head = self._head
        if head is None:
            if self._unread:
                data = self._unread + data
            end = data.find(_END) + 4
            if end < 4:
                self._unread = data
                if len(data) > MAX_HEAD_BYTES:
                    raise ProtocolError(f"response head: longer than {MAX_HEAD_BYTES} bytes")
                return None
            head = self._head = _read_head(_without_id(data[:end]))
            self._unread = b""
            self._missing = head.body_bytes
            data = data[end:]
        self._missing -= len(data)
        if self._keep_bodies or head.status != 200:
            self._pieces.append(data)
        if self._missing > 0:
            return None
        if self._missing < 0:
            raise ProtocolError("response: bytes after its end")
        response = Response(head, b"".join(self._pieces))
        self._head = None
        self._pieces.clear()
        return response


def _without_id(head: bytes) -> bytes:
    """A head without the id that Sluice gives to each request, so that heads are equal again."""
    start = head.find(_REQUEST_ID)
    return head if start < 0 else head[:start] + head[head.find(b"\r\n", start + 2) :]


@lru_cache(maxsize=64)  # most heads of one second are the same bytes
def _read_head(head: bytes) -> Head:
    status = _STATUS.match(head)
    if status is None:
        raise ProtocolError(f"response: expected an HTTP/1.1 status line, got {head[:40]!r}")
    length = _LENGTH.search(head)
    if length is None:
        raise ProtocolError("response: no valid Content-Length (chunked bodies are not supported)")
    most = MAX_BODY_BYTES if status[1] == b"200" else MAX_ERROR_BYTES
    if int(length[1]) > most:
        raise ProtocolError(f"response body: longer than {most} bytes, with status {int(status[1])}")
    json_length = _JSON_LENGTH.search(head)
    stages = _STAGES.search(head)
    return Head(
        int(status[1]),
        int(length[1]),
        int(json_length[1]) if json_length else -1,
        _KEEP_ALIVE.search(head) is None if head.startswith(_HTTP_1_0) else _CLOSE.search(head) is not None,
        stages[1].decode("latin-1") if stages else "",
    )
