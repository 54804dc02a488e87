"""The connection of a client: passes bytes between its socket and the state machine, and keeps its limits."""

import asyncio
import logging
import ssl
from typing import Any, Protocol

from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.grpc.transport.http2.call import Http2Call
from sluice.gateway.grpc.transport.http2.call_head import CallHead
from sluice.gateway.grpc.transport.http2.connection import ConnectionLimits, Http2Connection
from sluice.gateway.grpc.transport.http2.large_frames import NEXT_BYTES, LargeFrames
from sluice.gateway.grpc.transport.http2.streams import Stream
from sluice.gateway.grpc.transport.server import NO_MEMORY, SLOW
from sluice.gateway.http2.frames import ErrorCode, go_away, settings_frame

KEEPALIVE_S = 120.0
"""A client of whom nothing was read for so long gets a ping."""
KEEPALIVE_TIMEOUT_S = 20.0
"""A client that has not answered a ping by then is gone."""
LINGER_S = 2.0
LINGER_BYTES = 1 << 20
"""The bounds of reading on from a client that is asked to go; without it the reason might be lost."""
JOINED_BYTES = 256 << 10
"""Parts of no more than that are written as one."""

logger = logging.getLogger(__name__)


class ConnectionOwner(Protocol):
    """The server of a connection. It accepts no calls unless it is `serving`."""

    front_door: FrontDoor
    limits: ConnectionLimits
    loop: asyncio.AbstractEventLoop
    serving: bool
    tls: ssl.SSLContext | None

    def open_call(self, connection: Http2Connection[CallHead], stream_id: int, head: CallHead, ended: bool) -> Stream:
        """Begin a call, or refuse it because of its headers."""
        ...

    def open_health_call(
        self, connection: Http2Connection[CallHead], stream_id: int, head: CallHead, ended: bool
    ) -> Stream:
        """As `open_call`, on a connection that is kept for health."""
        ...

    def flush_later(self, connection: "GrpcConnection") -> None:
        """Call `flush` when this turn of the event loop is over."""
        ...

    def on_lost(self) -> None:
        """A connection is gone."""
        ...


class GrpcConnection:
    """A connection, with the methods of `asyncio.Protocol`. All that is sent in a turn of the loop is written at once.

    The front door bounds all connections together, and sweeps them for those that wait too long for their client.
    """

    def __init__(self, server: ConnectionOwner) -> None:
        self._server = server
        self._front_door = server.front_door
        self.http2: Http2Connection[CallHead]
        self.since_s = 0.0
        self._state: object = None
        """The thing that the connection waited for at the last sweep."""
        self._born_s = server.loop.time()
        self._reads = 0
        self._read_state = (0, self._born_s)
        """The number of reads at a sweep, and the time of the first sweep that found it."""
        self._pinged_s = self._asked_s = 0.0
        self._unread_bytes = 0
        self._unread_state = 0, 0.0
        self._write_paused = self._ending = self._lost = False
        self._reading = True
        self._lingering_bytes = 0
        self._is_given = False
        """True if somebody else goes on with the connection."""
        self._large: LargeFrames | None = None
        self._is_direct = False
        """True while `_large` reads."""

    # -- transport

    def connection_made(self, transport: Any) -> None:
        """Refuse the client when there are too many connections, or when it does not speak HTTP/2 over TLS."""
        self.transport = transport
        server = self._server
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) else ""
        reason = self._front_door.enter(self, self._address)
        open_call = server.open_health_call if self._front_door.is_full else server.open_call
        self.http2 = Http2Connection(CallHead, open_call, self._notify, server.loop.time, server.limits)
        tls = transport.get_extra_info("ssl_object")
        if reason:
            self._front_door.faults.counts["no_connections"] += 1
            transport.write(settings_frame({}) + go_away(0, ErrorCode.ENHANCE_YOUR_CALM, reason))
        elif tls is not None and tls.selected_alpn_protocol() != "h2":
            self._front_door.faults.counts["malformed"] += 1
        elif not self._server.serving:
            transport.write(settings_frame({}) + go_away(0, ErrorCode.NO_ERROR, "the server is stopping"))
        else:
            self.flush()
            return
        self._ending = True
        self.http2.lose()
        transport.close()

    def data_received(self, data: bytes) -> None:
        """Take what has been read."""
        if self._ending:
            self._lingering_bytes += len(data)
            if self._lingering_bytes > LINGER_BYTES:
                self.transport.abort()
            return
        self._reads += 1
        self._take(data)
        if self._is_given:
            return
        if self.http2.direct_memory() is not None and not self._is_direct and self._server.tls is None:
            self._large = self._large or LargeFrames(self)
            self._is_direct = True
            self.transport.set_protocol(self._large)

    def direct_memory(self) -> memoryview | None:
        """Memory for the rest of a large frame; None if none is being received."""
        return None if self._ending else self.http2.direct_memory()

    def on_direct_bytes(self, size: int) -> None:
        """Take a part of a large frame, which is in its memory already."""
        self._reads += 1
        try:
            self.http2.receive_direct(size)
        except Exception:
            self._fail()
        self._after()

    def on_next_bytes(self, data: bytes) -> None:
        """Take what comes between large frames; much of it means that there are no more of them."""
        self.data_received(data)
        if len(data) == NEXT_BYTES and self.http2.direct_memory() is None:
            self._is_direct = False
            self.transport.set_protocol(self)

    def _take(self, data: bytes) -> None:
        """Take what has been read. Other connections have their turn before what is too much for one."""
        try:
            self.http2.receive(data)
        except Exception:
            self._fail()
        if self.http2.given_stream is None:
            self._after()
        else:
            self._give()

    def _give(self) -> None:
        """Pass the connection on to the method of its only call."""
        call = self.http2.given_stream
        self.flush()
        if self._ending or self._lost or self._is_given:
            return
        assert isinstance(call, Http2Call), "calls are given"
        self._is_given = True
        try:
            call.hand_over(self.transport, self.http2.take_rest(), self.connection_lost)
        except Exception:
            logger.exception("a gRPC connection could not be passed on")
            self.transport.abort()

    def _fail(self) -> None:
        logger.exception("the data of a gRPC connection could not be handled")
        self.http2.end_with(ErrorCode.INTERNAL_ERROR, "internal error")

    def _after(self) -> None:
        """Write what is to be written, and read on or not."""
        self.flush()
        if self.http2.is_behind or not self._reading:
            self.regulate_reading()
            if self.http2.is_behind:
                self._server.loop.call_soon(self._take_rest)

    def _take_rest(self) -> None:
        if not (self._ending or self._lost):
            self._take(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what is open."""
        self._lost = True
        self.http2.lose()
        self._unread_bytes = 0
        self._count()
        self._front_door.leave(self, self._address)
        if self._front_door.paused:
            self._front_door.relieve()
        self._server.on_lost()

    def eof_received(self) -> None:
        """Let the transport close: a client that sends no more waits for nothing."""

    def pause_writing(self) -> None:
        """Stop reading while the client does not read."""
        self._write_paused, self.http2.writable = True, False
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._count()
        self.regulate_reading()

    def resume_writing(self) -> None:
        """Continue when the client reads again."""
        self._write_paused, self.http2.writable = False, True
        self._unread_bytes = 0
        self._unread_state = 0, 0.0
        self.regulate_reading()
        self.http2.pump()
        self.flush()

    # -- writing

    def _notify(self) -> None:
        self._server.flush_later(self)

    def flush(self) -> None:
        """Write what is to be written, and count what is kept."""
        if self._lost or self._is_given:
            return
        parts = self.http2.take()
        if parts and not self.transport.is_closing():
            if len(parts) == 1:
                self.transport.write(parts[0])
            elif sum(map(len, parts)) <= JOINED_BYTES:
                self.transport.write(b"".join(parts))
            else:
                self.transport.writelines(parts)
        if self.http2.held + self.http2.kept + self._unread_bytes != self.http2.counted_bytes:
            self._count()
            front_door = self._front_door
            if front_door.budget.used > front_door.budget.mark:
                front_door.press(self)
            elif front_door.paused:
                front_door.relieve()
        if self.http2.is_done and not self._ending:
            self._end()

    def _count(self) -> None:
        """Count what is kept in the budget."""
        http2 = self.http2
        kept = http2.held + http2.kept + self._unread_bytes
        self._front_door.budget.used += kept - http2.counted_bytes
        http2.counted_bytes = kept

    def _end(self) -> None:
        """End the connection. What the client still sends is read for a while, so that it gets the last frames."""
        fault = self.http2.fault
        if fault is not None:
            reason = "flood" if fault.code is ErrorCode.ENHANCE_YOUR_CALM else "malformed"
            self._front_door.faults.counts[reason] += 1
        self._ending = True
        self.since_s = 0.0
        if fault is not None and self._server.tls is None and self.transport.can_write_eof():
            self.transport.write_eof()
            if not self._reading:
                self.transport.resume_reading()
        else:
            self.transport.close()

    # -- for the front door

    def is_idle(self) -> bool:
        """True if no call is open."""
        return not (self.http2.streams or self._is_given)

    def kept_bytes(self) -> int:
        """The bytes that are freed if messages that are read are refused, or the client that does not read is left."""
        return 0 if self._ending or self._lost else self.http2.kept + self._unread_bytes

    def read_bytes(self) -> int:
        """The bytes of messages that have been read and that no handler has."""
        return self.http2.kept - self.http2.unsent_bytes

    def give_up(self) -> None:
        """Refuse the calls whose messages are being read, or end the connection of a client that does not read."""
        self._front_door.paused.discard(self)
        self._front_door.faults.counts["no_memory"] += 1
        http2 = self.http2
        if not (self._unread_bytes or http2.unsent_bytes):
            for call in list(http2.streams.values()):
                if isinstance(call, Http2Call) and call.keeps_messages:
                    call.give_up(*NO_MEMORY)
            freed = http2.counted_bytes
            self._count()
            if http2.counted_bytes < freed:
                self.regulate_reading()
                return
        self.abort()

    def abort(self) -> None:
        """End the connection at once."""
        self.http2.lose()
        self._ending = True
        self._unread_bytes = 0
        self._count()
        self.transport.abort()

    def regulate_reading(self) -> None:
        """Read on, or stop reading while the client or other connections are to make room, or much has been read."""
        if self._lost or self._is_given or self.transport.is_closing():
            return
        reading = not (self._write_paused or self.http2.is_behind or self in self._front_door.paused)
        if reading != self._reading:
            self._reading = reading
            if reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def interrupt(self) -> None:
        """End the messages of streams early."""
        for call in list(self.http2.streams.values()):
            if isinstance(call, Http2Call):
                call.interrupt()

    def drain(self) -> None:
        """Ask the client to send no more calls, and leave one that knows already."""
        if self._ending:
            self.transport.abort()
        else:
            self.ask_to_go(last=True)

    def ask_to_go(self, *, last: bool) -> None:
        """Ask the client to send its next calls on another connection. This one closes after those that are open."""
        if not (self._ending or self._is_given):
            self._ask_to_go(self._server.loop.time())
            self.flush()

    def _ask_to_go(self, now_s: float) -> None:
        """Ask the client to send no more calls. A while later none are taken, though it has not answered."""
        if not self._asked_s:
            self._asked_s = self._pinged_s = now_s
            self.http2.drain()
        elif now_s - self._asked_s >= KEEPALIVE_TIMEOUT_S:
            self.http2.stop_opening()

    def sweep(self, now_s: float) -> None:
        """Enforce the time limits. Called about once a second."""
        if self._is_given:
            return
        http2 = self.http2
        http2.forgive()
        settings = self._front_door.settings
        state: object = "end"
        if not self._ending:
            state = http2.waits_for or (("idle", http2.last_id) if not http2.streams else "busy")
        if state != self._state or not self.since_s:
            self._state, self.since_s = state, now_s
        waited_s = now_s - self.since_s
        if self._ending:
            if waited_s >= LINGER_S:
                self.transport.abort()
            return
        self._sweep_calls(now_s)
        if not self._reads and waited_s:
            http2.greet()
        if http2.waits_for and waited_s >= settings.head_timeout_s:
            self._front_door.faults.counts["too_slow"] += 1
            http2.end_with(ErrorCode.ENHANCE_YOUR_CALM, f"no complete frame within {settings.head_timeout_s:g} s")
        elif now_s - self._born_s >= settings.grpc_age_s or (
            not http2.streams and waited_s >= (settings.grpc_idle_s if http2.last_id else settings.first_request_s)
        ):
            self._ask_to_go(now_s)
        self.flush()
        self._look_for_client(now_s)

    def _sweep_calls(self, now_s: float) -> None:
        """End calls whose message does not arrive, or whose answer is not taken."""
        limit_s = self._front_door.settings.grpc_message_s
        for call in list(self.http2.streams.values()):
            if not isinstance(call, Http2Call):
                continue
            if call.awaits_message:
                if not call.waits_since_s:
                    call.waits_since_s = now_s
                elif now_s - call.waits_since_s >= limit_s:
                    call.end(*SLOW)
            elif call.awaits_reader:
                self._look_for_reader(call, now_s)

    def _look_for_reader(self, call: Http2Call, now_s: float) -> None:
        """Leave a call whose client gives no room for the answer."""
        if call.send_window <= 0:
            full, sent = "call", call.sent_bytes
        elif self.http2.send_window <= 0:
            full, sent = "connection", self.http2.sent_bytes
        else:
            full, sent = "", 0
        full_before, sent_before, since_s = call.unsent_state
        if full and full == full_before:
            if now_s - since_s < self._front_door.settings.progress_s:
                return
            if self._is_too_slow(sent - sent_before, now_s - since_s):
                self._front_door.faults.counts["too_slow"] += 1
                self.http2.leave(call)
        call.unsent_state = full, sent, now_s

    def _is_too_slow(self, size: int, time_s: float) -> bool:
        """True if a client should have taken more than that in this time."""
        return size < max(self._front_door.settings.min_bytes_per_s * time_s, 1)

    def _look_for_client(self, now_s: float) -> None:
        """Leave a client that does not read, or does not answer a ping."""
        if self._write_paused:
            size, since_s = self._unread_state
            unread = self.transport.get_write_buffer_size()
            if not since_s:
                self._unread_state = unread, now_s
            elif now_s - since_s >= self._front_door.settings.progress_s:
                if self._is_too_slow(size - unread, now_s - since_s):
                    self._front_door.faults.counts["too_slow"] += 1
                    self.abort()
                self._unread_state = unread, now_s
            return
        reads, since_s = self._read_state
        if reads != self._reads:
            self._read_state = self._reads, now_s
            self.http2.awaits_ping = False
        elif self.http2.awaits_ping and now_s - self._pinged_s >= KEEPALIVE_TIMEOUT_S:
            self.abort()
        elif not self.http2.awaits_ping and now_s - since_s >= KEEPALIVE_S:
            self._pinged_s = now_s
            self.http2.ping()
