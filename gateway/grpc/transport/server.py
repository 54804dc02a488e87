"""A gRPC server on the running event loop, on the same core as `grpc.server`."""

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from sluice.gateway.front_door.budget import Budget
from sluice.gateway.grpc.transport.arrivals import AwaitedMessages
from sluice.gateway.grpc.transport.call import Aborted, Metadata, ServerCall, message_of, parsed
from sluice.gateway.grpc.transport.cancellation import CancellationWatch
from sluice.models.errors import RequestError

logger = logging.getLogger(__name__)

PENDING_ACCEPTS = 64
"""Calls that the core may accept at once."""
MAX_EVENTS = 256
"""Events handled in one turn before other callbacks of the loop run."""
LAST_CALLS_S = 0.3
"""The time in which a stopping server still accepts calls.

Clients send the next call as soon as they have an answer.
"""

_STOPPING = grpc.StatusCode.UNAVAILABLE, "the server is stopping", (("retry-after", "1"),)
"""The status of a call that a stopping server refuses, as the runtime rejects requests then."""
_NO_MEMORY = grpc.StatusCode.UNAVAILABLE, "the server has no memory left to read the message", (("retry-after", "1"),)
_HAPPENED = cygrpc.CompletionType.operation_complete

Refusal = Callable[[str, Metadata], str]
"""refusal(method, metadata): why a call is refused, "" if it is served."""


class GrpcServer:
    """Serves asynchronous handlers like `grpc.aio.server`, with a third of its processor time per call.

    grpc.aio passes each step of each call from its own thread to the loop and accepts one call after the other. On a
    busy machine the calls arrive too slowly to form batches. Here the loop handles all pending events at once, and a
    thread only waits for the first of them. A unary handler that is a plain function needs no task. It ends its call
    itself, at once or later, and sets `on_cancelled` of the call to be notified of a cancellation. For a call without a
    deadline that may take a tenth of a second.
    """

    def __init__(
        self,
        options: Iterable[tuple[str, Any]],
        refusal: Refusal | None = None,
        budget: Budget | None = None,
        message_timeout_s: float = 120,
    ) -> None:
        self._refusal = refusal
        self._budget = budget or Budget(1 << 62)
        self._message_timeout_s = message_timeout_s
        self._handlers: dict[str, Any] = {}
        self._direct: dict[str, Callable[[bytes, ServerCall], None]] = {}
        self._queue = cygrpc.CompletionQueue()
        self._server = cygrpc.Server(tuple(options), False)
        self._server.register_completion_queue(self._queue)
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: set[ServerCall] = set()
        self._late: list[ServerCall] | None = None
        self._taken = threading.Lock()
        self._serving = False
        self._loop: asyncio.AbstractEventLoop
        self._watch: CancellationWatch
        self.arrivals: AwaitedMessages
        self._ended: asyncio.Event

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        """Serve the methods of a service."""
        for name, handler in method_handlers.items():
            method = f"/{service_name}/{name}"
            self._handlers[method] = handler
            if handler.unary_unary is not None and not inspect.iscoroutinefunction(handler.unary_unary):
                self._direct[method] = handler.unary_unary

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[Any]) -> None:
        """Does nothing: generated code calls it for methods that are registered already."""

    def add_port(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listen, with TLS if there are credentials; returns the port. Raises RuntimeError if it cannot be bound."""
        secret = () if credentials is None else (credentials._credentials,)  # type: ignore[attr-defined]
        port: int = self._server.add_http2_port(address.encode(), *secret)
        if not port:
            raise RuntimeError(f"cannot bind {address}")
        return port

    async def start(self) -> None:
        """Start accepting calls."""
        self._loop = asyncio.get_running_loop()
        self._watch = CancellationWatch(self._loop)
        self.arrivals = AwaitedMessages(self._loop, self._budget, self._message_timeout_s)
        self._ended = asyncio.Event()
        self._server.start()
        self._serving = True
        for _ in range(PENDING_ACCEPTS):
            self._accept()
        self._taken.acquire()
        threading.Thread(target=self._wait, name="grpc", daemon=True).start()

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, interrupt streams, and cancel calls that are still open after `grace` seconds.

        The core cancels calls that arrive after its shutdown. So the server accepts calls for a while longer and
        refuses them once the core has asked all clients to disconnect. No client that waits for its refusal sends
        another call too late.
        """
        if not self._serving or self._late is not None:
            return
        late = self._late = []
        for stream in self._streams:
            stream.interrupt()
        self.arrivals.stop()
        self._watch.stop()  # from now on every cancellation must be noticed
        await asyncio.sleep(min(LAST_CALLS_S, grace or 0))
        self._serving = False
        stopped = asyncio.Event()
        self._server.shutdown(self._queue, lambda event: stopped.set())
        for call in late:
            _refuse(call)
        try:
            await asyncio.wait_for(stopped.wait(), grace or 0)
        except TimeoutError:
            self._server.cancel_all_calls()
            await stopped.wait()
        self._server.destroy()
        self._queue.shutdown()
        await self._ended.wait()

    # -- events

    def _wait(self) -> None:
        """Wait in a thread for an event, and then until the loop has handled it and its successors."""
        with contextlib.suppress(RuntimeError):  # the loop was closed without a stop
            try:
                while (event := self._queue.poll()).completion_type == _HAPPENED:  # otherwise the queue has shut down
                    self._loop.call_soon_threadsafe(self._take, event)
                    del event  # it keeps its call alive
                    self._taken.acquire()
            finally:
                self._loop.call_soon_threadsafe(self._ended.set)

    def _take(self, event: Any) -> None:
        """Handle an event and all later ones that are pending."""
        poll = self._queue.poll
        try:
            for taken in range(MAX_EVENTS):
                if taken:
                    event = poll(0)
                    if event.completion_type != _HAPPENED:
                        return
                try:
                    event.tag(event)
                except Exception:  # an error of one call must not stop the others
                    logger.exception("an event of a gRPC call could not be handled")
        finally:
            self._taken.release()

    def _accept(self) -> None:
        self._server.request_call(self._queue, self._queue, self._called)

    def _called(self, event: Any) -> None:
        if not event.success:  # the server stops
            return
        if self._serving:
            self._accept()
        call = ServerCall(event, self._loop)
        if self._late is not None:
            if self._serving:
                self._late.append(call)
            else:
                _refuse(call)
            return
        handler = self._handlers.get(call.method)
        if handler is None:
            call.end(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        elif self._refusal is not None and (reason := self._refusal(call.method, call.invocation_metadata())):
            call.end(grpc.StatusCode.UNAVAILABLE, reason)
        elif handler.request_streaming:
            call.watch()
            self._streams.add(call)
            task = self._run(call, handler, call.requests(handler.request_deserializer))
            task.add_done_callback(lambda task: self._streams.discard(call))
        else:
            if call.time_remaining() is None and call.method in self._direct:
                self._watch.add(call)
            else:
                call.watch()
            self.arrivals.add(call)
            call.receive(partial(self._received, call, handler))

    def _received(self, call: ServerCall, handler: Any, event: Any) -> None:
        message = message_of(event)
        self.arrivals.remove(call)
        if message is None:  # the client sent none, or has gone and does not get this status
            call.end(grpc.StatusCode.UNIMPLEMENTED, f"{call.method} requires exactly one request message")
            return
        if call.cancelled:  # already: `on_cancelled`, which the handler would set, would not be called
            call.end(grpc.StatusCode.CANCELLED)
            return
        size = len(message)
        if self._budget.used + size > self._budget.limit:
            call.end(*_NO_MEMORY)
            return
        call.hold(self._budget, size)
        begin = self._direct.get(call.method)
        if begin is None:
            self._run(call, handler, message)
            return
        try:
            begin(message, call)
        except Exception as error:
            self._failed(call, error)

    # -- calls

    def _run(self, call: ServerCall, handler: Any, request: Any) -> "asyncio.Task[None]":
        task = self._loop.create_task(self._answer(call, handler, request))
        call.on_cancelled = task.cancel
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, call: ServerCall, handler: Any, request: Any) -> None:
        try:
            if not handler.request_streaming and handler.request_deserializer is not None:
                request = parsed(handler.request_deserializer, request)
            call.serializer = handler.response_serializer
            if not handler.response_streaming:
                call.finish(await handler.unary_unary(request, call))
                return
            answers = (handler.stream_stream if handler.request_streaming else handler.unary_stream)(request, call)
            if hasattr(answers, "__aiter__"):
                async for answer in answers:
                    await call.write(answer)
            else:
                await answers
            if call.interrupted:
                _refuse(call)
            else:
                call.end(grpc.StatusCode.OK)
        except Aborted as aborted:
            call.end(*aborted.args)
        except RequestError as error:
            call.end(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception as error:
            self._failed(call, error)

    def _failed(self, call: ServerCall, error: Exception) -> None:
        logger.error("a call of %s failed", call.method, exc_info=error)
        call.end(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")


def _refuse(call: ServerCall) -> None:
    call.end(*_STOPPING)
