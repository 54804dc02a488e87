"""One call of the server over HTTP/2."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, Protocol

import grpc

from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.decompression import DecompressedTooLarge, decompress
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.grpc.transport.call import Aborted, Message, Metadata, OwnConnection, parsed
from sluice.gateway.grpc.transport.http2.call_head import CallHead, http_block, metadata_block, status_block
from sluice.gateway.grpc.transport.http2.connection import STREAM_WINDOW, Http2Connection
from sluice.gateway.grpc.transport.http2.messages import MessageFault, MessageReader, too_large
from sluice.gateway.grpc.transport.http2.outgoing import PREFIX_BYTES
from sluice.gateway.grpc.transport.http2.streams import Stream
from sluice.gateway.grpc.transport.server import NO_MEMORY, Method, fail
from sluice.models.errors import RejectedError, RequestError

OPEN_BYTES = 1024
"""The bytes that a call counts before it has its message, and a stream as long as it is open."""
MESSAGE_BYTES = 64
"""The bytes that a message which waits for its handler counts beside its own."""
TURN_MESSAGES = 32
"""The messages that the handler of a stream gets before other callbacks of the loop have their turn."""

_EXPIRED = grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"
_NO_ENCODING = grpc.StatusCode.INTERNAL, "a message is compressed, but the call has no grpc-encoding"
_CUT_SHORT = grpc.StatusCode.INTERNAL, "the stream ended within a message"

logger = logging.getLogger(__name__)


class CallOwner(Protocol):
    """The server of a call."""

    budget: Budget
    front_door: FrontDoor
    max_message_bytes: int
    loop: asyncio.AbstractEventLoop
    threads: ThreadPoolExecutor

    def run(self, call: Any, handler: Any, request: Any) -> "asyncio.Task[None]":
        """Answer a call in a task."""
        ...


class Http2Call(Stream):
    """A `ServerCall` on a stream.

    A unary call begins when the client has sent its only message and ended its side. Messages count in `kept` of the
    connection until the handler gets them, and the message of a unary call in `held` from then on.
    """

    __slots__ = (
        "_awaited",
        "_deadline_s",
        "_head",
        "_held",
        "_kept",
        "_method",
        "_reader",
        "_room",
        "_server",
        "_started",
        "_taken",
        "_timer",
        "_trailing",
        "_unread",
        "cancelled",
        "connection",
        "interrupted",
        "on_cancelled",
        "serializer",
        "unsent_state",
        "waits_since_s",
    )

    def __init__(
        self, server: CallOwner, connection: Http2Connection[CallHead], stream_id: int, head: CallHead, method: Method
    ) -> None:
        self.id = stream_id
        self.send_window = connection.initial_window
        self.receive_window = STREAM_WINDOW
        self.remote_ended = self.ended = self.has_headers = False
        self.uncredited = self.unsent_bytes = self.sent_bytes = 0
        self.declared_bytes = head.content_length
        self.unsent = self.trailers = None
        self.connection = connection
        self.serializer: Callable[[Any], bytes] | None = None
        self.on_cancelled: Callable[[], object] | None = None
        self.cancelled = self.interrupted = False
        self.waits_since_s = 0.0
        """The time of the first sweep that found the call without a message."""
        self.unsent_state: tuple[str, int, float] = ("", 0, 0.0)
        """The window that had no room for the answer at a sweep, the bytes sent within it, and the time."""
        self._server = server
        self._head = head
        self._method = method
        self._kept = OPEN_BYTES
        connection.kept += OPEN_BYTES
        self._held = 0
        self._reader: MessageReader | None = None
        self._unread: deque[tuple[bool, Message]] | tuple[()] = ()
        self._awaited: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._trailing: Metadata = ()
        self._started = False
        self._taken = 0
        """The messages of a stream that its handler has got since it last waited."""
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = 0.0
        if head.timeout_s is not None:
            loop = server.loop
            self._deadline_s = loop.time() + head.timeout_s
            self._timer = loop.call_at(self._deadline_s, self._expire)

    # -- for handlers

    @property
    def method(self) -> str:
        """The path of the method, such as `/service/Method`."""
        return self._head.method

    def invocation_metadata(self) -> Any:
        """The client's metadata: pairs of name and value."""
        return self._head.metadata

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline; None without one."""
        if self._head.timeout_s is None:
            return None
        return max(self._deadline_s - self._server.loop.time(), 0.0)

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Set the metadata that is sent with the status."""
        self._trailing = metadata

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the call with a status that is not OK."""
        raise Aborted(code, details, trailing_metadata)

    async def write(self, message: Any) -> None:
        """Send one of several messages; returns when there is room for another, or the client is gone."""
        if self.cancelled or self.ended:
            return
        if not self.connection.send_message(self, self._encoded(message)):
            self._room = self._server.loop.create_future()
            await self._room

    def finish(self, answer: Any) -> None:
        """Send the only message, with the status OK."""
        if self.cancelled or self.ended or self.trailers is not None:
            return
        message = self._encoded(answer)
        self._release()
        self.connection.answer(self, message, metadata_block(self._trailing))

    def end(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """Send the status."""
        if self.cancelled or self.ended or self.trailers is not None:
            return
        self._release()
        status = None if code is grpc.StatusCode.OK else status_block(code, details)
        self.connection.end(self, status, metadata_block(trailing_metadata or self._trailing))

    def _encoded(self, message: Any) -> bytes:
        return message if self.serializer is None else self.serializer(message)

    def _release(self) -> None:
        """Keep nothing any longer for a call that ends."""
        self.connection.kept -= self._kept
        self.connection.held -= self._held
        self._kept = self._held = 0
        self._reader = self.on_cancelled = None
        self._unread = ()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _keep(self, size: int) -> None:
        self._kept += size
        self.connection.kept += size

    # -- for the server

    def hand_over(self, transport: Any, rest: bytes, lost: Callable[[Exception | None], None]) -> None:
        """Pass on the connection, on which this call is alone."""
        self._release()
        take_over, connection = self._method.take_over, self.connection
        assert take_over is not None, "the method takes connections over"
        own = OwnConnection(
            transport,
            self._head.metadata,
            self.id,
            rest,
            connection.initial_window,
            connection.send_window,
            self.send_window,
            connection.frame_bytes,
            lost,
        )
        take_over(own)

    @property
    def awaits_message(self) -> bool:
        """True if the only message of the call has not arrived."""
        return not self._started and not self._method.handler.request_streaming

    @property
    def awaits_reader(self) -> bool:
        """True if a part of the only answer of the call has to wait."""
        return self.unsent_bytes > 0 and not self._method.handler.response_streaming

    @property
    def keeps_messages(self) -> bool:
        """True if messages, or room for one, are freed when the call ends."""
        return self._kept > OPEN_BYTES or self.awaits_message

    def begin(self) -> None:
        """Start the handler of a stream; a unary call starts when its message is there."""
        handler = self._method.handler
        if handler.request_streaming:
            self._unread = deque()
            self._reader = MessageReader(self._server.max_message_bytes)
            self._server.run(self, handler, _Messages(self, handler.request_deserializer))

    def refuse(self, http_status: int) -> None:
        """Answer a request that is none of gRPC."""
        self._release()
        self.connection.send_block(self, http_block(http_status))

    def interrupt(self) -> None:
        """End the messages of a stream early, so that its handler ends when it has answered those it has."""
        if self._method.handler.request_streaming:
            self.interrupted = not self.remote_ended or bool(self._unread)
            self._wake()

    def receive(self, data: bytes, ended: bool) -> None:
        """Take data of the client."""
        if self.trailers is not None:
            return
        if ended and self._reader is None:  # all data of a unary call, in one frame
            size = len(data) - PREFIX_BYTES
            if (
                0 <= size <= self._server.max_message_bytes
                and not data[0]
                and int.from_bytes(data[1:PREFIX_BYTES], "big") == size
            ):
                self._start(data[PREFIX_BYTES:])
                return
        self._receive_part(data, ended)

    def _receive_part(self, data: bytes, ended: bool) -> None:
        """Take data that need not be one message."""
        if self._reader is None:
            self._reader = MessageReader(self._server.max_message_bytes, self._method.memory)
            self._unread = deque()
        try:
            messages = self._reader.feed(data)
        except MessageFault as fault:
            self.give_up(fault.code, fault.details)
            return
        self._take_messages(messages, len(data), ended)

    def memory(self) -> memoryview | None:
        """Memory for the data of a large message; None if it is taken as bytes."""
        return None if self._reader is None or self.trailers is not None else self._reader.missing

    def receive_direct(self, size: int, ended: bool) -> None:
        """Take data that is in that memory."""
        assert self._reader is not None, "it has given its memory"
        self._take_messages(self._reader.feed_missing(size), size, ended)

    def _take_messages(self, messages: list[tuple[bool, Message]], size: int, ended: bool) -> None:
        """Take the messages that are complete with `size` more bytes."""
        reader, unread = self._reader, self._unread
        assert reader is not None
        assert isinstance(unread, deque)
        self._keep(size + MESSAGE_BYTES * len(messages))
        unread.extend(messages)
        if self._method.handler.request_streaming:
            self._wake()
        elif ended and len(unread) == 1 and not reader.is_within_message:
            compressed, message = unread[0]
            if compressed:
                assert isinstance(message, bytes), "only plain ones are split"
                task = self._server.loop.create_task(self._start_decompressed(message))
                self.on_cancelled = task.cancel
            else:
                self._start(message)
        elif ended or len(unread) > 1:
            self.end(grpc.StatusCode.UNIMPLEMENTED, f"{self.method} requires exactly one request message")

    def _start(self, message: Message) -> None:
        """Start the handler of a unary call."""
        self._started = True
        server, connection = self._server, self.connection
        connection.kept -= self._kept
        self._kept = 0
        self._held = len(message) if isinstance(message, bytes) else message.nbytes
        connection.held += self._held
        self._unread = ()
        budget = server.budget
        if budget.used + connection.uncounted_bytes > budget.limit:
            if not server.front_door.free(connection.uncounted_bytes):
                self.end(*NO_MEMORY)
            if self.ended:
                return
        begin = self._method.begin
        if begin is None:
            server.run(self, self._method.handler, message)
            return
        try:
            begin(message, self)
        except Exception as error:
            fail(self, error)

    async def _start_decompressed(self, message: bytes) -> None:
        self._started = True
        try:
            message = await self._decompressed(message)
        except Aborted as aborted:
            self.end(*aborted.args)
        else:
            if not self.cancelled:
                self.on_cancelled = None
                self._start(message)

    async def _decompressed(self, message: bytes) -> bytes:
        """A message that is compressed. Raises Aborted."""
        if self._head.encoding == "identity":
            raise Aborted(*_NO_ENCODING)
        server = self._server
        limit = server.max_message_bytes
        try:
            return await server.loop.run_in_executor(server.threads, _decompress, message, limit, server.budget)
        except DecompressedTooLarge as error:
            fault = too_large(limit + 1, limit)
            raise Aborted(fault.code, fault.details) from error
        except RejectedError as error:
            raise Aborted(*NO_MEMORY) from error
        except RequestError as error:
            raise Aborted(grpc.StatusCode.INTERNAL, str(error)) from error

    async def next_message(self) -> bytes | None:
        """The next message of a stream; None after the last one, or when the call is interrupted."""
        while not (self.interrupted or self.cancelled or self.ended):
            unread = self._unread
            if not unread:
                if self.remote_ended:
                    if self._reader is not None and self._reader.is_within_message:
                        self.give_up(*_CUT_SHORT)
                    return None
                self._awaited = self._server.loop.create_future()
                await self._awaited
                self._taken = 0
                continue
            if self._taken == TURN_MESSAGES:
                self._taken = 0
                await asyncio.sleep(0)
                continue
            self._taken += 1
            compressed, message = unread.popleft()
            assert isinstance(message, bytes), "streams have no memory for large ones"
            self._keep(-len(message) - PREFIX_BYTES - MESSAGE_BYTES)
            if not unread:
                self.connection.credit(self)
            if compressed:
                try:
                    message = await self._decompressed(message)
                except Aborted as aborted:
                    self.give_up(*aborted.args)
                    return None
            return message
        return None

    def wants_data(self) -> bool:
        """True unless messages of a stream wait for its handler."""
        return not self._unread

    def on_sent(self) -> None:
        """There is room for another message of a stream."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def _wake(self) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is not None and not awaited.done():
            awaited.set_result(None)

    def cancel(self) -> None:
        """The client no longer waits for the call."""
        if self.cancelled:
            return
        self.cancelled = True
        on_cancelled = self.on_cancelled
        self._release()
        self._wake()
        self.on_sent()
        if on_cancelled is not None:
            try:
                on_cancelled()
            except Exception:  # an error of one call must not stop the others
                logger.exception("the cancellation of a gRPC call could not be handled")

    def give_up(self, code: grpc.StatusCode, details: str, trailing_metadata: Metadata = ()) -> None:
        """End the call with a status before its handler does, and cancel the handler."""
        on_cancelled = self.on_cancelled
        self.end(code, details, trailing_metadata)
        self.on_cancelled = on_cancelled
        self.cancel()

    def _expire(self) -> None:
        """The deadline has passed."""
        self.give_up(*_EXPIRED)


class _Messages:
    """All messages of a stream, or those until the call is interrupted."""

    def __init__(self, call: Http2Call, deserializer: Callable[[bytes], Any] | None) -> None:
        self._call = call
        self._deserializer = deserializer

    def __aiter__(self) -> "_Messages":
        return self

    async def __anext__(self) -> Any:
        message = await self._call.next_message()
        if message is None:
            raise StopAsyncIteration
        return message if self._deserializer is None else parsed(self._deserializer, message)


def _decompress(message: bytes, max_bytes: int, budget: Budget) -> bytes:
    return bytes(decompress(message, max_bytes, budget, what="message"))
