"""A fast reader of the responses that inference servers send over HTTP/1.1: status, length and body, or chunks."""

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
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")
_MAX_LINE_BYTES = 1 << 10
_BYTES_AFTER = "response: bytes after its end"
_LINE_END = b"\r\n"
_END = b"\r\n\r\n"


class ProtocolError(Exception):
    """The bytes are not a response that this client reads; the connection cannot be used any more."""


class Head(NamedTuple):
    """The head of a response.

    `body_bytes` is -1 for a body in chunks. `json_bytes`, the length of the JSON before binary tensors, is -1 when
    absent; `stages`, the server's times by stage, is "" when absent.
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


class ChunkReader:
    """Reads one body in chunks (RFC 9112, section 7.1) of at most `most` bytes from pieces as they arrive."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._unread = bytearray()
        self._body = bytearray()

    def feed(self, data: bytes) -> bytes | None:
        """Take the next piece; returns the body when it is complete. Raises `ProtocolError`."""
        unread, start = self._unread, 0
        unread += data
        while (line_end := unread.find(_LINE_END, start)) >= 0:
            line = _CHUNK.fullmatch(unread, start, line_end + 2)
            if line is None:
                got = bytes(unread[start : start + 40])
                raise ProtocolError(f"response: expected the length of a chunk, got {got!r}")
            size = int(line[1], 16)
            if not size:
                del unread[:start]
                return self._ended(line_end - start)
            if len(self._body) + size > self._most:
                raise ProtocolError(f"response body: longer than {self._most} bytes")
            end = line_end + 2 + size
            if len(unread) < end + 2:
                break
            if unread[end : end + 2] != _LINE_END:
                raise ProtocolError("response: a chunk longer than its length")
            self._body += unread[line_end + 2 : end]
            start = end + 2
        else:
            if len(unread) - start > _MAX_LINE_BYTES:
                raise ProtocolError(f"response: a chunk's first line is longer than {_MAX_LINE_BYTES} bytes")
        del unread[:start]
        return None

    def _ended(self, line_end: int) -> bytes | None:
        end = self._unread.find(_END, line_end) + 4  # trailers, if any, are before it
        if end < 4:
            if len(self._unread) - line_end > MAX_HEAD_BYTES:
                raise ProtocolError(f"response trailers: longer than {MAX_HEAD_BYTES} bytes")
            return None
        if end != len(self._unread):
            raise ProtocolError(_BYTES_AFTER)
        return bytes(self._body)


class ResponseReader:
    """Reads the response to one request at a time from pieces as they arrive."""

    def __init__(self, keep_bodies: bool) -> None:
        self._keep_bodies = keep_bodies
        self._unread = b""
        self._head: Head | None = None
        self._missing = 0
        self._pieces: list[bytes] = []
        self._chunks: ChunkReader | None = None

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
            if head.body_bytes < 0:
                self._chunks = ChunkReader(_most_bytes(head.status))
        if self._chunks is not None:
            body = self._chunks.feed(data)
            if body is None:
                return None
            self._head = self._chunks = None
            return Response(head, body if self._keep_bodies or head.status != 200 else b"")
        self._missing -= len(data)
        if self._keep_bodies or head.status != 200:
            self._pieces.append(data)
        if self._missing > 0:
            return None
        if self._missing < 0:
            raise ProtocolError(_BYTES_AFTER)
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
    if _CHUNKED.search(head) is not None:
        body_bytes = -1
    elif length is None:
        raise ProtocolError("response: neither a valid Content-Length nor chunks")
    else:
        body_bytes, most = int(length[1]), _most_bytes(int(status[1]))
        if body_bytes > most:
            raise ProtocolError(f"response body: longer than {most} bytes, with status {int(status[1])}")
    json_length = _JSON_LENGTH.search(head)
    stages = _STAGES.search(head)
    return Head(
        int(status[1]),
        body_bytes,
        int(json_length[1]) if json_length else -1,
        _KEEP_ALIVE.search(head) is None if head.startswith(_HTTP_1_0) else _CLOSE.search(head) is not None,
        stages[1].decode("latin-1") if stages else "",
    )


def _most_bytes(status: int) -> int:
    return MAX_BODY_BYTES if status == 200 else MAX_ERROR_BYTES
