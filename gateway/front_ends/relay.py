"""Passes requests on to the HTTP server of the gateway's process: all that plain inference does not cover."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

from sluice.gateway.grpc.relayed import CALL
from sluice.gateway.http.exchange import RelayedAnswer
from sluice.gateway.http.relayed import ADDRESSES, Address, addresses_header
from sluice.gateway.http.request_head import Headers
from sluice.models.errors import BackendUnavailable

MAX_IDLE = 16
"""Connections that are kept for the next requests."""
END_S = 1.0
"""The time in which the end of a client's connection shows that cannot be written to."""
CHUNK_BYTES = 256 << 10
HEAD_BYTES = 1 << 20
"""The longest head of a response, which is the server's own."""

_BY_HOP = frozenset((b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"proxy-connection"))
"""Headers that are about one connection; so is `connection`."""
_OWN = (b"connection", ADDRESSES, CALL)
"""Headers that clients cannot set."""
_GONE = "the server is stopping"


class _Streams(NamedTuple):
    """A connection to the gateway's process."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class _Head(NamedTuple):
    """The head of a response; its body has `length` bytes, None if it comes in chunks."""

    status: int
    headers: Headers
    length: int | None
    keeps_alive: bool


class _Request:
    """The request of a client that is passed on, which `receive` reads."""

    def __init__(self, receive: Any, chunked: bool, asks_first: bool) -> None:
        self._receive = receive
        self._chunked = chunked
        self.wanted = asyncio.Event()
        """Set when the body is to be sent; a client that expects `100 Continue` waits for that."""
        if not asks_first:
            self.wanted.set()
        self.is_sent = False

    async def send(self, writer: asyncio.StreamWriter) -> None:
        """Send the body, and return when the client has gone."""
        await self.wanted.wait()
        while (message := await self._receive())["type"] != "http.disconnect":
            if self.is_sent:
                continue
            body = message.get("body", b"")
            if body:
                writer.write(b"%x\r\n%b\r\n" % (len(body), body) if self._chunked else body)
            if not message.get("more_body"):
                self.is_sent = True
                if self._chunked:
                    writer.write(b"0\r\n\r\n")
            try:
                await writer.drain()
            except ConnectionError:  # there may be an answer all the same
                self.is_sent = True


class Relay:
    """Connections to the gateway's process, each a pair of sockets one of which `hand_over` passes on.

    A client's connection over HTTP has one request at a time. One over gRPC may have many, of which `max_calls` of all
    connections are passed on at a time: the others wait.
    """

    def __init__(self, hand_over: Callable[[socket.socket], None], max_calls: int) -> None:
        self._hand_over = hand_over
        self._calls = asyncio.Semaphore(max_calls)
        self._idle: list[_Streams] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on: an ASGI application."""
        given: Headers = scope["headers"]
        chunked = any(name == b"transfer-encoding" for name, _ in given)
        headers = [header for header in _passed_on(given) if not (chunked and header[0] == b"content-length")]
        if chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        method: str = scope["method"]
        request = _Request(receive, chunked, any(name == b"expect" for name, _ in given))
        try:
            streams = await self._open()
        except OSError:  # no descriptor is left
            await _send_gone(send)
            return
        streams.writer.write(_request_head(method.encode(), target, headers, scope["client"], scope["server"]))
        sending = asyncio.create_task(request.send(streams.writer))
        answering = asyncio.create_task(_answer(streams.reader, method, request, send))
        is_reusable = False
        try:
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                return
            if isinstance(answering.exception(), RuntimeError):
                # The client's connection has ended, which `receive` says when uvicorn has heard of it from the loop.
                await asyncio.wait({sending}, timeout=END_S)
                if sending.done():
                    return
            is_reusable = answering.result() and request.is_sent
        finally:
            sending.cancel()
            answering.cancel()
            self._done(streams, is_reusable=is_reusable)

    async def infer(
        self, target: bytes, headers: Headers, body: bytes | bytearray | memoryview, client: Address, server: Address
    ) -> RelayedAnswer:
        """Pass an inference request on whose body has been read, and decoded; returns its answer.

        Raises BackendUnavailable without an answer.
        """
        dropped = (b"expect", b"content-length", b"content-encoding")
        kept = [header for header in _passed_on(headers) if header[0] not in dropped]
        kept.append((b"content-length", b"%d" % len(body)))
        head, content = await self._exchange(_request_head(b"POST", target, kept, client, server), body)
        about = (b"connection", b"content-length")
        return RelayedAnswer(
            head.status, [each for each in head.headers if each[0] not in about], content, head.keeps_alive
        )

    async def call(self, body: bytes) -> bytes:
        """Pass a call over gRPC on. Raises BackendUnavailable without an answer."""
        headers = [(b"host", b"gateway"), (CALL, b"1"), (b"content-length", b"%d" % len(body))]
        async with self._calls:
            head, content = await self._exchange(_request_head(b"POST", b"/", headers, None, None), body)
        if head.status != HTTPStatus.OK:
            raise BackendUnavailable(f"the call was not taken: status {head.status}")
        return content

    async def stream(self, body: bytes) -> AsyncGenerator[bytes]:
        """Pass a message of a stream over gRPC on; yields the parts of the answer as they come.

        Leaving off tells the gateway's process that the client has gone. Raises BackendUnavailable as `call`.
        """
        headers = [(b"host", b"gateway"), (CALL, b"1"), (b"content-length", b"%d" % len(body))]
        async with self._calls:
            is_reusable = False
            try:
                streams = await self._open()
            except OSError as error:
                raise BackendUnavailable(_GONE) from error
            try:
                streams.writer.write(_request_head(b"POST", b"/", headers, None, None))
                streams.writer.write(body)
                head = await _read_head(streams.reader)
                if head.status != HTTPStatus.OK:
                    raise BackendUnavailable(f"the call was not taken: status {head.status}")
                async for part in _read_body(streams.reader, head):
                    yield part
                is_reusable = head.keeps_alive
            except (OSError, EOFError) as error:
                raise BackendUnavailable(_GONE) from error
            finally:
                self._done(streams, is_reusable=is_reusable)

    async def _exchange(self, request_head: bytes, body: bytes | bytearray | memoryview) -> tuple[_Head, bytes]:
        try:
            streams = await self._open()
        except OSError as error:
            raise BackendUnavailable(_GONE) from error
        is_reusable = False
        try:
            streams.writer.write(request_head)
            streams.writer.write(body)
            head = await _read_head(streams.reader)
            content = b"".join([part async for part in _read_body(streams.reader, head)])
            is_reusable = head.keeps_alive
        except (OSError, EOFError) as error:
            raise BackendUnavailable(_GONE) from error
        finally:
            self._done(streams, is_reusable=is_reusable)
        return head, content

    async def _open(self) -> _Streams:
        while self._idle:
            streams = self._idle.pop()
            if not (streams.reader.at_eof() or streams.writer.is_closing()):
                return streams
            streams.writer.close()
        ours, theirs = socket.socketpair()
        with theirs:
            self._hand_over(theirs)
        return _Streams(*await asyncio.open_unix_connection(sock=ours, limit=HEAD_BYTES))

    def _done(self, streams: _Streams, *, is_reusable: bool) -> None:
        if is_reusable and len(self._idle) < MAX_IDLE:
            self._idle.append(streams)
        else:
            streams.writer.transport.abort()
            streams.writer.close()

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().writer.close()


async def _answer(reader: asyncio.StreamReader, method: str, request: _Request, send: Any) -> bool:
    """Send the answer to the client; returns whether the connection can be used again."""
    try:
        while (head := await _read_head(reader)).status < 200:
            request.wanted.set()
    except (OSError, EOFError):
        await _send_gone(send)
        return False
    await send({"type": "http.response.start", "status": head.status, "headers": head.headers})
    if method != "HEAD":
        async for part in _read_body(reader, head):
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
    return head.keeps_alive


async def _send_gone(send: Any) -> None:
    """Answer that the gateway's process cannot be reached, as it is when it stops."""
    body = orjson.dumps({"error": _GONE})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(b"retry-after", b"1"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _passed_on(headers: Headers) -> Headers:
    """The headers of a client that are passed on, without those that it may not set."""
    return [header for header in headers if header[0] not in _BY_HOP and header[0] not in _OWN]


def _request_head(method: bytes, target: bytes, headers: Headers, client: Address, server: Address) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (method, target)]
    lines += [b"%b: %b" % header for header in (*headers, addresses_header(client, server))]
    return b"\r\n".join((*lines, b"", b""))


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    """Read the head of a response. Raises EOFError or OSError if the other end has gone."""
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
    headers: Headers = []
    length: int | None = 0
    keeps_alive = True
    for line in lines:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip()
        if name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            length = None
        elif name == b"connection":
            keeps_alive = value.lower() != b"close"
        if name not in _BY_HOP and name != b"date":
            headers.append((name, value))
    return _Head(int(status.split(b" ")[1]), headers, length, keeps_alive)


async def _read_body(reader: asyncio.StreamReader, head: _Head) -> AsyncIterator[bytes]:
    """The parts of a response's body."""
    if head.length is not None:
        async for part in _read_bytes(reader, head.length):
            yield part
        return
    while size := int(await reader.readuntil(b"\r\n"), 16):
        async for part in _read_bytes(reader, size):
            yield part
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")


async def _read_bytes(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        part = await reader.read(min(size, CHUNK_BYTES))
        if not part:
            raise EOFError("the response is incomplete")
        size -= len(part)
        yield part
