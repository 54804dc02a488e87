"""Writes to the socket of a transport in the call that asks for them."""

import asyncio
import os


class SocketWriter:
    """Writes at once, where a transport writes after the other callbacks of its turn.

    So a query leaves when its time of sending is taken, whatever else is due in that turn. Over TLS, and for bytes that
    the socket has no room for, the transport writes.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        secure = transport.get_extra_info("ssl_object") is not None
        self._fd = -1 if secure else transport.get_extra_info("socket").fileno()

    def write(self, content: bytes) -> None:
        """Write all of `content`, or leave the rest to the transport; raises OSError for a broken connection."""
        if self._fd < 0 or self._transport.get_write_buffer_size():
            self._transport.write(content)
            return
        try:
            written = os.write(self._fd, content)
        except BlockingIOError:
            written = 0
        if written < len(content):
            self._transport.write(memoryview(content)[written:])
