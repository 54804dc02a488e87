"""Front ends of a real server are killed under load: only what was on their own connections ends, and once each.

Two front ends are in front of one worker with a model that sleeps (backend `timed`) and echoes a number. Each request
has a number of its own, so an answer to another request is noticed. Clients over HTTP and gRPC have a connection each.
They send a request, wait for its end and pause; none sends a request again. A client over gRPC goes through a proxy
here, so that its connection to the server is known, too.

`SIGKILL` hits a random front end that has connections, at random moments, whether the last one is back or not. It is
stopped for a moment before, so that the connections that it has accepted are known. A request may fail only if its
client's connection was among these, or is a new one instead of it that waits for the next front end: the server closes
the sockets of one that ends again before it has answered anything. A gap is the time from a kill until the next good
answer of a client that lost its connection.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import grpc
import numpy as np
import uvloop
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.support.clients import PROTOCOLS, save_sleeping
from benchmarks.support.figures import Figure, show
from benchmarks.support.processes import ServerProcess, gateway
from tests.support.gateway.processes import front_ends, peers, until

FRONT_ENDS = 2
CLIENTS = 12
"""Clients of each protocol."""
PAUSE_S = 0.05
"""The mean pause of a client between two requests."""
LATENCY_MS = {1: 10.0, 8: 14.0, 32: 24.0}
BEFORE_S, AFTER_S = 2.0, 3.0
KILL_PAUSE_S = 0.5, 4.0
ASK_AGAIN_S = 0.01
GAP_S = 2.0
SLOWEST_S = 1.0
"""The goals: no longer gap, and no later answer on other connections."""
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


class Ended(NamedTuple):
    """A request that has ended: with the content of its own (`right`), or for a `reason`.

    `lost` is set if its connection was one of a front end that was killed, and `apart` if its client had not had a good
    answer since.
    """

    client: int
    sent_s: float
    took_s: float
    right: bool
    reason: str
    lost: bool
    apart: bool


class Client:
    """A client with its connection to the server, which `ask` uses for the request of a number."""

    def __init__(self, number: int, ask: Callable[[int], Awaitable[int]]) -> None:
        self.number = number
        self.ask = ask
        self.port = 0
        """The port of its end of the connection to the server."""
        self.killed_s = 0.0
        """When the front end of its connection was killed."""
        self.has_lost = self.is_apart = False

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of the server; the own port is known before the server accepts the connection."""
        ours = socket.socket()
        ours.setblocking(False)
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ours.bind(("127.0.0.1", 0))
        self.port = ours.getsockname()[1]
        await asyncio.get_running_loop().sock_connect(ours, ("127.0.0.1", port))
        return await asyncio.open_connection(sock=ours)


class HttpConnection:
    """A connection over HTTP, opened again when it is needed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.client = Client(0, self.ask)

    async def ask(self, number: int) -> int:
        """The number of the answer. Raises an error without one."""
        if self._streams is None:
            self._streams = await self.client.connect(self._port)
        reader, writer = self._streams
        tensor = {"name": "x", "shape": [1, 1], "datatype": "INT64", "data": [number]}
        body = json.dumps({"inputs": [tensor]}).encode()
        head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            found = _LENGTH.search(answer)
            content = await reader.readexactly(int(found[1]) if found else 0)
        except (OSError, EOFError):
            writer.close()
            self._streams = None
            raise
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(content.decode())
        return int(json.loads(content)["outputs"][0]["data"][0])


class GrpcConnection:
    """A channel whose only connection goes through a proxy."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.client = Client(0, self.ask)

    async def start(self, stack: AsyncExitStack) -> None:
        """Open the channel until the stack ends."""
        proxy = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        stack.callback(proxy.close)
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 100),
        ]
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}", options)
        await stack.enter_async_context(channel)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    async def ask(self, number: int) -> int:
        """The number of the answer. Raises an error without one."""
        request = service_pb2.ModelInferRequest(model_name="echo")
        request.inputs.add(name="x", datatype="INT64", shape=[1, 1])
        request.raw_input_contents.append(number.to_bytes(8, "little"))
        answer = await self._stub.ModelInfer(request, wait_for_ready=True)
        return int.from_bytes(answer.raw_output_contents[0], "little")

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await self.client.connect(self._port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while (data := await source.read(1 << 16)) and not sink.is_closing():
                    sink.write(data)
            # Either end's end is that of the connection.
            writer.close()
            back.close()

        await asyncio.gather(pump(reader, back), pump(there, writer))


class Load:
    """Clients that send until `stop`, and the ends of their requests."""

    def __init__(self, clients: list[Client], source: random.Random) -> None:
        self.clients = clients
        self.ended: list[Ended] = []
        self.sent = 0
        self.stopping = False
        self._source = source

    async def send(self, client: Client) -> None:
        """Send the requests of a client, one after the other."""
        while not self.stopping:
            self.sent += 1
            number, was_apart, begun_s = self.sent, client.is_apart, time.monotonic()
            reason, answer = "", -1
            try:
                answer = await client.ask(number)
            except (OSError, EOFError, RuntimeError, grpc.aio.AioRpcError) as error:
                code = error.code().name if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__
                reason = f"{code}: {error!s:.60}" if isinstance(error, RuntimeError) else code
            took_s = time.monotonic() - begun_s
            right = answer == number
            apart = was_apart or client.is_apart
            self.ended.append(Ended(client.number, begun_s, took_s, right, reason, client.has_lost, apart))
            # A connection may end between two requests, which shows when the next one is sent. One of them fails.
            if reason or begun_s > client.killed_s:
                client.has_lost = False
            if right and begun_s > client.killed_s:
                client.is_apart = False
            await asyncio.sleep(self._source.expovariate(1 / PAUSE_S))


class Kill(NamedTuple):
    """A kill, and the clients whose connections the front end had."""

    at_s: float
    clients: frozenset[int]


def kill_one(server: ServerProcess, clients: list[Client], source: random.Random) -> Kill | None:
    """Kill a front end that has connections; returns None if there is none."""
    ports = server.http_port, server.grpc_port
    victims = [pid for pid in front_ends(server.process.pid) if peers(pid, ports[0])]
    if not victims:
        return None
    victim = source.choice(victims)
    os.kill(victim, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{victim}/stat").read_text().rpartition(") ")[2][0] == "T")
    accepted = set().union(*(peers(victim, port) for port in ports))
    at_s = time.monotonic()
    hit = [client for client in clients if client.port in accepted]
    for client in hit:
        client.killed_s = at_s
        client.has_lost = client.is_apart = True
    os.kill(victim, signal.SIGKILL)
    return Kill(at_s, frozenset(client.number for client in hit))


class Outcome(NamedTuple):
    """The number of requests sent, their ends, the kills, and the server's counts."""

    sent: int
    ended: list[Ended]
    kills: list[Kill]
    counted: Counter[str]
    losses: int
    left_bytes: int


def metrics(server: ServerProcess) -> dict[str, float]:
    """The metrics of the server, by name and labels."""
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=60) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        text = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("sluice_")]
    return {name: float(value) for name, value in lines}


async def measure(server: ServerProcess, kills: int, source: random.Random) -> Outcome:
    """Send requests, and kill front ends in the meantime."""
    async with AsyncExitStack() as stack:
        over_http = [HttpConnection(server.http_port) for _ in range(CLIENTS)]
        over_grpc = [GrpcConnection(server.grpc_port) for _ in range(CLIENTS)]
        for each in over_grpc:
            await each.start(stack)
        clients = [*(each.client for each in over_http), *(each.client for each in over_grpc)]
        for number, client in enumerate(clients):
            client.number = number
        load = Load(clients, source)
        sending = [asyncio.create_task(load.send(client)) for client in clients]
        await asyncio.sleep(BEFORE_S)
        done: list[Kill] = []
        while len(done) < kills:
            # In a thread, so that the clients go on: requests are to be under way.
            kill = await asyncio.to_thread(kill_one, server, clients, source)
            if kill is not None:
                done.append(kill)
            await asyncio.sleep(ASK_AGAIN_S if kill is None else source.uniform(*KILL_PAUSE_S))
        await asyncio.sleep(AFTER_S)
        load.stopping = True
        await asyncio.gather(*sending)
    counts = await asyncio.to_thread(metrics, server)
    outcomes: Counter[str] = Counter()
    for name, value in counts.items():
        if name.startswith("sluice_requests_total"):
            outcomes[name.partition('outcome="')[2].partition('"')[0]] += int(value)
    return Outcome(
        load.sent,
        load.ended,
        done,
        outcomes,
        int(counts["sluice_front_end_losses_total"]),
        int(counts["sluice_arena_used_bytes"]),
    )


def gaps(outcome: Outcome, clients: range) -> list[float]:
    """The longest gap of each kill, of those of the clients that lost their connection."""
    good: dict[int, list[float]] = {client: [] for client in clients}
    for each in outcome.ended:
        if each.right and each.client in good:
            good[each.client].append(each.sent_s + each.took_s)
    ends = {client: np.sort(np.array(times)) for client, times in good.items()}
    longest = []
    for kill in outcome.kills:
        gap_s = 0.0
        for client in kill.clients & ends.keys():
            next_one = int(np.searchsorted(ends[client], kill.at_s))
            gap_s = max(gap_s, ends[client][next_one] - kill.at_s if next_one < len(ends[client]) else np.inf)
        longest.append(gap_s)
    return longest


def figures(outcome: Outcome) -> Iterator[Figure]:
    """The figures of both protocols together, and the gaps of each."""
    ended, kills = outcome.ended, outcome.kills
    right = sum(each.right for each in ended)
    failed = [each for each in ended if each.reason]
    lost_too = sum(each.lost for each in failed)
    waiting = sum(each.apart and not each.lost for each in failed)
    others = len(failed) - lost_too - waiting
    wrong = len(ended) - right - len(failed)
    counted = outcome.counted.total()
    completed = outcome.counted["completed"] + outcome.counted["completed_late"]
    lost = sum(len(kill.clients) for kill in kills)
    slowest_s = max(each.took_s for each in ended if not each.apart)
    is_quick = slowest_s < SLOWEST_S
    in_turn = right <= completed <= counted <= outcome.sent
    yield Figure("requests sent, ended", f"{outcome.sent}, {len(ended)}", "equal", outcome.sent == len(ended))
    yield Figure("answered with their own number", f"{right}")
    yield Figure("answered with another number", f"{wrong}", "0", not wrong)
    yield Figure("failed, with their own front end", f"{lost_too}")
    yield Figure("failed on connections that waited", f"{waiting}")
    yield Figure("failed on other connections", f"{others}", "0", not others)
    yield Figure("ended, completed, as the server counts", f"{counted}, {completed}", "no more", in_turn)
    yield Figure("memory for inputs left in use", f"{outcome.left_bytes} B", "0 B", not outcome.left_bytes)
    yield Figure("connections lost", f"{lost}")
    yield Figure("the slowest answer on other connections", f"{slowest_s:.3f} s", f"< {SLOWEST_S:g} s", is_quick)
    for number, protocol in enumerate(PROTOCOLS):
        longest = gaps(outcome, range(number * CLIENTS, (number + 1) * CLIENTS))
        most_s, last_s = max(longest), longest[-1]
        yield Figure(f"the longest gap, {protocol}", f"{most_s:.3f} s", f"< {GAP_S:g} s", most_s < GAP_S)
        yield Figure(f"the median gap, {protocol}", f"{np.median(longest):.3f} s")
        yield Figure(f"the gap of the last kill, {protocol}", f"{last_s:.3f} s")
    yield Figure("front ends replaced", f"{outcome.losses}", f"{len(kills)}", outcome.losses == len(kills))
    for reason, count in Counter(each.reason for each in failed).most_common():
        yield Figure("failure", f"{count} x {reason}")


def main() -> int:
    """Print the figures; returns 2 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    source = random.Random(chosen.seed)
    with TemporaryDirectory() as name:
        directory = Path(name)
        save_sleeping(directory / "models", "echo", LATENCY_MS)
        config = f"partitions: 1\nfront_ends: {FRONT_ENDS}\ndefault_slo_ms: 20000\n"
        options = "--repository", str(directory / "models"), "--log-level", "error"
        with gateway(directory, config, None, *options) as server:
            outcome = uvloop.run(measure(server, chosen.kills, source))
    return 0 if show(f"{chosen.kills} kills", figures(outcome)) else 2


if __name__ == "__main__":
    raise SystemExit(main())
