"""A single GET, with a limit on its time and on the length of its answer."""

import asyncio
import http.client
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

MAX_ANSWER_BYTES = 64 << 20
"""Most bytes of an answer's body."""


class UnixHttpConnection(http.client.HTTPConnection):
    """A connection to a Unix socket; the requests name `localhost` as their host."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


async def get(
    connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str], timeout_s: float
) -> tuple[int, bytes]:
    """The status and the body of the answer to a GET on a new connection, which is closed afterwards.

    Raises `OSError`, of which `TimeoutError` for an answer that is not complete in `timeout_s`, and
    `http.client.HTTPException`.
    """
    deadline_s = time.monotonic() + timeout_s
    connected: list[socket.socket] = []

    def exchange() -> tuple[int, bytes]:
        try:
            connection.connect()
            connected.append(connection.sock)
            if time.monotonic() >= deadline_s:
                raise TimeoutError
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read(MAX_ANSWER_BYTES + 1)
        finally:
            connection.close()
        if len(body) > MAX_ANSWER_BYTES:
            raise OSError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        return response.status, body

    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.to_thread(exchange)
    finally:
        # The timeout of a connection is for each read, so that an answer in slow pieces would keep the thread.
        for each in connected:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
