"""The rate at which the files of a model reach worker servers, and the time by which they hold up a session."""

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.conftest import Report
from benchmarks.support.clients import save_sleeping
from sluice.gateway.version import server_version
from sluice.gateway.worker_protocol.client import ClientSession, Credentials, open_session
from sluice.gateway.worker_protocol.file_parts import FileReader
from sluice.gateway.worker_protocol.messages import (
    FileWanted,
    FromWorkerServer,
    Hello,
    Loaded,
    Pong,
    RemoteLoad,
    RemoteModel,
)
from sluice.models.distribution.local_files import LocalFiles
from tests.support.gateway.worker_server import worker_server

MIB = 256
LEASE_S = 0.6
"""A short lease has many pings."""


class Loading(NamedTuple):
    """The rate at which a model came, and the longest round trip of a ping meanwhile."""

    mb_per_s: float
    ping_ms: float


class Gateway:
    """The gateway's end of a session that loads one model."""

    def __init__(self, local: LocalFiles) -> None:
        self.loaded: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
        self.ping_ms = 0.0
        self.session: ClientSession
        self._reader = FileReader(local.open)
        self._answers: set[asyncio.Task[None]] = set()

    def on_message(self, message: FromWorkerServer, tensors: Sequence[memoryview]) -> None:
        """Answer questions for files."""
        del tensors
        if isinstance(message, FileWanted):
            task = asyncio.create_task(self._answer(message))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)
        elif isinstance(message, Pong):
            self.ping_ms = max(self.ping_ms, (time.monotonic_ns() - message.sent_ns) / 1e6)
        elif isinstance(message, Loaded):
            self.loaded.set_result(message)

    async def _answer(self, wanted: FileWanted) -> None:
        self.session.send(await self._reader.answer(wanted))


async def load(url: str, local: LocalFiles, model: RemoteModel) -> Loading:
    """Load a model on a worker server."""
    gateway = Gateway(local)
    hello = Hello(server_version(), "the benchmark", LEASE_S)
    gateway.session = await open_session(url, Credentials(), hello, gateway.on_message, print)
    began = time.perf_counter()
    gateway.session.send(RemoteLoad(model))
    loaded = await gateway.loaded
    took_s = time.perf_counter() - began
    gateway.session.close()
    assert loaded.model.table is not None, loaded.model.error
    return Loading(MIB * (1 << 20) / 1e6 / took_s, gateway.ping_ms)


def test_the_files_of_a_model(benchmark: Any, report: Report, tmp_path: Path) -> None:
    """A large model comes through the gateway, then from the first worker server, then from the cache."""
    save_sleeping(tmp_path / "models", "m", {1: 1.0})
    path = tmp_path / "models/m/1/model.timed.json"
    with path.with_name("weights.bin").open("wb") as weights:
        for _ in range(MIB):
            weights.write(os.urandom(1 << 20))
    local = LocalFiles()
    began = time.perf_counter()
    files = msgspec.structs.replace(local.file_set("m:1", path, "timed"), origin=None)  # so that it has to be copied
    hashed_s = time.perf_counter() - began
    places = [tmp_path / name for name in ("first", "second")]
    for place in places:
        place.mkdir()

    def run() -> list[Loading]:
        options = [["--cache", str(place / "cache")] for place in places]
        with worker_server(places[0], options[0]) as first, worker_server(places[1], options[1]) as second:
            model = RemoteModel("m:1", str(path), "timed", (1,), True, files=files)
            orders = [(first.url, ()), (second.url, (first.url,)), (second.url, ())]
            return [asyncio.run(load(url, local, msgspec.structs.replace(model, peers=peers))) for url, peers in orders]

    through, peer, again = benchmark.pedantic(run, rounds=1)
    report(f"hashing a model of {MIB} MiB", f"{MIB * (1 << 20) / 1e6 / hashed_s:.0f} MB/s", "")
    report("the same through the gateway", f"{through.mb_per_s:.0f} MB/s", "")
    report("the same from another worker server", f"{peer.mb_per_s:.0f} MB/s", "")
    report("longest ping of the session meanwhile", f"{max(through.ping_ms, peer.ping_ms):.1f} ms", "")
    report("the same model from the cache", f"{1000 * MIB * (1 << 20) / 1e6 / again.mb_per_s:.0f} ms", "")
