"""The HTTP server: uvicorn with connections that answer inference requests themselves."""

import asyncio
import contextlib
import enum
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import httptools
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluice.gateway.config.restricted import ApiGroup, Restrictions
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.front_door.listener import listen
from sluice.gateway.http.access import AccessControl, AccessRules
from sluice.gateway.http.dialect import InferenceTarget
from sluice.gateway.http.exchange import Exchange, InferRoute
from sluice.gateway.http.large_body import DIRECT_BYTES, LargeBody
from sluice.gateway.http.refusal import RefusedRequest, refusal
from sluice.gateway.http.request_head import KnownRequest, RequestHead, known_beginning, known_request
from sluice.gateway.http.turns import Turns

BACKLOG = 4096
"""Connections that the kernel keeps until they are accepted; it lowers the number to its own limit."""
LINGER_S = 2.0
LINGER_BYTES = 1 << 20
"""The bounds of reading on from a client that has been refused; without it the refusal might be lost."""
SMALL_BYTES = 4096
"""Smaller parts of heads are not counted."""
WAITING_BYTES = 2048
"""The least memory of a request that waits for its turn."""
TURN_PARTS = 1000
"""A client leaves others a turn when that many parts of its body have been read at a time."""
TURN_REQUESTS = 32
"""The same for requests."""
PIECE_BYTES = 8 << 10
"""The most that is parsed without a look at these bounds, unless it is one part."""
UPLOAD_PIECE_BYTES = 32 << 10
"""The same for bodies that are not in chunks, of whose length only the parser knows how much is left."""
SWEEP_TICKS = 10
"""Ticks of uvicorn between two sweeps; there are ten a second."""
LAST_REQUESTS_S = 0.3
"""The time in which a stopping server still answers requests on open connections."""


_NOTICED = frozenset((b"expect", b"host", b"transfer-encoding", b"upgrade"))
_HEALTH = re.compile(rb"/(v2/health/(live|ready)|metrics|ping)(\?|$)")
_TCP_CLOSE = 7


Application = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""


class Phase(enum.Enum):
    """The party that a connection waits for."""

    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    ANSWER = enum.auto()
    """The server's own work."""
    READER = enum.auto()
    """The client, to read what is written."""
    END = enum.auto()
    """The client, to notice that the connection ends."""


class ReadingFlow(FlowControl):
    """Reads nothing while bytes are `held` back for a later turn of the loop: later ones must not overtake them.

    uvicorn reads on whenever the application waits for more of a body.
    """

    held = False

    def resume_reading(self) -> None:
        """Read on, unless bytes are held back."""
        if not self.held:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """A client's connection. Inference requests become exchanges; uvicorn passes all others to the application.

    Both kinds wait in the base class's `pipeline` until the earlier responses have been written. Nothing is read while
    a request waits there or while the client does not read responses, which bounds the memory of a connection. The
    front door bounds all connections together, and sweeps them for those that wait too long for their client.
    """

    flow: ReadingFlow

    def __init__(
        self,
        route: InferRoute,
        *args: Any,
        restrictions: Restrictions | None = None,
        access: AccessRules | None = None,
        front_door: FrontDoor | None = None,
        **kwargs: Any,
    ) -> None:
        self._front_door = front_door or FrontDoor()
        self.turns = Turns(self, route, self._front_door)
        super().__init__(*args, **kwargs)
        # Most of what is read are requests with a known head, which nothing here handles.
        self.data_received = self.turns.data_received  # type: ignore[method-assign]
        self.url = b""
        self._route = route
        self._access = access
        self._restrictions = restrictions
        self.budget = self._front_door.budget
        self._head_bytes, self._head_lines = self._front_door.settings.head_bytes, self._front_door.settings.head_lines
        self._last_path: tuple[bytes, InferenceTarget | None] = b"", None
        self._hosts = 0
        self._offers_upgrade = False
        self._in_chunks = False
        """True if the body of the latest request comes in chunks, which may be small."""
        self._is_http_1_0 = False
        """True if the latest request is of HTTP/1.0, whose clients know no interim responses."""
        self._probed = self._only_health = self._is_direct = False
        self._known_large: KnownRequest | None = None
        self._large: LargeBody | None = None
        self._parser_lags = False
        """True if the parser has not seen the rest of the latest body."""
        self._begun = 0
        """The requests that began with the bytes that were read last."""
        self._parts = 0
        """The parts of bodies in the bytes that were read last."""
        self._unread = 0
        self._head_held = 0
        self._phase = Phase.IDLE
        self._moved = 0

    def connection_made(self, transport: Any) -> None:
        """Refuse the client when there are too many connections."""
        super().connection_made(transport)
        self.flow = ReadingFlow(transport)
        self.turns.begin()
        reason = self._front_door.enter(self, self._address)
        self._only_health = self._front_door.is_full
        if reason:  # at once, since a connection that lingers would still count
            self._front_door.faults.counts["no_connections"] += 1
            self.turns.stopped = True
            transport.write(refusal(503, reason))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request in flight and drop the waiting ones."""
        super().connection_lost(exc)
        turn = self.turns.turn
        self._release_all()
        self.pipeline.clear()
        if isinstance(turn, Exchange):
            turn.disconnect()
        self.turns.end()
        self._large = None  # it refers to the connection, too
        self._front_door.leave(self, self._address)
        if self._front_door.paused:
            self._front_door.relieve()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def cycle(self) -> Any:
        """The latest request."""
        return self.turns.latest

    @cycle.setter
    def cycle(self, request: Any) -> None:
        self.turns.latest = request

    @property
    def half_closed(self) -> bool:
        """True if the client sends no more; it may still read."""
        return self.turns.half_closed

    @property
    def since_s(self) -> float:
        """The time of the last sweep that found the connection in a new state; 0 if none has."""
        return self.turns.since_s

    # -- reading

    def parse(self, data: bytes) -> None:
        """Parse what has been read. Offers of another protocol are ignored, as RFC 9110 allows."""
        is_between = self.turns.is_between()
        self._begun = self._parts = 0
        self.turns.unparsed += len(data)
        if self.turns.stopped:
            if self.turns.unparsed > LINGER_BYTES:
                self.transport.abort()
            return
        if not self._parse(data):
            return
        if self.turns.unparsed > SMALL_BYTES and not self.turns.stopped:
            self._keep_unparsed()
        if self.turns.in_body and not self.turns.unparsed_rest:
            self._read_directly(data if is_between and self._begun == 1 else b"")
        elif is_between and self._begun == 1 and not self.turns.unparsed and isinstance(self.cycle, Exchange):
            self.turns.known = known_request(data, self.cycle.head)
        if self.budget.used > self.budget.mark:
            self._front_door.press(self)

    def _parse(self, data: bytes) -> bool:
        """Parse bytes, but not more of them than a turn may have; returns False once the connection is stopped."""
        position, end = 0, len(data)
        while position < end:
            stop = self._end_of_piece(data, position)
            if not self._feed(data if stop - position == end else data[position:stop]):
                return False
            position = stop
            if position < end and (self._parts >= TURN_PARTS or self._begun >= TURN_REQUESTS):
                self._parse_later(data[position:])
                break
        return True

    def _end_of_piece(self, data: bytes, position: int) -> int:
        """The end of what is parsed next: a head, the rest of a body, or a piece that may have many parts."""
        end = len(data)
        if end - position <= PIECE_BYTES:
            return end
        cycle = self.cycle
        if self.turns.in_body:
            if isinstance(cycle, Exchange) and cycle.missing_bytes >= end - position:
                return end
            return min(position + (PIECE_BYTES if self._in_chunks else UPLOAD_PIECE_BYTES), end)
        head = data.find(b"\r\n\r\n", position, position + PIECE_BYTES)
        return position + PIECE_BYTES if head < 0 else head + 4

    def _parse_later(self, rest: bytes) -> None:
        """Let others have their turn before the rest of what was read is parsed; it counts until then."""
        self.turns.unparsed_rest = rest
        self.budget.used += len(rest)
        self.flow.pause_reading()
        self.flow.held = True
        self.loop.call_soon(self._parse_rest)

    def _parse_rest(self) -> None:
        rest = self._take_rest()
        if rest and not self.transport.is_closing():
            self.data_received(rest)
            self.regulate_reading()

    def _take_rest(self) -> bytes:
        rest, self.turns.unparsed_rest = self.turns.unparsed_rest, b""
        self.flow.held = False
        self.budget.used -= len(rest)
        return rest

    def _feed(self, data: bytes) -> bool:
        """Pass bytes to the parser; returns False once the connection is stopped."""
        pieces: list[bytes | memoryview] = [data]
        while pieces:
            try:
                self.parser.feed_data(pieces[0])
            except httptools.HttpParserUpgrade as upgrade:
                if self.turns.stopped:
                    return False
                pieces = [self._head_without_upgrade(), memoryview(pieces[0])[upgrade.args[0] :], *pieces[1:]]
                continue
            except httptools.HttpParserError:
                if not self.turns.stopped:
                    self.refuse(400, "Invalid HTTP request received.", "malformed")
                return False
            del pieces[0]
        return True

    def _read_directly(self, data: bytes) -> None:
        """Read the rest of a large body into its memory, past the parser.

        `data` are the bytes that its request began with; b"" if they may hold more than that.
        """
        cycle = self.cycle
        if self.turns.stopped or not isinstance(cycle, Exchange) or self.scheme == "https":
            return
        size = len(data) - cycle.read_bytes
        rest = cycle.memory_for_rest()
        if rest is None:
            return
        self._known_large = None
        if size > 0 and not self._offers_upgrade:
            self._known_large = known_beginning(data[:size], cycle.head)
        self._parser_lags = True
        if self._large is None:
            self._large = LargeBody(self)
        self._large.read_rest(rest)
        if not self._is_direct:
            self._is_direct = True
            self.transport.set_protocol(self._large)

    def on_direct_bytes(self, size: int, complete: bool) -> None:
        """Take a part of a large body, which is in its memory already; with the last bytes of a part it is complete."""
        exchange = self.cycle
        self.turns.hold(exchange, size)
        if complete:
            rest = exchange.memory_for_rest()
            if rest is not None:
                assert self._large is not None
                self._large.read_rest(rest)
            else:
                if self._parser_lags:
                    self._replace_parser()
                self.on_message_complete()
        if self.budget.used > self.budget.mark:
            self._front_door.press(self)

    def on_next_bytes(self, data: bytes) -> None:
        """Take the first bytes after a large body: those of another one need no parser if its head is the same."""
        known = self._known_large
        head = known.head_of(data) if known is not None and self.turns.is_between() else None
        if known is None or head is None or known.size - len(data) < DIRECT_BYTES:
            self._end_direct()
            self.data_received(data)
            return
        self.turns.since_s = 0.0
        body = data[len(known.begin) :]
        exchange = Exchange(self._route, self.turns, head, body)
        self.turns.hold(exchange, len(body))
        self.turns.turn = self.cycle = exchange
        self.turns.in_body = True
        rest = exchange.memory_for_rest()
        assert self._large is not None
        assert rest is not None, "the one before was as large"
        self._large.read_rest(rest)

    def _end_direct(self) -> None:
        """Parse what comes next."""
        self._is_direct = False
        if self._large is not None:
            self._large.read_rest(None)
        if self._parser_lags:
            self._replace_parser()
        self.transport.set_protocol(self)

    def _keep_unparsed(self) -> None:
        """Count a part of a head in the buffer, and refuse a head that is too large."""
        if self.turns.unparsed > self._head_bytes:
            self._refuse_head()
        else:
            self.budget.used += self.turns.unparsed - self._head_held
            self._head_held = self.turns.unparsed

    def _release_head(self) -> None:
        self.budget.used -= self._head_held
        self._head_held = 0

    def _head_without_upgrade(self) -> bytes:
        """The head of the latest request without its offer of a protocol, for a new parser, which reads the body."""
        old = self.parser
        lines = [b"%s %s HTTP/%s" % (old.get_method(), self.url, old.get_http_version().encode())]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self._replace_parser()
        return b"\r\n".join((*lines, b"", b""))

    def _replace_parser(self) -> None:
        self._parser_lags = False
        self.parser = httptools.HttpRequestParser(self)
        with contextlib.suppress(AttributeError):  # httptools before 0.6.3
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def on_message_begin(self) -> None:
        """Begin a request; unlike the base class, without a scope, which only the application needs."""
        self.url = b""
        self.expect_100_continue = self._offers_upgrade = self._in_chunks = False
        self.headers = []
        self._hosts = 0
        self._begun += 1
        self.turns.unparsed = self.turns.unparsed or 1

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers, which follow a body, are dropped."""
        if self.turns.in_body:
            return
        name = name.lower()
        if name in _NOTICED:
            if name == b"host":
                self._hosts += 1
            elif name == b"upgrade":
                self._offers_upgrade = True
            elif name == b"transfer-encoding":
                self._in_chunks = True
            elif value.lower() == b"100-continue":
                self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Choose the exchange or the application for the request."""
        if self.turns.stopped or self.transport.is_closing():
            return
        parser = self.parser
        if self._offers_upgrade and parser.should_upgrade():
            return
        self._is_http_1_0 = parser.get_http_version() == "1.0"
        if self._hosts != 1 and not (self._hosts == 0 and self._is_http_1_0):
            self.refuse(400, f"expected one Host header, got {self._hosts}", "malformed")
            return
        if self.turns.unparsed > self._head_bytes or len(self.headers) > self._head_lines:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._head_bytes or len(self.headers) > self._head_lines:
                self._refuse_head()
                return
        method = parser.get_method()
        if self._only_health and not (method in (b"GET", b"HEAD") and _HEALTH.match(self.url)):
            limit = self._front_door.max_connections
            self.refuse(503, f"the server has reached its limit of {limit} connections", "no_connections")
            return
        self.turns.unparsed = 0
        if self._head_held:
            self._release_head()
        self.turns.since_s = 0.0
        path = self._match() if method == b"POST" else None
        if self._restrictions is not None and self._restrictions.forbids(ApiGroup.INFERENCE, self.headers):
            path = None
        added = b"" if path is None or self._access is None else self._access.inference_lines(self.headers, self.server)
        if path is None or added is None:
            if method == b"CONNECT":
                self.refuse(405, "Method Not Allowed", "malformed")
                return
            self._begin_cycle()
            self.turns.in_body = True
            return
        self.turns.in_body = True
        keep_alive = parser.should_keep_alive() and not (self._is_http_1_0 or self._front_door.is_leaving)
        head = RequestHead(path, self.headers, self.expect_100_continue, keep_alive, added)
        head.read_headers()
        self._take(Exchange(self._route, self.turns, head))

    def _take(self, request: Any) -> None:
        """Make a request the latest one; it runs at once if it is ready and no earlier one is open."""
        waits = self.turns.turn is not None
        self.cycle = request
        if waits:
            self.turns.hold(request, WAITING_BYTES)
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))
        else:
            self.turns.turn = request
            request.send_continue()
            if request.ready:
                self.turns.run()

    def _match(self) -> InferenceTarget | None:
        url, path = self._last_path
        if self.url != url:
            path = self._route.match(self.url)
            self._last_path = self.url, path
        return path

    def _begin_cycle(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        waits = self.turns.turn is not None
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers = self.scope["headers"] = headers
        super().on_headers_complete()
        cycle = self.cycle
        cycle.held = 0
        if self._front_door.is_leaving:
            cycle.keep_alive = False
        if waits:
            self.turns.hold(cycle, WAITING_BYTES)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body of the latest request."""
        self.turns.unparsed = 0
        self._parts += 1
        if self._parts == TURN_PARTS:
            self.flow.pause_reading()
            self.loop.call_soon(self.regulate_reading)
        if self._head_held:
            self._release_head()
        cycle = self.cycle
        if not isinstance(cycle, Exchange):
            if not self.turns.stopped and not cycle.response_complete:
                self.turns.hold(cycle, len(body))
                super().on_body(body)
        elif not cycle.ready:
            self.turns.hold(cycle, len(body))
            cycle.receive(body)
            if cycle.ready and cycle is self.turns.turn:
                self.turns.run()

    def on_message_complete(self) -> None:
        """Take the end of the body of the latest request."""
        if not self.turns.in_body:
            return
        self.turns.in_body = False
        cycle = self.cycle
        if not isinstance(cycle, Exchange):
            super().on_message_complete()
        elif not cycle.ready:
            cycle.finish()
            if cycle is self.turns.turn:
                self.turns.run()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer the requests of a client that sends no more, but may still read."""
        self.turns.half_closed = True
        if self.turns.stopped or self.scheme == "https":
            return False
        if self.turns.in_body or self.turns.unparsed:
            self.refuse(400, "the connection was closed before the request was complete", "incomplete")
        return self.turns.turn is not None

    # -- answering

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start the next request."""
        self.turns.turn = cycle
        if not isinstance(cycle, Exchange | RefusedRequest):
            super()._start_asgi_task(cycle, app)
            return
        cycle.send_continue()
        # Not directly: many waiting requests that fail at once would nest their calls.
        self.loop.call_soon(self.turns.run)

    def begin_next(self) -> None:
        """Start the request that has waited the longest."""
        self._start_asgi_task(*self.pipeline.pop())

    def on_response_complete(self) -> None:
        """Continue with the next request."""
        self.turns.on_response_complete()

    def pause_writing(self) -> None:
        """Stop reading while the client does not read responses."""
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self.budget.used += self._unread
        self.regulate_reading()

    def resume_writing(self) -> None:
        """Continue when the client reads again."""
        super().resume_writing()
        self.budget.used -= self._unread
        self._unread = 0
        self.regulate_reading()
        self.turns.run()

    def common_headers(self) -> bytes:
        """The header lines that every response has."""
        return self.turns.common_headers()

    # -- refusing

    def refuse(self, status: int, reason: str, fault: str) -> None:
        """Read no more, answer the requests that are complete and then this error, and end the connection."""
        self._front_door.faults.counts[fault] += 1
        self.turns.stopped = True
        if self._is_direct:
            self._end_direct()
        if self.turns.in_body and not self._withdraw():
            self.transport.close()
            return
        self.turns.in_body = False
        self.turns.unparsed = 0
        self._release_head()
        self._take_rest()
        self._take(RefusedRequest(self, status, reason))

    def _withdraw(self) -> bool:
        """Take back the request whose body is being read; False if it has been answered already, at least in part."""
        cycle = self.cycle
        if cycle.response_complete or getattr(cycle, "response_started", False):
            return False
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
        elif cycle is self.turns.turn:
            self.turns.turn = None
        self.turns.release(cycle)
        if isinstance(cycle, Exchange):
            cycle.disconnect()
        else:
            cycle.disconnected = True
            cycle.message_event.set()
        return True

    def _refuse_head(self) -> None:
        limit = self._head_bytes
        if self.turns.in_body:
            self.refuse(400, f"the parts between the data of the body exceed {limit} bytes", "head_too_large")
        elif len(self.url) > limit // 2:
            self.refuse(414, f"the request target and the headers exceed {limit} bytes", "head_too_large")
        else:
            said = f"the request head exceeds {limit} bytes or {self._head_lines} lines"
            self.refuse(431, said, "head_too_large")

    def end_with(self, response: bytes) -> None:
        """Write the last response. What the client still sends is read for a while, so that it gets the response."""
        transport = self.transport
        if transport.is_closing():
            return
        transport.write(response)
        if self.turns.half_closed or not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        self.turns.since_s = 0.0
        self.flow.resume_reading()

    # -- for the front door

    def _release_all(self) -> None:
        """Count nothing of this connection any longer."""
        for request in (self.turns.turn, self.cycle, *(waits for waits, _ in self.pipeline)):
            if request is not None:
                self.turns.release(request)
        self.budget.used -= self._unread
        self._unread = 0
        self._release_head()
        self._take_rest()

    def regulate_reading(self) -> None:
        """Read on, or stop reading."""
        self.turns.regulate_reading()

    def is_idle(self) -> bool:
        """True if the client owes the beginning or the rest of a request head, and no request is open."""
        return self.turns.turn is None and not self.turns.in_body and not self.turns.stopped

    def read_bytes(self) -> int:
        """The bytes of the latest request that have been read."""
        cycle = self.cycle
        return 0 if cycle is None else int(cycle.held)

    def kept_bytes(self) -> int:
        """The bytes that are freed if the request that is read is refused, or the client that does not read is left."""
        if self.transport.is_closing():
            return 0
        body = self.read_bytes() if self.turns.in_body else 0
        return self._unread + self._head_held + body + WAITING_BYTES * len(self.pipeline)

    def give_up(self) -> None:
        """Refuse the request that is being read, or end the connection of a client that has more open."""
        self._front_door.paused.discard(self)
        if self._unread or self.pipeline:
            self._front_door.faults.counts["no_memory"] += 1
            self._release_all()
            self.transport.abort()
        else:
            self.refuse(503, "the server has no memory left to read the request", "no_memory")

    def abort(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    def ask_to_go(self, *, last: bool) -> None:
        """End the connection with the next answer; with `last`, at once if the client has had one and asks nothing."""
        self.turns.known = self._known_large = None  # their answers would keep it
        if last and self.cycle is not None and self.phase() is Phase.IDLE:
            self.transport.close()

    def sweep(self, now_s: float) -> None:
        """Enforce the time limits. Called about once a second."""
        phase = self.phase()
        if phase is not self._phase or not self.turns.since_s:
            self._phase, self.turns.since_s, self._moved = phase, now_s, self._moved_bytes(phase)
            return
        waited_s = now_s - self.turns.since_s
        settings = self._front_door.settings
        if phase is Phase.IDLE:
            if waited_s >= (settings.first_request_s if self.cycle is None else settings.idle_s):
                self.transport.close()
        elif phase is Phase.HEAD:
            if waited_s >= settings.head_timeout_s:
                self.refuse(408, f"no complete request head within {settings.head_timeout_s:g} s", "too_slow")
        elif phase is Phase.END:
            if waited_s >= LINGER_S:
                self.transport.abort()
        elif phase is Phase.ANSWER:
            self._look_for_client()
        elif waited_s >= settings.progress_s:
            moved = self._moved_bytes(phase)
            if moved - self._moved >= max(settings.min_bytes_per_s * waited_s, 1):
                self.turns.since_s, self._moved = now_s, moved
            elif phase is Phase.BODY:
                said = f"the body comes with less than {settings.min_bytes_per_s} bytes a second"
                self.refuse(408, said, "too_slow")
            else:
                self._front_door.faults.counts["too_slow"] += 1
                self.transport.abort()

    def phase(self) -> Phase:
        """The party that the connection waits for now."""
        turn = self.turns.turn
        if (self.turns.stopped and turn is not None and turn.response_complete) or self.transport.is_closing():
            return Phase.END
        if self.flow.write_paused:
            return Phase.READER
        if self.flow.read_paused:
            return Phase.ANSWER
        if self.turns.in_body:
            return Phase.BODY
        if self.turns.unparsed:
            return Phase.HEAD
        return Phase.IDLE if turn is None else Phase.ANSWER

    def _moved_bytes(self, phase: Phase) -> int:
        if phase is Phase.READER:
            return -self.transport.get_write_buffer_size()
        return self.read_bytes() if phase is Phase.BODY else 0

    def _look_for_client(self) -> None:
        """Find out whether a client that sends no more still reads: one that does not must not keep a request going.

        A client that has closed resets the connection when something is written, which shows in the socket's state.
        """
        turn = self.turns.turn
        if not self.turns.half_closed or getattr(turn, "response_started", False) or self._is_http_1_0:
            return
        if not self._probed:
            self._probed = True
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        with contextlib.suppress(OSError):  # not TCP
            state = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
            if state[0] == _TCP_CLOSE:
                self.transport.abort()


class HttpServer(uvicorn.Server):
    """A uvicorn server on a bound socket; the process handles signals.

    `serve()` runs until `should_exit` is set and the requests in flight have been answered. `tls` makes it an HTTPS
    server. Without a listener it serves only connections that it is given.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket | None,
        tls: ssl.SSLContext | None = None,
        front_door: FrontDoor | None = None,
    ) -> None:
        super().__init__(config)
        self._listeners = [] if listener is None else [listener]
        self._front_door = front_door
        self._tls = tls
        self.accepting = asyncio.Event()
        """Set when connections are accepted."""
        self._attaching: set[asyncio.Task[Any]] = set()
        self.port: int = 0 if listener is None else listener.getsockname()[1]

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on the bound socket, and on `sockets`."""
        if not self.config.loaded:
            self.config.load()
        self.config.ssl = self._tls
        await super().serve([*self._listeners, *(sockets or ())])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections; unlike uvicorn alone, with a limit of time for the TLS handshake."""
        await self.lifespan.startup()
        limit_s = None if self._tls is None or self._front_door is None else self._front_door.settings.head_timeout_s
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                self._protocol, sock=each, ssl=self._tls, backlog=self.config.backlog, ssl_handshake_timeout=limit_s
            )
            for each in sockets or ()
        ]
        self.started = True
        self.accepting.set()

    async def on_tick(self, counter: int) -> bool:
        """Sweep the connections once a second."""
        if self._front_door is not None and counter % SWEEP_TICKS == 0:
            self._front_door.sweep(time.monotonic())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no connections, answer open ones for a while longer, and then stop as uvicorn does.

        uvicorn alone would at once close connections whose request has not been read yet.
        """
        loop = asyncio.get_running_loop()
        connected = self._connected()
        for server in self.servers:
            server.close()
        joining = asyncio.gather(
            *(loop.connect_accepted_socket(self._protocol, each, ssl=self._tls) for each in connected),
            return_exceptions=True,
        )
        await asyncio.sleep(LAST_REQUESTS_S)
        joining.cancel()
        await super().shutdown(sockets)

    def attach(self, connection: socket.socket) -> None:
        """Serve a connection that was made elsewhere, which the server owns from now on."""
        attaching = asyncio.ensure_future(
            asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        )
        self._attaching.add(attaching)
        attaching.add_done_callback(self._attaching.discard)

    def _connected(self) -> list[socket.socket]:
        """The connections that the loop has not accepted yet, which would be lost with the listener."""
        found = []
        for listener in self._listeners:
            with contextlib.suppress(OSError):  # there are no more
                while True:
                    found.append(listener.accept()[0])
        return found

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        connection: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return connection

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


def http_config(
    app: Starlette | Application,
    route: InferRoute,
    front_door: FrontDoor | None = None,
    *,
    restrictions: Restrictions | None = None,
    access: AccessRules | None = None,
    connection: Callable[..., Connection] = Connection,
) -> uvicorn.Config:
    """The uvicorn configuration that serves `route` and, for all other requests, the ASGI application `app`.

    With `restrictions`, inference without the key goes to the application, which refuses it; so does inference that
    the rules of `access` refuse. An application that is not ours checks the access to it by itself. `connection` makes
    the connections.
    """
    return uvicorn.Config(
        app if access is None or not isinstance(app, Starlette) else AccessControl(app, access),
        http=partial(  # type: ignore[arg-type]
            connection, route, restrictions=restrictions or None, access=access, front_door=front_door or FrontDoor()
        ),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
    )


def http_server(
    config: uvicorn.Config,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    front_door: FrontDoor | None = None,
) -> HttpServer:
    """A server that listens already; port 0 takes a free one. Raises ConfigError if the port cannot be bound.

    `front_door` is the front door of the connections, which the server sweeps.
    """
    return HttpServer(config, listen("HTTP", host, port, config.backlog), tls, front_door)
