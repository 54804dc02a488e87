"""Messages in the data of a stream: each is preceded by a flag and its length (gRPC over HTTP/2)."""

import grpc

from sluice.gateway.grpc.transport.call import Message, MessageMemory, SplitMessage
from sluice.gateway.grpc.transport.http2.outgoing import PREFIX_BYTES

MANY_PARTS = 8
PART_BYTES = 1024
"""Parts that are smaller on average are joined, so that a part takes little more memory than its bytes."""
LARGE_BYTES = 64 << 10
"""Messages of which less is to come are not worth memory of their own."""


class MessageFault(Exception):
    """Data that is no message, or is too large: the status that ends the call."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class MessageReader:
    """Splits the data of a stream into messages. Large ones are received into `memory`, if it has some."""

    __slots__ = (
        "_blobs",
        "_compressed",
        "_fragment",
        "_head",
        "_length",
        "_max_bytes",
        "_memory",
        "_parts",
        "_size",
        "missing",
    )

    def __init__(self, max_bytes: int, memory: MessageMemory | None = None) -> None:
        self._max_bytes = max_bytes
        self._memory = memory
        self._head = b""
        self._blobs: memoryview | None = None
        """The memory of the message after its head; None for a message that is one piece."""
        self.missing: memoryview | None = None
        """The part of it that has not come."""
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

    def feed(self, data: bytes) -> list[tuple[bool, Message]]:
        """The messages that are complete with this data, and whether they are compressed. Raises MessageFault."""
        messages: list[tuple[bool, Message]] = []
        position = 0
        if self._length >= 0:
            position = min(self._length - self._size, len(data))
            self._add(data[:position])
            if self._size < self._length:
                return messages
            messages.append((self._compressed, self._complete()))
        elif self._fragment:
            data = self._fragment + data
        end = len(data)
        while end - position >= PREFIX_BYTES:
            begin = position + PREFIX_BYTES
            compressed, length = self._prefix(data[position:begin])
            if begin + length > end:
                self._compressed, self._length, self._parts, self._size = compressed, length, [], 0
                self._begin(data[begin:])
                position = end
                break
            position = begin + length
            messages.append((compressed, data[begin:position]))
        self._fragment = data[position:]
        return messages

    def feed_missing(self, size: int) -> list[tuple[bool, Message]]:
        """Count `size` bytes that are in the memory `missing`; returns as `feed`."""
        assert self.missing is not None
        self.missing = self.missing[size:]
        self._size += size
        return [] if self._size < self._length else [(self._compressed, self._complete())]

    def _begin(self, first: bytes) -> None:
        """Take the first part of a message."""
        if self._memory is not None and not self._compressed and self._length - len(first) >= LARGE_BYTES:
            placed = self._memory(self._length, first)
            if placed is not None:
                size, self._blobs = placed
                assert size <= len(first), "the head has come"
                self._head, self.missing = first[:size], self._blobs
                self._size = size
                first = first[size:]
        self._add(first)

    def _complete(self) -> Message:
        """The message that is complete."""
        self._length = -1
        blobs, self._blobs, self.missing = self._blobs, None, None
        return b"".join(self._parts) if blobs is None else SplitMessage(self._head, blobs)

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self.missing is not None:
            self.missing[: len(part)] = part
            self.missing = self.missing[len(part) :]
            return
        self._parts.append(part)
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
