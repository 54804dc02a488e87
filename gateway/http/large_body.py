"""Reads a large body straight into the memory where it stays."""

import asyncio
from typing import Protocol

DIRECT_BYTES = 64 << 10
"""Bodies of which less is to come are read by the parser: a change of protocol would cost more than the copies."""


class BodyReceiver(Protocol):
    """The connection that a body is for, which handles all else that happens to the transport."""

    def on_direct_bytes(self, size: int, complete: bool) -> None:
        """Called when `size` more bytes of the body are in its memory; with the last ones it is `complete`."""
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
    """The protocol of a connection while the `rest` of a body is read into its memory: not a byte more is read.

    A parser would copy each part twice, and growing the body once more.
    """

    def __init__(self, receiver: BodyReceiver, rest: memoryview) -> None:
        self._receiver = receiver
        self._rest = rest
        self.connection_lost = receiver.connection_lost  # type: ignore[method-assign]
        self.eof_received = receiver.eof_received  # type: ignore[method-assign]
        self.pause_writing = receiver.pause_writing  # type: ignore[method-assign]
        self.resume_writing = receiver.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        """The memory of the bytes that are missing."""
        return self._rest

    def buffer_updated(self, nbytes: int) -> None:
        """Count what has been read."""
        self._rest = self._rest[nbytes:]
        self._receiver.on_direct_bytes(nbytes, complete=not self._rest)
