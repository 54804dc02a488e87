"""A gRPC server on the running event loop, on the same core as `grpc.server`."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterable
from functools import partial
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from sluice.gateway.front_door.budget import Budget
from sluice.gateway.grpc.transport.grpcio.arrivals import AwaitedMessages
from sluice.gateway.grpc.transport.grpcio.call import GrpcioCall, message_of
from sluice.gateway.grpc.transport.server import LAST_CALLS_S, NO_MEMORY, GrpcServer, Method, Refusal, fail, refuse

logger = logging.getLogger(__name__)

PENDING_ACCEPTS = 64
"""Calls that the core may accept at once."""
MAX_EVENTS = 256
"""Events handled in one turn before other callbacks of the loop run."""
_HAPPENED = cygrpc.CompletionType.operation_complete


class GrpcioServer(GrpcServer):
    """A server with a third of the processor time per call of `grpc.aio.server`.

    grpc.aio passes each step of each call from its own thread to the loop and accepts one call after the other. On a
    busy machine the calls arrive too slowly to form batches. Here the loop handles all pending events at once, and a
    thread only waits for the first of them.
    """

    def __init__(
        self,
        options: Iterable[tuple[str, Any]],
        refusal: Refusal | None = None,
        budget: Budget | None = None,
        message_timeout_s: float = 120,
    ) -> None:
        super().__init__()
        self._refusal = refusal
        self._budget = budget or Budget(1 << 62)
        self._message_timeout_s = message_timeout_s
        self._queue = cygrpc.CompletionQueue()
        self._server = cygrpc.Server(tuple(options), False)
        self._server.register_completion_queue(self._queue)
        self._streams: set[GrpcioCall] = set()
        self._late: list[GrpcioCall] | None = None
        self._taken = threading.Lock()
        self._serving = False
        self._loop: asyncio.AbstractEventLoop
        self.arrivals: AwaitedMessages
        self._ended: asyncio.Event

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
        await asyncio.sleep(min(LAST_CALLS_S, grace or 0))
        self._serving = False
        stopped = asyncio.Event()
        self._server.shutdown(self._queue, lambda event: stopped.set())
        for call in late:
            refuse(call)
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
        call = GrpcioCall(event, self._loop)
        if self._late is not None:
            if self._serving:
                self._late.append(call)
            else:
                refuse(call)
            return
        method = self.methods.get(call.method)
        if method is None:
            call.end(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        elif self._refusal is not None and (reason := self._refusal(call.method, call.invocation_metadata())):
            call.end(grpc.StatusCode.UNAVAILABLE, reason)
        elif (handler := method.handler).request_streaming:
            call.watch()
            self._streams.add(call)
            task = self.run(call, handler, call.requests(handler.request_deserializer))
            task.add_done_callback(lambda task: self._streams.discard(call))
        else:
            call.watch()
            self.arrivals.add(call)
            call.receive(partial(self._received, call, method))

    def _received(self, call: GrpcioCall, method: Method, event: Any) -> None:
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
            call.end(*NO_MEMORY)
            return
        call.hold(self._budget, size)
        if method.begin is None:
            self.run(call, method.handler, message)
            return
        try:
            method.begin(message, call)
        except Exception as error:
            fail(call, error)
