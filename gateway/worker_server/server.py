"""A worker server: the worker of one partition behind a port for one gateway at a time."""

import asyncio
import hmac
import ipaddress
import json
import logging
import os
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc

from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.grpc.transport.call import OwnConnection
from sluice.gateway.grpc.transport.http2.call_head import status_block
from sluice.gateway.grpc.transport.http2.server import Http2Server
from sluice.gateway.http2.frames import END_HEADERS, HEADERS, frame
from sluice.gateway.http2.header_blocks import encode_fields
from sluice.gateway.observability.logs import log, reopen
from sluice.gateway.server.signals import ServerSignals, SignalActions
from sluice.gateway.version import server_version
from sluice.gateway.worker_protocol.address import join_address
from sluice.gateway.worker_protocol.framing import MessageDecoder
from sluice.gateway.worker_protocol.link import SessionLink
from sluice.gateway.worker_protocol.messages import (
    KEY_METADATA,
    SERVICE,
    SESSION,
    FromGateway,
    Hello,
    ServedWorker,
    SessionRefusal,
    Welcome,
    message_name,
)
from sluice.gateway.worker_server.about import AboutNow, AboutService
from sluice.gateway.worker_server.host import WorkerHost
from sluice.gateway.worker_server.model_files import ModelFiles
from sluice.gateway.worker_server.peers import Peers, fetch_method
from sluice.gateway.worker_server.session import MOST_NAME, LeasedSession
from sluice.gateway.worker_server.settings import WorkerSettings
from sluice.gateway.worker_server.v2 import V2Service
from sluice.models.errors import PartitionError
from sluice.mps.daemon.control import MpsControl
from sluice.mps.ipc.messages import LoadResult
from sluice.mps.supervisor.child import Launch, launch_worker

logger = logging.getLogger(__name__)

HELLO_S = 5.0
"""The time for a gateway to send its first message."""
LEAST_LEASE_S, MOST_LEASE_S = 0.1, 60.0
MOST_OPENING = 64
"""Calls that may be waiting for their first message."""
LAST_CALLS_S = 0.3
LAST_ANSWERS_S = 5.0
"""The time for a gateway to read the last answers of a worker server that stops."""
LOOK_S = 0.01
BACKLOG = 256
MOST_CONNECTIONS = 256
MOST_V2_BYTES = 64 << 20
_MIB = 1 << 20
_HEALTH = ("/grpc.health.v1.Health/Check",)
_decoder = MessageDecoder(FromGateway)
_HEADERS = encode_fields(((b":status", b"200"), (b"content-type", b"application/grpc")))


class WorkerServer:
    """Serves the sessions of gateways on a socket that listens already; see `SessionOwner` and `HostEvents`."""

    def __init__(
        self,
        settings: WorkerSettings,
        listener: socket.socket,
        key: str = "",
        tls: ssl.SSLContext | None = None,
        controls: "dict[str, MpsControl] | None" = None,
        launch: Launch = launch_worker,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._key = key.encode()
        self.host = WorkerHost(
            settings.partition,
            settings.limits.input_arena_mb * _MIB,
            settings.limits.output_arena_mb * _MIB,
            self,
            settings.batch_timeout_s,
            settings.quarantine,
            settings.model_loading,
            controls or {},
            launch,
        )
        self.host.readiness = self._readiness
        front_door = FrontDoor(budget=Budget(256 * _MIB), max_connections=MOST_CONNECTIONS)
        self._grpc = Http2Server(
            listener,
            front_door,
            MOST_V2_BYTES,
            self._refusal,
            tls,
            _HEALTH,
            grpc.StatusCode.UNAUTHENTICATED,
        )
        self.files = ModelFiles(settings.cache, settings.cache_mb, Peers(key, settings.tls), self.url)
        self._grpc.add_registered_method_handlers(SERVICE, fetch_method(self.files.reader))
        self._grpc.give_connections(SESSION, self._take_over)
        self._grpc.add_registered_method_handlers(
            SERVICE, AboutService(settings, self.files.cache, self._about_now).handlers
        )
        V2Service(settings.label, self.host, lambda: not self._draining).add_to(self._grpc)
        self._session: LeasedSession | None = None
        self._sessions = 0
        self._opening: set[_Opening] = set()
        self._draining = ""
        self._up = asyncio.Event()

    @property
    def url(self) -> str:
        """The address at which gateways reach it."""
        host, port = self._listener.getsockname()[:2]
        return join_address(self._settings.advertise or host, port)

    @property
    def _peers_url(self) -> str:
        """The address for other worker servers; "" without one: that of all interfaces is none."""
        host = self._listener.getsockname()[0]
        is_any = not self._settings.advertise and ipaddress.ip_address(host).is_unspecified
        return "" if is_any else self.url

    # -- life

    async def run(self, ready_file: Path | None, signals: ServerSignals) -> int:
        """Serve until a signal to stop, then finish the open batches; a second one ends it at once. Returns 0."""
        stop, force = asyncio.Event(), asyncio.Event()
        actions = SignalActions(stop.set, force.set, _nothing, reopen, _ignored)
        signals.attach(asyncio.get_running_loop(), actions)
        await asyncio.to_thread(self.files.prepare)
        self.host.start()
        await self._grpc.start()
        announced = asyncio.create_task(self._announce(ready_file))
        forced = asyncio.create_task(force.wait())
        try:
            await stop.wait()
            await self._drain(forced)
        finally:
            announced.cancel()
            forced.cancel()
            await self.close()
            signals.detach()
        log(logger, logging.INFO, "worker server stopped")
        return 0

    async def _announce(self, ready_file: Path | None) -> None:
        await self._up.wait()
        about = {
            "name": self._settings.label,
            "node": self._settings.node,
            "url": self.url,
            "pid": os.getpid(),
            "kind": self._settings.partition.profile_kind,
        }
        log(logger, logging.INFO, "worker listens", **about)
        if ready_file is not None:
            scratch = ready_file.with_name(f"{ready_file.name}.{os.getpid()}")
            scratch.write_text(json.dumps(about))
            scratch.replace(ready_file)

    async def _drain(self, forced: "asyncio.Task[Any]") -> None:
        """Take no new batches, and finish those that are open."""
        self._draining = "the worker server is stopping"
        log(logger, logging.INFO, "drain begun", open_batches=self.host.open_batches)
        if self._session is not None:
            self._session.drain(self._draining)
        idle = asyncio.Event()
        self.host.on_idle = idle.set
        if self.host.open_batches:
            drained = asyncio.create_task(idle.wait())
            await asyncio.wait({drained, forced}, timeout=self._settings.drain_s, return_when=asyncio.FIRST_COMPLETED)
            drained.cancel()
        end_s = asyncio.get_running_loop().time() + LAST_ANSWERS_S
        while self._session is not None and self._session.unsent_bytes and not forced.done():
            if asyncio.get_running_loop().time() >= end_s:
                break
            await asyncio.sleep(LOOK_S)
        log(logger, logging.INFO, "drain ended", given_up=self.host.open_batches)

    async def close(self) -> None:
        """End all sessions, the port and the worker process."""
        self._draining = self._draining or "the worker server is stopping"
        if self._session is not None:
            self._session.close(self._draining)
        for opening in list(self._opening):
            opening.refuse(self._draining)
        await self._grpc.stop(LAST_CALLS_S)
        await self.host.close()
        await self.files.close()

    # -- connections

    def _refusal(self, method: str, metadata: Iterable[tuple[str, Any]]) -> str:
        """The reason to refuse a call, "" if it is allowed."""
        if not self._key or method in _HEALTH:
            return ""
        given = next((value for name, value in metadata if name == KEY_METADATA), None)
        if given is None:
            return f"the worker server wants a key, in the metadata {KEY_METADATA}"
        if not hmac.compare_digest(str(given).encode(), self._key):
            return "the key is wrong"
        return ""

    def _about_now(self) -> AboutNow:
        worker = self.host.worker
        state = self._draining or ("" if worker is not None else f"the worker process is not up: {self.host.reason}")
        holder = "" if self._session is None else self._session.gateway
        return AboutNow(state, holder, () if worker is None else worker.cores, tuple(sorted(self.host.loaded)))

    def _take_over(self, own: OwnConnection) -> None:
        if len(self._opening) >= MOST_OPENING:
            own.transport.abort()
            return
        _Opening(self, own)

    def opened(self, opening: "_Opening", hello: Hello) -> LeasedSession | None:
        """Give the lease to a gateway, or refuse it with the reason."""
        self._opening.discard(opening)
        settings, version = self._settings, server_version()
        worker = self.host.worker
        if hello.version != version:
            opening.refuse(f"the gateway has the version {hello.version:.80}, the worker server {version}", retry=False)
        elif hello.kind not in ("", settings.partition.profile_kind):
            # Before the lease: a gateway that can do nothing with the worker does not ask its holder for it.
            kind = settings.partition.profile_kind
            opening.refuse(f"it is a partition of the kind {kind}, expected {hello.kind:.80}", retry=False)
        elif not LEAST_LEASE_S <= hello.lease_s <= MOST_LEASE_S:
            opening.refuse(
                f"expected a lease of {LEAST_LEASE_S:g} to {MOST_LEASE_S:g} s, got {hello.lease_s:g}", retry=False
            )
        elif not 0 < len(hello.gateway) <= MOST_NAME or not hello.gateway.isprintable():
            opening.refuse(
                f"expected a name of the gateway of 1 to {MOST_NAME} printable characters, got "
                f"{hello.gateway[:MOST_NAME]!r}",
                retry=False,
            )
        elif self._draining:
            opening.refuse(self._draining)
        elif worker is None:
            opening.refuse(f"the worker process is not up: {self.host.reason}")
        elif self._session is not None and self._session.gateway != hello.gateway:
            holder = self._session.gateway
            opening.refuse(f"gateway {holder} has the worker", holder=holder)
            self._session.asked(hello.gateway, hello.workers)
        else:
            if self._session is not None:
                self._session.close("the gateway has opened another session")
            self._sessions += 1
            self._session = session = LeasedSession(self, opening.link, hello, self._sessions)
            opening.link.send(
                Welcome(
                    version,
                    settings.label,
                    settings.node,
                    settings.partition.profile_kind,
                    settings.partition,
                    worker,
                    self._sessions,
                    self._peers_url,
                )
            )
            log(logger, logging.INFO, "session begun", gateway=hello.gateway, session=self._sessions)
            return session
        return None

    def opening_ended(self, opening: "_Opening", reason: str) -> None:
        """A connection has ended before its first message."""
        log(logger, logging.INFO, "no session", reason=reason)
        self._opening.discard(opening)

    def session_ended(self, session: LeasedSession, reason: str) -> None:
        """The lease is over."""
        log(logger, logging.INFO, "session ended", gateway=session.gateway, session=session.number, reason=reason)
        if self._session is session:
            self._session = None

    # -- the worker process (see `HostEvents`)

    def worker_lost(self, reason: str) -> None:
        """It has ended."""
        if self._session is not None:
            self._session.worker_lost(reason)

    def worker_back(self, worker: ServedWorker) -> None:
        """It is up."""
        self._up.set()
        for model in worker.models:
            self._hold_files(model.key)
        if self._session is not None:
            self._session.worker_back(worker)

    def model_loaded(self, result: LoadResult) -> None:
        """An ordered load has finished."""
        self._hold_files(result.key)
        if self._session is not None:
            self._session.model_loaded(result)

    def model_unloaded(self, key: str) -> None:
        """An ordered unload has finished."""
        self._hold_files(key)
        if self._session is not None:
            self._session.model_unloaded(key)

    def _hold_files(self, key: str) -> None:
        """Let the files go that the worker no longer needs, not even to load the model again."""
        if key in self.host.models:
            self.files.keep_newest(key)
        else:
            self.files.release(key)

    def _readiness(self, number: int, is_ready: bool) -> None:
        if self._session is not None:
            self._session.readiness(number, is_ready)


class _Opening:
    """A connection on which a session is called, until its first message has come; then what goes on with it."""

    def __init__(self, server: WorkerServer, own: OwnConnection) -> None:
        self._server = server
        self._session: LeasedSession | None = None
        self._is_refused = False
        settings = server._settings
        self.link = SessionLink(
            _decoder,
            self._place,
            self._take,
            self._ended,
            settings.limits.input_arena_mb * _MIB,
            settings.limits.output_arena_mb * _MIB * 4,
            _ServerRole(),
            own.stream_id,
            own.lost,
        )
        self.link.set_peer(own.initial_window, own.send_window, own.stream_window, own.frame_bytes)
        self._timer = asyncio.get_running_loop().call_later(HELLO_S, self._late)
        headers = frame(HEADERS, END_HEADERS, own.stream_id, _HEADERS)
        server._opening.add(self)  # until its first message is there, which may have come already
        self.link.begin(own.transport, headers, own.rest)

    def _place(self, message: Any, size: int) -> memoryview | None:
        if self._session is None:
            raise PartitionError(f"a {message_name(message)} came before Hello")
        return self._session.place(message, size)

    def _take(self, message: Any, body: memoryview | None) -> None:
        if self._is_refused:
            return
        if self._session is not None:
            self._session.take(message, body)
        elif isinstance(message, Hello):
            self._timer.cancel()
            self._session = self._server.opened(self, message)
        else:
            raise PartitionError(f"a {message_name(message)} came before Hello")

    def refuse(self, reason: str, *, retry: bool = True, holder: str = "") -> None:
        """Answer with the reason, and end the connection."""
        log(logger, logging.INFO, "session refused", reason=reason)
        self._is_refused = True
        self._timer.cancel()
        self.link.send(SessionRefusal(reason, retry, holder))
        self.link.close()

    def _late(self) -> None:
        self.link.fail(f"no Hello came within {HELLO_S:g} s")

    def _ended(self, reason: str) -> None:
        self._timer.cancel()
        if self._session is not None:
            self._session.ended(reason)
        else:
            self._server.opening_ended(self, reason)


class _ServerRole:
    """The server's end of the stream."""

    def on_headers(self, block: bytes, ended: bool) -> str | None:
        """Clients send no trailers."""
        return "the gateway sent trailers"

    def last_block(self, reason: str, *, is_fault: bool) -> bytes | None:
        """The status of the call."""
        if not reason:
            return encode_fields(((b"grpc-status", b"0"),))
        code = grpc.StatusCode.INVALID_ARGUMENT if is_fault else grpc.StatusCode.UNAVAILABLE
        return status_block(code, reason)


def _nothing() -> None:
    """There is nothing to read again."""


def _ignored(name: str) -> None:
    log(logger, logging.INFO, "signal ignored", signal=name)
