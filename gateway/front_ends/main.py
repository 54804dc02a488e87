"""The process of a front end: `python -m sluice.gateway.front_ends.main PARENT --socket NUMBER`."""

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic_ns

import msgspec
import uvloop

from sluice.gateway.config.access import host_names
from sluice.gateway.config.server_config import ServerConfig, convert_config
from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.front_ends.inputs import InputMemory
from sluice.gateway.front_ends.link import Link
from sluice.gateway.front_ends.messages import (
    Answers,
    AskCounts,
    AskToGo,
    Counts,
    FrontEndReady,
    LogLine,
    NamesChanged,
    RelayOpened,
    Start,
    Stop,
    ToFrontEnd,
)
from sluice.gateway.front_ends.plane import FrontEndDataPlane
from sluice.gateway.front_ends.relay import Relay
from sluice.gateway.front_ends.snapshot import ServedTable
from sluice.gateway.grpc.relayed import CallRelay
from sluice.gateway.grpc.service import front_end_server
from sluice.gateway.grpc.transport.http2.server import Http2Server
from sluice.gateway.http.access import AccessRules
from sluice.gateway.http.exchange import InferRoute
from sluice.gateway.http.server import HttpServer, http_config
from sluice.models.processes import leave_signals_to_gateway
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.channel import Channel
from sluice.mps.ipc.messages import MapRegion, UnmapRegion
from sluice.mps.isolation.launch import end_with_parent

YOUNG_OBJECTS = 20_000
"""New objects before the collector looks for cycles among them, as in the gateway's process."""
LOG_LINES_A_SECOND = 50
LINE_LENGTH = 8000
MOST_WAITING = 1024
"""Packets that may wait while lines are still sent."""

_MIB = 1 << 20


class LinkHandler(logging.Handler):
    """Sends log lines to the gateway's process, at most LOG_LINES_A_SECOND."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._second = self._count = self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line."""
        second = int(record.created)
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        if self._count > LOG_LINES_A_SECOND:
            self._lost += 1
            return
        # Not from other threads: the link belongs to the loop.
        self._loop.call_soon_threadsafe(self._send, record)

    def _send(self, record: logging.LogRecord) -> None:
        if self._link.waiting >= MOST_WAITING:
            self._lost += 1
            return
        text = record.getMessage()
        text += "".join(f" {name}={value}" for name, value in getattr(record, "fields", {}).items())
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self._link.send(LogLine(record.levelno, record.name, text[:LINE_LENGTH], self._lost))
        self._lost = 0


class FrontEnd:
    """A front end that has its settings and its listening sockets, for HTTP and perhaps for gRPC."""

    def __init__(self, link: Link, start: Start, listeners: Sequence[socket.socket], config: ServerConfig) -> None:
        self._link = link
        limits = config.front_door
        self._table = ServedTable()
        self._memory = InputMemory(
            config.limits.input_arena_mb * _MIB,
            start.buffer_bytes,
            self._share,
            lambda number: link.send(UnmapRegion(number)),
        )
        self._plane = FrontEndDataPlane(config, self._table, link, self._memory, monotonic_ns)
        self._budget = Budget(start.buffer_bytes)
        self._door = FrontDoor(limits, self._budget, max_connections=start.max_connections)
        relay = Relay(lambda theirs: link.send(RelayOpened(), [theirs.fileno()]), start.grpc_connections)
        route = InferRoute(
            self._plane, config.max_body_bytes, config.json_rules, self._budget, relay, config.default_model
        )
        access = AccessRules(
            host_names(config.host, config.allowed_hosts), config.cors.origins, tls=config.tls is not None
        )
        settings = http_config(relay, route, self._door, restrictions=config.restrictions, access=access)
        context = None if config.tls is None else config.tls.ssl_context()
        listener, *others = listeners
        self._http = HttpServer(settings, listener, context, self._door)
        self._grpc_door = FrontDoor(limits, self._budget, self._door.faults, start.grpc_connections)
        self._grpc: Http2Server | None = None
        if others:
            self._grpc = front_end_server(
                self._plane,
                CallRelay(relay.call, relay.stream),
                others[0],
                config.max_body_bytes,
                config.restrictions,
                config.tls,
                self._grpc_door,
            )
        self._stopping: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Serve until `Stop`."""
        # Before the first connection, which it would keep waiting.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)
        serving = asyncio.create_task(self._http.serve())
        await self._http.accepting.wait()
        if self._grpc is not None:
            await self._grpc.start()
        self._link.send(FrontEndReady())
        await serving
        if self._stopping is not None:
            await self._stopping

    def message(self, message: ToFrontEnd, fds: tuple[int, ...]) -> None:
        """Handle a message."""
        match message:
            case Answers():
                self._plane.answered(message)
            case NamesChanged():
                self._table.apply(message)
            case MapRegion():
                self._plane.map(message.region, Region.attach(fds[0], message.nbytes))
            case UnmapRegion():
                self._plane.unmap(message.region)
            case AskCounts():
                self._report()
            case AskToGo():
                for door in (self._door, self._grpc_door):
                    door.ask_to_go(last=message.last)
            case Stop():
                self._report()
                self._http.should_exit = True
                asyncio.get_running_loop().call_later(message.timeout_s, self._end_now)
                if self._grpc is not None:
                    self._stopping = asyncio.create_task(self._grpc.stop(message.timeout_s))
            case Start():
                raise ValueError("it has started already")

    def _share(self, number: int, region: Region) -> None:
        self._link.send(MapRegion(number, region.nbytes), [region.fd])
        region.close()  # the descriptor, of which a copy is sent; views keep the mapping

    def _report(self) -> None:
        faults = dict(self._door.faults.counts)
        connections = len(self._door.connections), len(self._grpc_door.connections)
        self._link.send(Counts(*connections, self._budget.used, self._memory.used_bytes, faults))

    def _end_now(self) -> None:
        self._http.force_exit = True


def _exit_at_once() -> None:
    """The gateway's process has gone, and no connection gets an answer any more."""
    os._exit(1)


async def _run(channel: "Channel[ToFrontEnd]") -> None:
    start, fds = next(channel.receive(wait=True))
    assert isinstance(start, Start), "it is the first message"
    config = convert_config(msgspec.json.decode(start.config), "front end")
    link = Link(channel)
    logging.basicConfig(level=start.log_level, handlers=[LinkHandler(link)], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    front_end = FrontEnd(link, start, [socket.socket(fileno=fd) for fd in fds], config)
    link.start(front_end.message, _exit_at_once)
    await front_end.serve()
    link.close()


def main() -> int:
    """Be a front end; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parent", type=int)
    parser.add_argument("--socket", type=int, required=True)
    options = parser.parse_args()
    if not end_with_parent(options.parent, signal.SIGKILL):
        return 1
    leave_signals_to_gateway()
    channel: Channel[ToFrontEnd] = Channel(socket.socket(fileno=options.socket), ToFrontEnd)
    with suppress(EOFError), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(channel))
    return 0


if __name__ == "__main__":
    sys.exit(main())
