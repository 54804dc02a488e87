"""Millions of requests against a real server that is disturbed all the time: its memory has no slope.

Clients over HTTP repeat requests with other content as fast as they are answered, and check that each answer is the
request's own. Meanwhile other clients cancel requests half-way, a model is loaded and unloaded, and processes of the
server are killed: its workers and, where it has some, its front ends. The slope is that of a straight line through the
memory of the server's own process over the second half. Only connections of a front end that is killed may be lost.
"""

import argparse
import asyncio
import http.client
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
import uvloop

from benchmarks.support.closed_loop import http_request
from benchmarks.support.figures import Figure, show
from benchmarks.support.processes import ServerProcess, gateway
from sluice.models.tensors.spec import DataType
from tests.support.models.onnx_models import save_identity

CONNECTIONS = 48
CANCELLING = 4
"""Connections that are closed before the answer."""
SAMPLE_S = 1.0
LOAD_S, KILL_S = 2.0, 10.0
"""The time between two loads of a model, and between two kills."""
SLOPE_MB = 1.0
"""The goal: megabytes a million requests."""
WIDTH = 8


class Client(asyncio.Protocol):
    """Repeats a request with another number each time; one that `cancels` closes before every other answer."""

    def __init__(self, soak: "Soak", cancels: bool, source: random.Random) -> None:
        self._soak = soak
        self._cancels = cancels
        self._source = source
        self._head = http_request("/v2/models/m/infer", "x", (1, WIDTH))[: -4 * WIDTH]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._buffer = b""
        self._content = self._source.randbytes(4) * WIDTH
        self._transport.write(self._head + self._content)
        if self._cancels and self._source.random() < 0.5:
            self._transport.abort()
            self._soak.counts["cancelled"] += 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        start = head.lower().index(b"\r\ncontent-length:") + 17
        if len(body) < int(head[start:].split(b"\r")[0]):
            return
        status = head[9:12].decode()
        right = status == "200" and body.endswith(self._content)
        self._soak.count("right" if right else f"{status} {'wrong' if status == '200' else body[:80].decode()}")
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._cancels and not self._soak.over:
            self._soak.counts["connection lost"] += 1
        self._soak.lost.set()


class Soak:
    """The clients, and the counts of their answers."""

    def __init__(self, port: int, requests: int) -> None:
        self.counts: Counter[str] = Counter()
        self.lost = asyncio.Event()
        self.over = False
        self._enough = asyncio.Event()
        self._port = port
        self._requests = requests

    async def run(self) -> None:
        """Keep all clients connected until the number of requests has been answered."""
        clients = [asyncio.create_task(self._keep(number)) for number in range(CONNECTIONS + CANCELLING)]
        await self._enough.wait()
        self.over = True
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    def count(self, what: str) -> None:
        """Count an answer."""
        self.counts[what] += 1
        if self.counts["right"] >= self._requests:
            self._enough.set()

    async def _keep(self, number: int) -> None:
        source = random.Random(number)
        loop = asyncio.get_running_loop()
        while not self.over:
            try:
                transport, _ = await loop.create_connection(
                    lambda: Client(self, number >= CONNECTIONS, source), "127.0.0.1", self._port
                )
            except OSError:  # a front end that was killed is not back yet
                await asyncio.sleep(0.05)
                continue
            try:
                while not transport.is_closing():
                    self.lost.clear()
                    await self.lost.wait()
                await asyncio.sleep(0.01)
            finally:
                transport.abort()


class Disturbance:
    """Loads and unloads a model, and kills processes of the server, from a thread, until `stop`."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._server = server
        self._source = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        began_s = killed_s = time.monotonic()
        while not self._over.wait(LOAD_S):
            for action in ("load", "unload"):
                if self._post(f"/v2/repository/models/other/{action}") == 200:
                    self.counts[f"{action}s"] += 1
            if time.monotonic() - killed_s >= KILL_S:
                killed_s = time.monotonic()
                victims = self._server.pids()[1:]
                if victims:
                    os.kill(self._source.choice(victims), signal.SIGKILL)
                    self.counts["kills"] += 1
        self.counts["seconds"] = int(time.monotonic() - began_s)

    def _post(self, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=60)
        try:
            connection.request("POST", path, b"{}", {"Content-Type": "application/json"})
            return connection.getresponse().status
        except OSError:  # its front end was killed
            return 0
        finally:
            connection.close()


class Memory:
    """Samples the memory of the server's processes beside the number of requests, from a thread, until `stop`."""

    def __init__(self, server: ServerProcess, soak: Soak) -> None:
        self.samples: list[tuple[int, float]] = []
        self._server = server
        self._soak = soak
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.samples.append((self._soak.counts["right"], self._server.rss_mb()))

    def slope(self) -> float:
        """Megabytes that the memory of the server's own process grows in a million requests, over the second half."""
        requests, megabytes = np.array(self.samples[len(self.samples) // 2 :]).T
        return float(np.polyfit(requests / 1e6, megabytes, 1)[0])


def figures(server: ServerProcess, requests: int, seed: int, front_ends: bool) -> Iterator[Figure]:
    """Run it, and tell what came of it. Connections may be lost only with `front_ends`, which are killed."""
    soak: Soak

    async def run() -> tuple[Disturbance, Memory]:
        nonlocal soak
        soak = Soak(server.http_port, requests)
        disturbance, memory = Disturbance(server, seed), Memory(server, soak)
        try:
            await soak.run()
        finally:
            await asyncio.to_thread(disturbance.stop)
            await asyncio.to_thread(memory.stop)
        return disturbance, memory

    disturbance, memory = uvloop.run(run())
    wrong = sum(number for what, number in soak.counts.items() if "wrong" in what)
    lost = soak.counts["connection lost"]
    ended = "right", "cancelled", "connection lost"
    failed = {what: number for what, number in soak.counts.items() if what not in ended and "wrong" not in what}
    slope = memory.slope()
    yield Figure("answered with their own content", f"{soak.counts['right']}")
    yield Figure("answered with other content", f"{wrong}", "0", not wrong)
    yield Figure("cancelled", f"{soak.counts['cancelled']}")
    yield Figure("disturbed by", ", ".join(f"{number} {what}" for what, number in disturbance.counts.items()))
    yield Figure("connections lost", f"{lost}", "" if front_ends else "0", front_ends or not lost)
    yield Figure("failed otherwise", f"{failed or 0}", "0", not failed)
    begin, middle, end = (memory.samples[index][1] for index in (0, len(memory.samples) // 2, -1))
    yield Figure("memory at the begin, half-way, at the end", f"{begin:.0f}, {middle:.0f}, {end:.0f} MB")
    yield Figure("slope of the second half, MB a million", f"{slope:+.2f}", f"<= {SLOPE_MB:g}", slope <= SLOPE_MB)


def main() -> int:
    """Print the figures; returns 2 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--config", default="", help="more lines of the server's configuration, as JSON")
    chosen = parser.parse_args()
    with TemporaryDirectory() as name:
        directory = Path(name)
        for model in ("m", "other"):
            save_identity(directory / "models" / model / "1" / "model.onnx", DataType.FP32, (WIDTH,))
        config = {"partitions": 2, "control": "explicit", "load_models": ["m"]}
        config |= json.loads(chosen.config or "{}")
        options = "--repository", str(directory / "models"), "--log-level", "error"
        with gateway(directory, json.dumps(config), None, *options) as server:
            return (
                0 if show("soak", figures(server, chosen.requests, chosen.seed, bool(config.get("front_ends")))) else 2
            )


if __name__ == "__main__":
    raise SystemExit(main())
