"""Models reach the cache of a worker server through its gateway, and other worker servers from there."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from sluice.gateway.version import server_version
from sluice.gateway.worker_protocol.client import Credentials, Session, open_session
from sluice.gateway.worker_protocol.file_parts import FileReader
from sluice.gateway.worker_protocol.messages import (
    FilePart,
    FileWanted,
    FromWorkerServer,
    Hello,
    Load,
    Loaded,
    RemoteModel,
    Unload,
    Unloaded,
)
from sluice.models.distribution.local_files import LocalFiles
from sluice.models.repository.scan import Repository
from tests.support.gateway.server import stop

KEY = "a key that both know"
START_S = 60.0
CONFIG = """
backend: "python" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
"""
MODEL = """
import os
import doubling

def infer(inputs):
    with open(os.path.join(os.path.dirname(__file__), "weights.bin"), "rb") as file:
        assert len(file.read()) == 1_000_000
    return {"y": doubling.double(inputs["x"])}
"""


@contextmanager
def worker_server(directory: Path, name: str, cache: Path) -> Iterator[str]:
    """Run `sluice worker` until the block ends; gives its address."""
    key, ready = directory / "key", directory / f"{name}.json"
    key.write_text(KEY)
    command = [sys.executable, "-m", "sluice.gateway.cli.main", "worker", "--cores", "0", "--name", name]
    options = ["--cache", str(cache), "--cache-mb", "10", "--key-file", str(key), "--ready-file", str(ready)]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*command, *options], env=environment, stdout=log, stderr=log)
    try:
        end = time.monotonic() + START_S
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        yield json.loads(ready.read_text())["url"]
    finally:
        stop(process)


class Gateway:
    """A gateway's end of a session; `wanted` are the files that the worker server asked for."""

    def __init__(self, local: LocalFiles) -> None:
        self.session: Session
        self.wanted: list[str] = []
        self.lies = False
        self._reader = FileReader(local.open)
        self._messages: asyncio.Queue[Loaded | Unloaded] = asyncio.Queue()
        self._answers: set[asyncio.Task[None]] = set()

    def on_message(self, message: FromWorkerServer, tensors: Sequence[memoryview]) -> None:
        del tensors
        if isinstance(message, FileWanted):
            self.wanted.append(message.path)
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)
        elif isinstance(message, Loaded | Unloaded):
            self._messages.put_nowait(message)

    async def _answer(self, wanted: FileWanted) -> None:
        part = await self._reader.answer(wanted)
        if self.lies:
            part = FilePart(part.number, bytes(len(part.data)))
        self.session.send(part)

    async def load(self, model: RemoteModel) -> str:
        """Load a model; returns the reason why that failed, or ""."""
        self.session.send(Load(model))
        loaded = await self._next()
        assert isinstance(loaded, Loaded)
        return "" if loaded.model.table is not None else str(loaded.model.error)

    async def unload(self, key: str) -> None:
        self.session.send(Unload(key))
        assert await self._next() == Unloaded(key)

    async def _next(self) -> Loaded | Unloaded:
        async with asyncio.timeout(START_S):
            return await self._messages.get()


@asynccontextmanager
async def session_with(url: str, local: LocalFiles) -> AsyncIterator[Gateway]:
    gateway = Gateway(local)
    hello = Hello(server_version(), "the test", 30.0)
    gateway.session = await open_session(url, Credentials(KEY), hello, gateway.on_message, lambda reason: None)
    try:
        yield gateway
    finally:
        gateway.session.close()


class Served(NamedTuple):
    """A model in a repository on this machine, as a gateway describes it to machines that are not this one."""

    local: LocalFiles
    model: RemoteModel


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    repository = tmp_path_factory.mktemp("repository")
    version = repository / "m" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    (version.parent / "doubling.py").write_text("def double(x):\n    return 2 * x\n")
    (version / "model.py").write_text(MODEL)
    (version / "weights.bin").write_bytes(bytes(1_000_000))
    entry = Repository.scan(repository).models["m:1"]
    local = LocalFiles()
    files = msgspec.structs.replace(local.file_set("m:1", entry.path, "python"), origin=None)
    spec = entry.spec
    order = RemoteModel("m:1", str(entry.path), "python", (1,), spec.batchable, config=spec.config, files=files)
    return Served(local, msgspec.structs.replace(order, declared=spec.declared))


def test_files_come_through_the_gateway_once_and_from_peers_afterwards(served: Served, tmp_path: Path) -> None:
    async def run(first_url: str, second_url: str) -> None:
        async with session_with(first_url, served.local) as gateway:
            gateway.lies = True
            reason = await gateway.load(served.model)
            assert reason.startswith("model file 'm/1/model.py': no source gives its files: the gateway: '")
            assert reason.endswith("': it gave other contents")
            gateway.lies = False
            assert await gateway.load(served.model) == ""
            assert set(gateway.wanted) == {"m/1/model.py", "m/1/weights.bin", "m/config.pbtxt", "m/doubling.py"}
            gateway.wanted.clear()
            await gateway.unload("m:1")
            assert await gateway.load(served.model) == ""
            assert gateway.wanted == []
        async with session_with(second_url, served.local) as gateway:
            nobody = "127.0.0.1:1"
            model = msgspec.structs.replace(served.model, peers=(nobody, first_url, second_url))
            assert await gateway.load(model) == ""
            assert gateway.wanted == []

    with (
        worker_server(tmp_path, "first", tmp_path / "first cache") as first_url,
        worker_server(tmp_path, "second", tmp_path / "second cache") as second_url,
    ):
        asyncio.run(run(first_url, second_url))
