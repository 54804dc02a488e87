"""Reads large bodies straight into the memory where they stay."""

import asyncio
from typing import Protocol

DIRECT_BYTES = 64 << 10
"""Bodies of which less is to come are read by the parser: a change of protocol would cost more than the copies."""
HEAD_BYTES = 4096
"""The most that is read of the next request, whose body is mostly large again, before its head is known."""

_next = memoryview(bytearray(HEAD_BYTES))
"""Bytes between `get_buffer` and `buffer_updated`, which an event loop calls one after the other."""


class BodyReceiver(Protocol):
    """The connection that a body is for, which handles all else that happens to the transport."""

    def on_direct_bytes(self, size: int, complete: bool) -> None:
        """Called when `size` more bytes of the body are in its memory, which may be `complete` then.

        Another part may follow: the receiver calls `read_rest` for that.
        """
        ...

    def on_next_bytes(self, data: bytes) -> None:
        """Called with the first bytes after a body."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """As in asyncio."""
        ...

    def eof_received(self) -> bool | None:
        """As in asyncio."""
        ...

    def pause_writing(self) -> None:
        """As in asyncio."""
        ...

    def resume_writing(self) -> None:
        """As in asyncio."""
        ...


class LargeBody(asyncio.BufferedProtocol):
    """The protocol of a connection while bodies are read into their memory, one after the other.

    Of a body that begins with `read_rest` not a byte more is read than is missing. A parser would copy each part twice,
    and growing the body once more.
    """

    def __init__(self, receiver: BodyReceiver) -> None:
        self._receiver = receiver
        self._rest: memoryview | None = None
        self.connection_lost = receiver.connection_lost  # type: ignore[method-assign]
        self.eof_received = receiver.eof_received  # type: ignore[method-assign]
        self.pause_writing = receiver.pause_writing  # type: ignore[method-assign]
        self.resume_writing = receiver.resume_writing  # type: ignore[method-assign]

    def read_rest(self, rest: memoryview | None) -> None:
        """Read what is missing of a body into its memory; with None, the body is given up."""
        self._rest = rest

    def get_buffer(self, sizehint: int) -> memoryview:
        """The memory of the bytes that are missing."""
        return _next if self._rest is None else self._rest

    def buffer_updated(self, nbytes: int) -> None:
        """Count what has been read."""
        if self._rest is None:
            self._receiver.on_next_bytes(bytes(_next[:nbytes]))
            return
        rest = self._rest[nbytes:]
        self._rest = rest or None
        self._receiver.on_direct_bytes(nbytes, complete=not rest)
