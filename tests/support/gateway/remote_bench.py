"""Remote partitions in virtual time, over sessions with worker servers that do what a test says."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import wraps
from typing import Any

import numpy as np

from sluice.batcher.interface.decisions import DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.events import AnyEvent, PartitionLost
from sluice.gateway.executors.remote.executor import RemoteExecutor, RemoteSlots, SharedParts
from sluice.gateway.executors.remote.models import RemoteModels
from sluice.gateway.executors.remote.partition import NOT_PLACED
from sluice.gateway.executors.remote.session import OnMessage
from sluice.gateway.observability.custom_metrics import CustomMetrics
from sluice.gateway.partitions.inventory import NO_DETAILS, ProcessDetails
from sluice.gateway.tensors.body_memory import BodyMemory
from sluice.gateway.worker_protocol.messages import (
    FilePart,
    FileWanted,
    Finished,
    FromGateway,
    FromWorkerServer,
    Loaded,
    RemoteLoad,
    RemoteModel,
    RemoteRun,
    RemoteUnload,
    ServedWorker,
    SessionTensor,
    Unloaded,
    Welcome,
)
from sluice.models.distribution.local_files import LocalFiles
from sluice.models.errors import PartitionError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import DataType
from sluice.mps.ipc.messages import LoadResult, ModelFile
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import CpuPartition
from tests.support.gateway.assembly_bench import MODELS, rows
from tests.support.gateway.assembly_bench import Bench as Tensors
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

VERSION = "1.2.3"
TABLE = LatencyTable(((1, 1_000_000), (8, 4_000_000)))
MS = 1_000_000


class Peer:
    """A worker server: it welcomes gateways as `welcome` says, and loads models at once unless it `keeps` them.

    `refusal` is raised in place of a welcome.
    """

    def __init__(self, url: str, node: str) -> None:
        self.url = url
        self.welcome = Welcome(
            VERSION,
            url.partition(":")[0],
            node,
            "cpu1",
            CpuPartition("w", (3,)),
            ServedWorker(77, (3,), Evidence(cores=(3,))),
            1,
        )
        self.refusal: Exception | None = None
        self.keeps = False
        self.broken: dict[str, str] = {}
        self.sessions: list[FakeSession] = []

    @property
    def session(self) -> "FakeSession":
        """The last session."""
        return self.sessions[-1]


class FakeSession:
    """A session, which records what the gateway sends; the test answers with `say`, and ends it with `end`."""

    def __init__(self, peer: Peer, on_message: OnMessage, on_closed: Callable[[str], None]) -> None:
        self.welcome = peer.welcome
        self.sent: list[FromGateway] = []
        self.tensors: list[list[bytes]] = []
        self.is_open = True
        self.is_full = False
        self._peer = peer
        self._on_message = on_message
        self._on_closed = on_closed

    def send(self, message: FromGateway, tensors: Sequence[Sequence[memoryview]] = ()) -> None:
        if not self.is_open or (self.is_full and isinstance(message, RemoteRun)):
            raise PartitionError("the session has no room")
        self.sent.append(message)
        if isinstance(message, RemoteRun):
            self.tensors.append([b"".join(pieces) for pieces in tensors])
        if isinstance(message, RemoteLoad) and not self._peer.keeps:
            self.loaded(message.model.key, self._peer.broken.get(message.model.key, ""))
        if isinstance(message, RemoteUnload) and not self._peer.keeps:
            self.say(Unloaded(message.key))

    def close(self) -> None:
        self.is_open = False

    def runs(self) -> list[int]:
        """The numbers of the batches that were sent."""
        return [each.batch for each in self.sent if isinstance(each, RemoteRun)]

    def say(self, message: FromWorkerServer, views: Sequence[memoryview] = ()) -> None:
        """Let a message arrive in the next turn of the loop."""
        asyncio.get_running_loop().call_soon(self._arrive, message, views)

    def _arrive(self, message: FromWorkerServer, views: Sequence[memoryview]) -> None:
        if self.is_open:
            self._on_message(message, views)

    def loaded(self, key: str, error: str = "") -> None:
        self.say(Loaded(LoadResult(key, None if error else TABLE, error)))

    def finish(self, batch: int, y: Array, waited_ns: int = 0, ran_ns: int = MS, name: str = "probs") -> None:
        """Answer a batch with an output."""
        wire = SessionTensor(name, DataType.FP32, y.shape, y.nbytes)
        self.say(
            Finished(batch, waited_ns, ran_ns, (wire,)), (np.ascontiguousarray(y).reshape(-1).view(np.uint8).data,)
        )

    def end(self, reason: str) -> None:
        """End the session as the network does."""
        self.is_open = False
        self._on_closed(reason)


class FakeSource:
    """A source that places what the test says, and records what it hears (see `WorkerSource`)."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.placed: Callable[[str, str | None, str], None]

    def start(self, placed: Callable[[str, str | None, str], None]) -> None:
        self.placed = placed

    def want(self, count: int, leaving: tuple[str, ...] = ()) -> None:
        self.heard.append(f"want {count}")

    def leased(self, slot: str) -> None:
        self.heard.append(f"leased {slot}")

    def lost(self, slot: str) -> None:
        self.heard.append(f"lost {slot}")

    def refused(self, slot: str, holder: str) -> None:
        self.heard.append(f"refused {slot} {holder}")

    @property
    def leases(self) -> int:
        return 0

    def asked(self, slot: str, gateway: str, workers: int) -> None:
        self.heard.append(f"asked {slot} {gateway} {workers}")

    async def close(self) -> None:
        self.heard.append("close")


class PlainModels(RemoteModels):
    """Models that are described by their paths, since virtual time does not wait for threads."""

    def __init__(self) -> None:
        super().__init__(LocalFiles())

    async def describe(self, file: ModelFile, peer: str) -> RemoteModel:
        return RemoteModel(file.key, file.path, file.backend, file.menu, file.batchable, table=file.table)

    async def read(self, wanted: FileWanted) -> FilePart:
        return FilePart(wanted.number, wanted.path.encode())


class Bench:
    """The slots `edge-0` to `edge-2` of a class, with the model `small:1`, and peers at `n1a:1`, `n1b:1` and `n2a:1`.

    The beginning of a peer's name is that of its node.
    """

    def __init__(self, loop: VirtualLoop, *, strict: bool = False, timeout_s: float = 10.0) -> None:
        self.loop = loop
        self.tensors = Tensors()
        self.source = FakeSource()
        self.peers = {url: Peer(url, url[:2]) for url in ("n1a:1", "n1b:1", "n2a:1")}
        self.events: list[AnyEvent] = []
        self.details: list[ProcessDetails] = []
        self.said_ready: list[tuple[str, int, bool]] = []
        self.results: list[LoadResult] = []
        self.models = PlainModels()
        file = ModelFile("small:1", "/models/small", "onnxruntime", (1, 8), True)
        other = ModelFile("large:1", "/models/large", "onnxruntime", (1, 8), True)
        files = {f"edge-{number}": {file.key: file, other.key: other} for number in range(3)}
        initial: dict[str, Collection[str]] = dict.fromkeys(files, (file.key,))
        self.bodies = BodyMemory(1 << 16, self.tensors.slots.take_part)
        shared = SharedParts(
            self.tensors.assembly,
            self.bodies,
            CustomMetrics(),
            self.results.extend,
            lambda partition, number, is_ready: self.said_ready.append((partition, number, is_ready)),
        )
        self.executor = RemoteExecutor(
            {"edge": RemoteSlots("cpu1", self.source, files, initial)},
            shared,
            MODELS,
            self._open,
            self.models,
            VERSION,
            loop.clock,
            timeout_s,
            strict=strict,
        )
        self.executor.start(self._report)

    def _report(self, event: AnyEvent, details: ProcessDetails = NO_DETAILS) -> None:
        self.events.append(event)
        self.details.append(details)

    async def _open(
        self, url: str, kind: str, workers: int, on_message: OnMessage, on_closed: Callable[[str], None]
    ) -> FakeSession:
        peer = self.peers[url]
        await asyncio.sleep(0)
        if peer.refusal is not None:
            raise peer.refusal
        session = FakeSession(peer, on_message, on_closed)
        peer.sessions.append(session)
        return session

    async def wait(self, seconds: float = 0.001) -> None:
        """Let time pass, and what is due happen."""
        await asyncio.sleep(seconds)

    async def place(self, slot: str = "edge-0", url: str = "n1a:1") -> "FakeSession":
        """Place a worker and let it get ready; returns the session."""
        self.source.placed(slot, url, "")
        await self.wait()
        return self.peers[url].session

    def take(self) -> list[AnyEvent]:
        """The events since the last call, without those of slots where nothing was placed."""
        taken = [each for each in self.events if not isinstance(each, PartitionLost) or each.reason != NOT_PLACED]
        self.events.clear()
        return taken

    def run(self, batch: int, *requests: int, slot: str = "edge-0") -> None:
        """Dispatch a batch of one row a request, which is admitted first; row r is `[r, r + 0.5]`."""
        for request in requests:
            self.tensors.admit(request, "small:1", x=rows(request))
        members = tuple(Member(request, 0, 1) for request in requests)
        self.executor.run(DispatchBatch(batch, slot, "small:1", len(members), members, ReleaseReason.IDLE))

    def answer(self, request: int) -> list[list[float]]:
        """The outputs of a request whose stage has run."""
        tensors, release = self.tensors.assembly.take_outputs(request)
        taken: list[list[float]] = np.asarray(tensors["probs"]).tolist()
        release()
        return taken


def benched(**settings: Any) -> Callable[[Callable[[Bench], Awaitable[None]]], Callable[[], None]]:
    """Run a test in virtual time on a bench with these settings."""

    def decorate(test: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
        @wraps(test)
        def run() -> None:
            async def main(loop: VirtualLoop) -> None:
                bench = Bench(loop, **settings)
                await test(bench)
                await bench.executor.drain()

            run_virtual(main)

        del run.__wrapped__  # pytest would look for the fixture `bench`
        return run

    return decorate
