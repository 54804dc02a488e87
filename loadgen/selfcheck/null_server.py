"""Servers that answer every inference request at once, so that a run against them measures the client.

`python -m sluice.loadgen.selfcheck.null_server http|grpc` prints its port, and ends when its standard input does.
"""

import asyncio
import sys
from typing import cast

import uvloop

from sluice.loadgen.selfcheck.null_grpc import NullGrpc

_METADATA_JSON = (
    b'{"name":"null","platform":"null","inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}],'
    b'"outputs":[{"name":"y","datatype":"FP32","shape":[-1,2]}]}'
)
_METADATA = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_METADATA_JSON), _METADATA_JSON)
_JSON = b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}]}'
_ANSWER = b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s%s" % (
    len(_JSON),
    len(_JSON) + 8,
    _JSON,
    bytes(8),
)
_LENGTH = b"\r\nContent-Length: "
_END = b"\r\n\r\n"


class NullHttp(asyncio.Protocol):
    """A connection over HTTP/1.1 that gets the same small answer for every POST, and metadata of a model for a GET."""

    _transport: asyncio.Transport
    _unread = b""
    _length = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer each request that is complete."""
        if len(data) == self._length and not self._unread:  # Clients repeat themselves.
            self._transport.write(_ANSWER)
            return
        unread = self._unread + data
        while (end := unread.find(_END) + len(_END)) >= len(_END):
            if unread.startswith(b"GET "):
                self._transport.write(_METADATA)
                unread = unread[end:]
                continue
            length = end + int(unread[:end].partition(_LENGTH)[2].partition(b"\r\n")[0])
            if len(unread) < length:
                break
            self._length = length
            self._transport.write(_ANSWER)
            unread = unread[length:]
        self._unread = unread


async def _serve(protocol: type[asyncio.Protocol]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(protocol, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    # The standard input is a pipe to the process that started this one: it ends at the latest with that process.
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve({"http": NullHttp, "grpc": NullGrpc}[sys.argv[1]]))
