"""Reads large DATA frames straight into the memory of their messages."""

import asyncio
from typing import Protocol

NEXT_BYTES = 4096
"""The most that is read at a time between large frames: their beginnings are copied."""

_next = memoryview(bytearray(NEXT_BYTES))
"""Bytes between `get_buffer` and `buffer_updated`, which an event loop calls one after the other."""


class FrameReceiver(Protocol):
    """The connection that the frames are for, which handles all else that happens to the transport."""

    def direct_memory(self) -> memoryview | None:
        """The memory for what is missing of a large frame; None if none is being received."""
        ...

    def on_direct_bytes(self, size: int) -> None:
        """Called when `size` bytes are in that memory."""
        ...

    def on_next_bytes(self, data: bytes) -> None:
        """Called with bytes that are not in that memory."""
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


class LargeFrames(asyncio.BufferedProtocol):
    """The protocol of a connection on which large messages come."""

    def __init__(self, receiver: FrameReceiver) -> None:
        self._receiver = receiver
        self._is_direct = False
        self.connection_lost = receiver.connection_lost  # type: ignore[method-assign]
        self.eof_received = receiver.eof_received  # type: ignore[method-assign]
        self.pause_writing = receiver.pause_writing  # type: ignore[method-assign]
        self.resume_writing = receiver.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        """The memory of what is missing of a large frame, or of what comes between two of them."""
        memory = self._receiver.direct_memory()
        self._is_direct = memory is not None
        return _next if memory is None else memory

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has been read."""
        if self._is_direct:
            self._receiver.on_direct_bytes(nbytes)
        else:
            self._receiver.on_next_bytes(bytes(_next[:nbytes]))
