"""A bare server that reads requests into one buffer and answers each alike: what the kernel's copies alone cost.

python -m benchmarks.support.buffered_echo READY_FILE
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import cast

import uvloop

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 40\r\n\r\n" + bytes(40)
BUFFER_BYTES = 1 << 20
"""The longest request with its head."""


class _Connection(asyncio.BufferedProtocol):
    """Takes one request at a time, whose head tells its length."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._read = self._length = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._read :]

    def buffer_updated(self, nbytes: int) -> None:
        self._read += nbytes
        if not self._length:
            end = self._buffer.find(b"\r\n\r\n", 0, self._read)
            if end < 0:
                return
            head = bytes(self._view[:end]).lower()
            self._length = end + 4 + int(head[head.rindex(b"content-length:") + 15 :].split(b"\r")[0])
        if self._read >= self._length:
            self._read = self._length = 0
            self._transport.write(ANSWER)


async def _serve(ready: Path) -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0)
    _write_port(ready, server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _write_port(ready: Path, port: int) -> None:
    draft = ready.with_suffix(".draft")
    draft.write_text(json.dumps({"http_port": port}))
    draft.rename(ready)


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1])))
