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
    """Splits the data of a stream into messages. `pending_bytes` have been read of the next one."""

    __slots__ = ("_max_bytes", "_parts", "_wanted", "pending_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._wanted = 0
        """Bytes of the message with its prefix; 0 before they are known."""
        self.pending_bytes = 0

    def feed(self, data: bytes) -> list[tuple[bool, bytes]]:
        """The messages that are complete with this data, and whether they are compressed. Raises MessageFault."""
        if data:
            self._parts.append(data)
            self.pending_bytes += len(data)
        if self.pending_bytes < (self._wanted or PREFIX_BYTES):
            if len(self._parts) > MANY_PARTS + self.pending_bytes // PART_BYTES:
                self._join()
            return []
        self._join()
        whole, end = self._parts[0], self.pending_bytes
        messages = []
        position = self._wanted = 0
        while end - position >= PREFIX_BYTES:
            begin = position + PREFIX_BYTES
            stop = begin + self._length(whole[position:begin])
            if stop > end:
                self._wanted = stop - position
                break
            messages.append((bool(whole[position]), whole[begin:stop]))
            position = stop
        self._parts = [whole[position:]] if position < end else []
        self.pending_bytes = end - position
        return messages

    def _length(self, prefix: bytes) -> int:
        if prefix[0] > 1:
            raise MessageFault(
                grpc.StatusCode.INTERNAL, f"expected 0 or 1 as the compressed flag of a message, got {prefix[0]}"
            )
        length = int.from_bytes(prefix[1:PREFIX_BYTES], "big")
        if length > self._max_bytes:
            raise too_large(length, self._max_bytes)
        return length

    def _join(self) -> None:
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]


def too_large(size: int, limit: int) -> MessageFault:
    """The status for a message above the limit, with the words of grpcio."""
    return MessageFault(
        grpc.StatusCode.RESOURCE_EXHAUSTED, f"SERVER: Received message larger than max ({size} vs. {limit})"
    )
