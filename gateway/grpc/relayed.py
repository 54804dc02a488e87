"""Calls that a front end passes on to the gateway's process, each in a request over HTTP.

A call's message comes after its head in JSON, and so does the answer to it. Of a stream, single messages are passed on,
each with as many answers as it has.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple, NoReturn

import grpc
import orjson

from sluice.gateway.grpc.errors import PassedStatus, abort, call_status
from sluice.gateway.grpc.replies import Replies
from sluice.gateway.grpc.transport.call import Aborted, Metadata, parsed
from sluice.gateway.grpc.transport.server import GrpcServer, Method, fail
from sluice.models.errors import RequestError, ServingError

CALL = b"x-sluice-call"
"""The header of such a request. Front ends drop it from the requests of clients."""

_LENGTH_BYTES = 4
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_Application = Callable[[Any, Any, Any], Awaitable[None]]


class Ended(NamedTuple):
    """The end of a call: its status, trailing metadata, and its answer if the status is OK."""

    code: grpc.StatusCode
    details: str
    trailing: tuple[tuple[str, str | bytes], ...]
    message: bytes


class CallRelay:
    """Passes calls on; `exchange` gets a request and returns the answer to it. It raises ServingError without one.

    `exchange_stream` does the same for an answer in parts, as they come.
    """

    def __init__(
        self,
        exchange: Callable[[bytes], Awaitable[bytes]],
        exchange_stream: Callable[[bytes], AsyncGenerator[bytes]] | None = None,
    ) -> None:
        self._exchange = exchange
        self._exchange_stream = exchange_stream

    async def ask(self, context: Any, message: bytes, method: str | None = None) -> Ended:
        """The end of a call with this message; `method` stands for that of the context."""
        (code, details, trailing), answer = _split(await self._exchange(_asking(context, message, method)))
        return Ended(_CODES[code], details, tuple(_from_text(*each) for each in trailing), answer)

    async def stream(self, context: Any, message: bytes, parse: Callable[[bytes], Any]) -> Replies:
        """The replies to one message of the stream of a context, which `parse` reads.

        Raises ServingError without an answer, and PassedStatus for a status that is to end the stream.
        """
        assert self._exchange_stream is not None, "front ends have it"
        unread = b""
        async with aclosing(self._exchange_stream(_asking(context, message))) as parts:
            async for part in parts:
                unread += part
                while len(unread) >= _LENGTH_BYTES:
                    end = _LENGTH_BYTES + int.from_bytes(unread[:_LENGTH_BYTES], "big")
                    if len(unread) < end:
                        break
                    frame, unread = unread[_LENGTH_BYTES:end], unread[end:]
                    ended, reply = _split(frame)
                    if ended is None:
                        yield parse(reply), False
                    elif ended[0]:
                        raise PassedStatus(_CODES[ended[0]], ended[1])

    async def answer(self, message: bytes, context: Any) -> bytes:
        """Pass a call on, as the handler of its method."""
        try:
            ended = await self.ask(context, message)
        except ServingError as error:
            await abort(context, error)
        if ended.code is not grpc.StatusCode.OK:
            await context.abort(ended.code, ended.details, ended.trailing)
        context.set_trailing_metadata(ended.trailing)
        return ended.message


class RelayedCall:
    """A call that a front end has passed on (see `ServerCall`)."""

    def __init__(self, method: str, metadata: list[tuple[str, str]], remaining_s: float | None) -> None:
        self.method = method
        self.serializer: Callable[[Any], bytes] | None = None
        self.on_cancelled: Callable[[], object] | None = None
        self.cancelled = self.interrupted = False
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._metadata = metadata
        self._until_s = None if remaining_s is None else time.monotonic() + remaining_s
        self._trailing: Metadata = ()

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """The client's metadata: pairs of name and value."""
        return self._metadata

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline; None without one."""
        return None if self._until_s is None else max(self._until_s - time.monotonic(), 0)

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Set the metadata that is sent with the status."""
        self._trailing = metadata

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the call with a status that is not OK."""
        raise Aborted(code, details, trailing_metadata)

    async def write(self, message: Any) -> None:
        """A call that is passed on has one answer."""
        raise NotImplementedError(f"{self.method} has several answers, so it cannot be passed on")

    def finish(self, answer: Any) -> None:
        """Send the only message, with the status OK."""
        self._end(
            grpc.StatusCode.OK, "", self._trailing, answer if self.serializer is None else self.serializer(answer)
        )

    def end(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """Send the status."""
        self._end(code, details, (*self._trailing, *trailing_metadata), b"")

    def cancel(self) -> None:
        """The client is gone."""
        self.cancelled = True
        if self.on_cancelled is not None:
            self.on_cancelled()

    def _end(self, code: grpc.StatusCode, details: str, trailing: Metadata, message: bytes) -> None:
        if not (self.cancelled or self.ended.done()):
            self.ended.set_result(Ended(code, details, tuple(trailing), message))


class RelayedCalls(GrpcServer):
    """Serves the calls that front ends pass on, in front of the ASGI application that has their other requests."""

    def __init__(self, app: _Application) -> None:
        super().__init__()
        self._app = app

    async def start(self) -> None:
        """Nothing is to be started: the HTTP server accepts the requests."""

    async def stop(self, grace: float | None) -> None:
        """Nothing is to be stopped: calls end with the requests of the HTTP server."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a call, or pass the request on to the application."""
        if not any(name == CALL for name, _ in scope["headers"]):
            await self._app(scope, receive, send)
            return
        body = bytearray()
        while True:
            part = await receive()
            if part["type"] == "http.disconnect":
                return
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        (name, metadata, remaining_s), message = _split(bytes(body))
        given = name, [(key, value) for key, value in metadata], remaining_s
        method = self.methods.get(name)
        if method is not None and method.handler.request_streaming:
            await self._stream(given, method.handler, message, receive, send)
            return
        ended = await self._call(RelayedCall(*given), method, message, receive)
        if ended is None:
            return
        head = [ended.code.value[0], ended.details, [[name, _as_text(value)] for name, value in ended.trailing]]
        answer = _joined(head, ended.message)
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _stream(self, head: Any, handler: Any, message: bytes, receive: Any, send: Any) -> None:
        """Serve a stream of one message."""

        async def send_part(part: bytes) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": []})
        call = RelayedStream(send_part, *head)
        try:
            request = parsed(handler.request_deserializer, message)
        except RequestError as error:
            call.end(*call_status(error))
        else:
            self.run(call, handler, _alone(request))
        leaving = asyncio.ensure_future(receive())
        await asyncio.wait((call.ended, leaving), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not call.ended.done():
            call.cancel()
            return
        ended = call.ended.result()
        last = _frame([ended.code.value[0], ended.details], b"")
        await send({"type": "http.response.body", "body": last})

    async def _call(self, call: RelayedCall, method: Method | None, message: bytes, receive: Any) -> Ended | None:
        """The end of a call; None if the client has gone."""
        if method is None:
            call.end(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        elif method.begin is not None:
            try:
                method.begin(message, call)
            except Exception as error:
                fail(call, error)
        else:
            self.run(call, method.handler, message)
        leaving = asyncio.ensure_future(receive())
        await asyncio.wait((call.ended, leaving), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if call.ended.done():
            return call.ended.result()
        call.cancel()
        return None


class RelayedStream(RelayedCall):
    """The stream of one message that a front end has passed on: each answer is sent on as a frame."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]], *head: Any) -> None:
        super().__init__(*head)
        self._send = send

    async def write(self, message: Any) -> None:
        """Send one of several messages; returns when there is room for another."""
        if not self.cancelled:
            encoded = message if self.serializer is None else self.serializer(message)
            await self._send(_frame(None, encoded))


def _asking(context: Any, message: bytes, method: str | None = None) -> bytes:
    """The request that passes a message of a call on; `method` stands for that of the context."""
    metadata = [(name, value) for name, value in context.invocation_metadata() if isinstance(value, str)]
    return _joined([method or context.method, metadata, context.time_remaining()], message)


def _frame(head: Any, message: bytes) -> bytes:
    joined = _joined(head, message)
    return b"".join((len(joined).to_bytes(_LENGTH_BYTES, "big"), joined))


async def _alone(message: Any) -> AsyncIterator[Any]:
    yield message


def _joined(head: Any, message: bytes) -> bytes:
    text = orjson.dumps(head)
    return b"".join((len(text).to_bytes(_LENGTH_BYTES, "big"), text, message))


def _split(body: bytes) -> tuple[Any, bytes]:
    end = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "big")
    return orjson.loads(body[_LENGTH_BYTES:end]), body[end:]


def _as_text(value: str | bytes) -> str:
    """A value of metadata for JSON."""
    return value if isinstance(value, str) else value.decode("latin-1")


def _from_text(name: str, text: str) -> tuple[str, str | bytes]:
    """An item of metadata from JSON; names that end in `-bin` have bytes."""
    return name, text.encode("latin-1") if name.endswith("-bin") else text
