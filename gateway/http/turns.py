"""The turns of the requests of a connection, and the short way of those whose head is known."""

import contextlib
import os
from collections import deque
from collections.abc import Sequence
from typing import Any

from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.http.exchange import Address, Client, Exchange, InferRoute
from sluice.gateway.http.refusal import RefusedRequest
from sluice.gateway.http.request_head import KnownRequest
from sluice.models.tensors.arrays import Buffer


class Turns(Client):
    """The request of a connection whose response is the next one, and the latest one, which may wait for its turn.

    Most clients send the head of the request before once more. Such a request needs neither the parser nor the
    `connection`, a protocol of uvicorn, which handles everything else. So this can be compiled, while that cannot.
    """

    def __init__(self, connection: Any, route: InferRoute, front_door: FrontDoor) -> None:
        super().__init__()
        self.turn: Any = None
        """The request whose response is the next one: an exchange, a refusal or a cycle of uvicorn."""
        self.latest: Any = None
        """The request that came last."""
        self.known: KnownRequest | None = None
        self.in_body = False
        self.unparsed = 0
        """At least the bytes that were read since the last body part, or since the last complete head."""
        self.unparsed_rest = b""
        """Bytes that were read and are parsed in a later turn of the loop."""
        self.stopped = False
        """True if nothing more is read than what the client has sent already."""
        self.half_closed = False
        """True if the client sends no more; it may still read."""
        self.since_s = 0.0
        self._connection = connection
        self._route = route
        self._front_door = front_door
        self._budget = front_door.budget
        self._flow: Any = None
        self._pipeline: deque[Any] | None = None
        self._server_state: Any = None
        self._default_headers: Any = None
        self._common_headers = b""

    def begin(self) -> None:
        """Use what the connection has now that it is made."""
        connection = self._connection
        self.transport, self._flow = connection.transport, connection.flow
        self._pipeline, self._server_state = connection.pipeline, connection.server_state

    def end(self) -> None:
        """Break the cycles of a lost connection, which leaves nothing for the garbage collector."""
        self.turn = self.latest = self._connection = None

    def addresses(self) -> tuple[Address, Address]:
        """The client's end of the connection, and ours."""
        return self._connection.client, self._connection.server

    def is_between(self) -> bool:
        """True if no request is open, and no part of one has been read."""
        return self.turn is None and not (self.in_body or self.unparsed or self.stopped)

    def data_received(self, data: bytes) -> None:
        """Take what has been read: a whole request with the head of an earlier one, or something to be parsed."""
        known = self.known
        head = None if known is None or len(data) != known.size else known.head_of(data)
        if known is None or head is None or not self.is_between():
            self._connection.parse(data)
            return
        self.since_s = 0.0
        body = data[len(known.begin) :]
        exchange = Exchange(self._route, self, head, body)
        exchange.ready = True
        exchange.held = size = len(body)
        budget = self._budget
        budget.used += size
        self.turn = self.latest = exchange
        if not self._flow.write_paused and not self.transport.is_closing():
            exchange.run()
        if budget.used > budget.mark:
            self._front_door.press(self._connection)

    def hold(self, request: Any, size: int) -> None:
        """Count bytes of a request in the buffer of the front door."""
        request.held += size
        self._budget.used += size

    def release(self, request: Any) -> None:
        """Count nothing of a request any longer."""
        self._budget.used -= request.held
        request.held = 0

    def run(self) -> None:
        """Answer the request whose turn it is, unless it is not ready, or the client does not read."""
        turn = self.turn
        if (
            isinstance(turn, Exchange | RefusedRequest)
            and turn.ready
            and not turn.started
            and not self._flow.write_paused
            and not self.transport.is_closing()
        ):
            turn.run()

    def on_ready(self) -> None:
        """Answer the current request if it has become ready."""
        self.run()

    def on_response_complete(self) -> None:
        """Continue with the next request; unlike uvicorn, without a timer for the time until it comes."""
        turn, self.turn = self.turn, None
        if turn is not None:
            self.release(turn)
        self._server_state.total_requests += 1
        if self._front_door.paused:
            self._front_door.relieve()
        if self.transport.is_closing():
            return
        if self._pipeline:
            self._connection.begin_next()
        elif self.half_closed:
            self.transport.close()
            return
        self.regulate_reading()

    def regulate_reading(self) -> None:
        """Read on, or stop reading while earlier requests, the client or other connections are to make room."""
        if self.transport.is_closing():
            return
        flow, paused = self._flow, self._front_door.paused
        if self._pipeline or self.unparsed_rest or flow.write_paused or (paused and self._connection in paused):
            flow.pause_reading()
        elif flow.read_paused:
            flow.resume_reading()

    def common_headers(self) -> bytes:
        """The header lines that every response has; uvicorn renews them once a second."""
        headers = self._server_state.default_headers
        if headers is not self._default_headers:
            self._default_headers = headers
            self._common_headers = b"".join([b"%s: %s\r\n" % header for header in headers])
        return self._common_headers

    def write_now(self, parts: Sequence[Buffer]) -> bytes:
        """Write as much of a response as the socket takes at once, which is not copied; returns the rest, to write."""
        transport = self.transport
        sent = 0
        if not (transport.is_closing() or transport.get_write_buffer_size()) and self._connection.scheme == "http":
            with contextlib.suppress(OSError):  # it is full, or the transport finds the same error
                sent = os.writev(transport.get_extra_info("socket").fileno(), parts)
        rest: list[memoryview] = []
        for part in parts:
            size = memoryview(part).nbytes
            if sent < size:
                rest.append(memoryview(part).cast("B")[sent:])
            sent = max(sent - size, 0)
        return b"".join(rest)
