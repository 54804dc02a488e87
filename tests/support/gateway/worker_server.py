"""Worker servers for tests: `sluice worker` on a free port, and a gateway's session with one."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sluice.gateway.version import server_version
from sluice.gateway.worker_protocol.client import ClientSession, Credentials, open_session
from sluice.gateway.worker_protocol.framing import read_tensor
from sluice.gateway.worker_protocol.messages import (
    Finished,
    FromWorkerServer,
    Hello,
    Loaded,
    Pong,
    RemoteLoad,
    RemoteModel,
    RemoteRun,
    SessionTensor,
)
from sluice.models.backends.requests import RequestPart
from sluice.models.sequence_batching import SequenceRow
from sluice.models.tensors.arrays import Array, datatype_of
from sluice.mps.ipc.messages import LoadResult
from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.server import stop

READY_TIMEOUT_S = 120.0
ANSWER_S = 60.0
NO_CREDENTIALS = Credentials()

M = TypeVar("M")


class WorkerProcess(NamedTuple):
    """A running worker server; `about` is its ready file, `log` the file of its output."""

    process: subprocess.Popen[bytes]
    about: dict[str, Any]
    log: Path

    @property
    def url(self) -> str:
        url: str = self.about["url"]
        return url


@contextmanager
def worker_server(
    directory: Path, arguments: Sequence[str] = (), within: Sequence[str] = ()
) -> Iterator[WorkerProcess]:
    """Run a worker server on the first core until the block ends; its files are in `directory`.

    `within` is a command that runs another one, such as one that enters a network namespace.
    Raises RuntimeError with its log when it does not become ready.
    """
    ready, log = directory / "ready.json", directory / "worker.log"
    ready.unlink(missing_ok=True)
    command = [
        *within,
        sys.executable,
        "-m",
        "sluice.gateway.cli.main",
        "worker",
        "--ready-file",
        str(ready),
        *arguments,
    ]
    if not {"--cores", "--config"} & set(arguments):
        command += ["--cores", str(available_cores()[0])]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=root, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not ready.exists():
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"worker server: did not become ready:\n{log.read_text(errors='replace')}")
            time.sleep(0.02)
        yield WorkerProcess(process, json.loads(ready.read_text()), log)
    finally:
        stop(process)


class GatewaySession:
    """A gateway's session, whose messages are waited for by their type."""

    def __init__(self) -> None:
        self.session: ClientSession
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._messages: asyncio.Queue[tuple[FromWorkerServer, Sequence[memoryview]]] = asyncio.Queue()
        self._kept: list[tuple[FromWorkerServer, Sequence[memoryview]]] = []
        self._batch = 0

    def on_message(self, message: FromWorkerServer, tensors: Sequence[memoryview]) -> None:
        if not isinstance(message, Pong):
            self._messages.put_nowait((message, tensors))

    def on_closed(self, reason: str) -> None:
        self.closed.set_result(reason)

    async def next(self, kind: type[M]) -> M:
        """The next message of that type; those of others stay."""
        return (await self.next_with_tensors(kind))[0]

    async def next_with_tensors(self, kind: type[M]) -> tuple[M, Sequence[memoryview]]:
        async with asyncio.timeout(ANSWER_S):
            while True:
                for position, (message, tensors) in enumerate(self._kept):
                    if isinstance(message, kind):
                        del self._kept[position]
                        return message, tensors
                self._kept.append(await self._messages.get())

    async def load(self, model: RemoteModel) -> LoadResult:
        self.session.send(RemoteLoad(model))
        return (await self.next(Loaded)).model

    def run(
        self,
        model: str,
        deadline_in_ns: int = 0,
        requests: tuple[RequestPart, ...] = (),
        sequences: tuple[SequenceRow, ...] = (),
        **inputs: Array,
    ) -> int:
        """Send a batch; returns its number."""
        self._batch += 1
        tensors = tuple(SessionTensor(name, datatype_of(x.dtype), x.shape, x.nbytes) for name, x in inputs.items())
        data = [np.ascontiguousarray(x).reshape(-1).view(np.uint8).data for x in inputs.values()]
        self.session.send(RemoteRun(self._batch, model, tensors, deadline_in_ns, requests, sequences), data)
        return self._batch

    async def outputs(self) -> tuple[Finished, dict[str, Array]]:
        """The next end of a batch, and its outputs."""
        finished, tensors = await self.next_with_tensors(Finished)
        arrays = {}
        for each, data in zip(finished.outputs, tensors, strict=True):
            array = read_tensor(each, data, each.shape[0])
            assert isinstance(array, np.ndarray)
            arrays[each.name] = array
        return finished, arrays


@asynccontextmanager
async def gateway_session(
    url: str, credentials: Credentials = NO_CREDENTIALS, gateway: str = "gateway", lease_s: float = 60.0
) -> AsyncIterator[GatewaySession]:
    """Open a session and close it at the end of the block."""
    client = GatewaySession()
    hello = Hello(server_version(), gateway, lease_s)
    client.session = await open_session(url, credentials, hello, client.on_message, client.on_closed)
    try:
        yield client
    finally:
        client.session.close()
