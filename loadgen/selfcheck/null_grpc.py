"""A server of gRPC that answers every unary call at once with the same empty message."""

import asyncio
from typing import cast

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES = 9
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY = 0, 1, 4, 6, 7
_ACK = _END_STREAM = 1
_END_HEADERS = 4


def _field(name: bytes, value: bytes) -> bytes:
    """A header field as HPACK writes it out, without the dynamic table (RFC 7541, section 6.2.2)."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


_ANSWER_HEADERS = b"\x88" + _field(b"content-type", b"application/grpc")  # :status 200 has the index 8
_TRAILERS = _field(b"grpc-status", b"0")
_EMPTY_MESSAGE = bytes(5)
_WINDOW = 1 << 30


def _frame(kind: int, flags: int, stream: bytes, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream + payload


def _window_update(stream: bytes, increment: int) -> bytes:
    return _frame(8, 0, stream, increment.to_bytes(4, "big"))


_CONNECTION = bytes(4)
_BEGIN = _frame(
    _SETTINGS, 0, _CONNECTION, b"\x00\x03" + (1 << 30).to_bytes(4, "big") + b"\x00\x04" + _WINDOW.to_bytes(4, "big")
) + _window_update(_CONNECTION, _WINDOW)


class NullGrpc(asyncio.Protocol):
    """A connection of HTTP/2 on which each stream gets one answer when the client has ended its side."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._unread = b""
        self._received = 0
        self._greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the settings."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(_BEGIN)

    def data_received(self, data: bytes) -> None:
        """Answer the frames of a piece."""
        data = self._unread + data
        start = 0
        if not self._greeted and len(data) >= len(_PREFACE):
            self._greeted = True
            start = len(_PREFACE)
        answers: list[bytes] = []
        while self._greeted and len(data) - start >= _HEAD_BYTES:
            end = start + _HEAD_BYTES + int.from_bytes(data[start : start + 3], "big")
            if end > len(data):
                break
            kind, flags, stream = data[start + 3], data[start + 4], data[start + 5 : start + 9]
            if kind in (_DATA, _HEADERS):
                self._received += end - start
                if flags & _END_STREAM:
                    answers.append(_frame(_HEADERS, _END_HEADERS, stream, _ANSWER_HEADERS))
                    answers.append(_frame(_DATA, 0, stream, _EMPTY_MESSAGE))
                    answers.append(_frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, _TRAILERS))
            elif kind in (_SETTINGS, _PING) and not flags & _ACK:
                payload = data[start + _HEAD_BYTES : end] if kind == _PING else b""
                answers.append(_frame(kind, _ACK, _CONNECTION, payload))
            elif kind == _GOAWAY:
                self._transport.close()
            start = end
        self._unread = data[start:]
        if self._received > _WINDOW // 2:
            answers.append(_window_update(_CONNECTION, self._received))
            self._received = 0
        if answers:
            self._transport.write(b"".join(answers))
