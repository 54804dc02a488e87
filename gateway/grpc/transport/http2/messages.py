"""Messages in the data of a stream: each is preceded by a flag and its length (gRPC over HTTP/2)."""

import grpc

from sluice.gateway.grpc.transport.http2.outgoing import PREFIX_BYTES

MANY_PARTS = 8
PART_BYTES = 1024
"""Parts that are smaller on average are joined, so that a part takes little more memory than its bytes."""


class MessageFault(Exception):
    """Data that is no message, or is too large: the status that ends the call."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class MessageReader:
    """Splits the data of a stream into messages."""

    __slots__ = ("_compressed", "_fragment", "_length", "_max_bytes", "_parts", "_size")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._fragment = b""
        """The beginning of a prefix."""
        self._length = -1
        """The length of the message whose prefix has come; -1 for none."""
        self._compressed = False
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def is_within_message(self) -> bool:
        """True if a message has begun and is not complete."""
        return self._length >= 0 or bool(self._fragment)

    def feed(self, data: bytes) -> list[tuple[bool, bytes]]:
        """The messages that are complete with this data, and whether they are compressed. Raises MessageFault."""
        messages: list[tuple[bool, bytes]] = []
        position = 0
        if self._length >= 0:
            position = min(self._length - self._size, len(data))
            self._add(data[:position])
            if self._size < self._length:
                return messages
            messages.append((self._compressed, b"".join(self._parts)))
            self._length = -1
        elif self._fragment:
            data = self._fragment + data
        end = len(data)
        while end - position >= PREFIX_BYTES:
            begin = position + PREFIX_BYTES
            compressed, length = self._prefix(data[position:begin])
            if begin + length > end:
                self._compressed, self._length, self._parts, self._size = compressed, length, [], 0
                self._add(data[begin:])
                position = end
                break
            position = begin + length
            messages.append((compressed, data[begin:position]))
        self._fragment = data[position:]
        return messages

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if len(self._parts) > MANY_PARTS + self._size // PART_BYTES:
            self._parts = [b"".join(self._parts)]

    def _prefix(self, prefix: bytes) -> tuple[bool, int]:
        """The flag and the length of a message."""
        if prefix[0] > 1:
            raise MessageFault(
                grpc.StatusCode.INTERNAL, f"expected 0 or 1 as the compressed flag of a message, got {prefix[0]}"
            )
        length = int.from_bytes(prefix[1:], "big")
        if length > self._max_bytes:
            raise too_large(length, self._max_bytes)
        return bool(prefix[0]), length


def too_large(size: int, limit: int) -> MessageFault:
    """The status for a message above the limit, with the words of grpcio."""
    return MessageFault(
        grpc.StatusCode.RESOURCE_EXHAUSTED, f"SERVER: Received message larger than max ({size} vs. {limit})"
    )
