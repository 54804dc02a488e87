"""One call of the server on the core of grpcio."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from sluice.gateway.front_door.budget import Budget
from sluice.gateway.grpc.transport.call import Aborted, Metadata, parsed

_T = TypeVar("_T")

_NO_DEADLINE_S = 5e9
"""The year 2128: later than any deadline of a client."""
# These two operations hold no state of a call and are shared by all calls.
_HEADERS = cygrpc.SendInitialMetadataOperation(None, 0)
_UNHEARD_CLOSE = cygrpc.ReceiveCloseOnServerOperation(0)


class GrpcioCall:
    """A `ServerCall`, and its steps for the server.

    Cancellation is only noticed after `watch`. Operations on a call that is `cancelled` or has ended have no effect,
    because the core aborts if its server may be stopped by then.
    """

    __slots__ = (
        "_all_read",
        "_awaited",
        "_budget",
        "_call",
        "_deadline_s",
        "_ended",
        "_held",
        "_loop",
        "_metadata",
        "_sent",
        "_trailing",
        "_watched",
        "cancelled",
        "interrupted",
        "method",
        "on_cancelled",
        "serializer",
    )

    def __init__(self, event: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.method: str = event.call_details.method.decode(errors="replace")
        self.serializer: Callable[[Any], bytes] | None = None
        self.on_cancelled: Callable[[], object] | None = None
        self.cancelled = self.interrupted = False
        self._call = event.call
        self._deadline_s: float = event.call_details.deadline
        self._metadata = event.invocation_metadata
        self._loop = loop
        self._trailing: Metadata = ()
        self._sent = self._watched = self._ended = self._all_read = False
        self._awaited: asyncio.Future[bytes | None] | None = None
        self._budget: Budget | None = None
        self._held = 0

    # -- for handlers

    def invocation_metadata(self) -> Any:
        """The client's metadata: pairs of name and value."""
        return self._metadata

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline; None without one."""
        return None if self._deadline_s > _NO_DEADLINE_S else max(self._deadline_s - time.time(), 0.0)

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Set the metadata that is sent with the status."""
        self._trailing = metadata

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the call with a status that is not OK."""
        raise Aborted(code, details, trailing_metadata)

    async def write(self, message: Any) -> None:
        """Send one of several messages; does nothing once the client is gone."""
        if self.cancelled or self._ended:
            return
        sent = self._message(message)
        done: asyncio.Future[None] = self._loop.create_future()
        self._send([sent], lambda event: _settle(done, None))
        await done

    # -- for the server

    def watch(self) -> None:
        """Notice from now on when the client no longer waits for the call."""
        if not self._watched and not self._ended:
            self._watched = True
            self._start((cygrpc.ReceiveCloseOnServerOperation(0),), self._closed)

    def hold(self, budget: Budget, size: int) -> None:
        """Count the bytes of the message in the budget until the call ends."""
        self._budget, self._held = budget, size
        budget.used += size

    def _release(self) -> None:
        if self._budget is not None:
            self._budget.used -= self._held
            self._budget = None

    def receive(self, then: Callable[[Any], object]) -> None:
        """Request the next message; `then` gets an event for `message_of` when there is one, or none is left."""
        self._start((cygrpc.ReceiveMessageOperation(0),), then)

    async def requests(self, deserializer: Callable[[bytes], Any] | None) -> AsyncIterator[Any]:
        """All messages, or those until the call is interrupted."""
        while not self.interrupted:
            if self.cancelled or self._ended:
                return
            self._awaited = self._loop.create_future()
            self.receive(partial(_settle_message, self._awaited))
            if (message := await self._awaited) is None:
                self._all_read = True
                return
            yield message if deserializer is None else parsed(deserializer, message)

    def interrupt(self) -> None:
        """End `requests` early, so that the handler ends when it has answered the messages it has."""
        self.interrupted = not self._all_read
        if self._awaited is not None:
            _settle(self._awaited, None)

    def finish(self, answer: Any) -> None:
        """Send the only message, with the status OK."""
        self._finish([self._message(answer), cygrpc.SendStatusFromServerOperation(self._trailing, 0, b"", 0)])

    def end(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """Send the status."""
        text = details.encode(errors="replace")
        metadata = trailing_metadata or self._trailing
        self._finish([cygrpc.SendStatusFromServerOperation(metadata, code.value[0], text, 0)])

    def _message(self, message: Any) -> Any:
        return cygrpc.SendMessageOperation(message if self.serializer is None else self.serializer(message), 0)

    def _finish(self, operations: list[Any]) -> None:
        if self._ended:
            return
        if not self.cancelled:
            if not self._watched:  # the core treats a call without a pending close operation as abandoned
                operations.append(_UNHEARD_CLOSE)
            self._send(operations, _ignore)
        self._ended = True
        self._release()
        self._call = self.on_cancelled = None  # lets the core free its part of the call after the last event

    def _send(self, operations: list[Any], then: Callable[[Any], object]) -> None:
        if not self._sent:
            self._sent = True
            operations.append(_HEADERS)
        self._start(operations, then)

    def _start(self, operations: Sequence[Any], then: Callable[[Any], object]) -> None:
        if self._call.start_server_batch(operations, then) != cygrpc.CallError.ok:
            raise RuntimeError(f"gRPC refused the operations {operations}")

    def _closed(self, event: Any) -> None:
        if event.batch_operations[0].cancelled() and not self._ended:
            self.cancelled = True
            self._release()
            if self.on_cancelled is not None:
                self.on_cancelled()


def message_of(event: Any) -> bytes | None:
    """The received message; None if none is left or the client has gone."""
    message: bytes | None = event.batch_operations[0].message()
    return message


def _settle(future: asyncio.Future[_T], result: _T) -> None:
    if not future.done():
        future.set_result(result)


def _settle_message(future: asyncio.Future[bytes | None], event: Any) -> None:
    _settle(future, message_of(event))


def _ignore(event: Any) -> None:
    """Nothing follows."""
