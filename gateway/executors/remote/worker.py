"""One session with a remote worker: its models and its batches, from the first message to the last."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

from sluice.batcher.interface.decisions import DispatchBatch
from sluice.gateway.cluster.nodes import NodeWatch
from sluice.gateway.executors.remote.answer_check import check_loaded
from sluice.gateway.executors.remote.batches import RemoteBatchContext, RemoteBatches
from sluice.gateway.executors.remote.models import RemoteModels
from sluice.gateway.executors.remote.session import OpenSession, WorkerSession
from sluice.gateway.worker_protocol.messages import (
    Asked,
    AskModelReady,
    Draining,
    Fault,
    FileWanted,
    Finished,
    FromWorkerServer,
    Loaded,
    ModelReadiness,
    Pong,
    RemoteLoad,
    RemoteUnload,
    RunRefused,
    ServedWorker,
    Unloaded,
    Withdrawn,
    WorkerBack,
    WorkerLost,
)
from sluice.models.errors import PartitionError, ServingError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.ipc.messages import LoadResult, ModelFile
from sluice.mps.partitions.isolation_report import Evidence, isolation_violations
from sluice.mps.partitions.partition import Partition

LOAD_LIMIT_S = 600.0
"""A worker that has not loaded another one of its models within this time is given up."""

MOST_NAME = 253
"""Characters of the name of a node or worker."""


class UnusableWorker(PartitionError):
    """The worker is not one that the gateway can use: of another version or kind, or without its limits."""


class WorkerContext(NamedTuple):
    """The needs of workers besides their slot: shared by all of a gateway.

    `strict` refuses workers whose evidence does not prove their limits. `models` describes models to workers. `loaded`
    gets what came of loads, and `reported_ready` the answers of models that say whether they are ready:
    the partition, the number of the question and the answer.
    """

    batches: RemoteBatchContext
    open: OpenSession
    nodes: NodeWatch
    version: str
    strict: bool
    models: RemoteModels
    loaded: Callable[[Sequence[LoadResult]], None]
    reported_ready: Callable[[str, int, bool], None]


class WorkerFacts(NamedTuple):
    """Facts about a worker that is up: where it is, its partition under the name of the slot, and its models.

    `failed` maps models that did not load to the reasons.
    """

    node: str
    url: str
    partition: Partition
    worker: ServedWorker
    evidence: Evidence
    tables: Mapping[str, LatencyTable]
    results: Sequence[LoadResult]
    failed: Mapping[str, str]


class WorkerOwner(Protocol):
    """The partition that a worker serves. Everything is reported on the event loop."""

    def worker_found(self, worker: "RemoteWorker") -> None:
        """There is a session with the worker, which is about to load its models."""
        ...

    def worker_ready(self, worker: "RemoteWorker", facts: WorkerFacts) -> None:
        """The worker has its models and takes batches."""
        ...

    def worker_lost(
        self, worker: "RemoteWorker", reason: str, *, planned: bool, is_node_lost: bool, failed: Mapping[str, str]
    ) -> None:
        """The worker takes no more batches; the failures of those that it had follow, unless that was `planned`.

        Also reported for a worker that never was ready (`was_up`).
        """
        ...

    @property
    def leases(self) -> int:
        """The workers of the class that the gateway has."""
        ...

    def worker_asked_for(self, gateway: str, workers: int) -> None:
        """Another gateway, which has that many workers, has asked for the worker, and was refused."""
        ...

    def model_loaded(self, worker: "RemoteWorker", result: LoadResult) -> None:
        """An ordered load has finished."""
        ...

    def model_unloaded(self, worker: "RemoteWorker", key: str) -> None:
        """The worker has unloaded a model."""
        ...


class RemoteWorker:
    """The worker at `url`, which serves the partition `slot` of the `kind` as long as the session lasts.

    `models` are the models that a worker of the slot is to hold: it begins with them, and orders change them, so that
    the next worker begins with what this one had. `heard_s` is when the last message came. `ended` is done when the
    session has ended; its result is true if the gateway refused the worker.
    """

    def __init__(
        self,
        context: WorkerContext,
        owner: WorkerOwner,
        slot: str,
        kind: str,
        url: str,
        models: MutableMapping[str, ModelFile],
    ) -> None:
        self.url = url
        self.node = ""
        self.heard_s = 0.0
        self.was_up = False
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._context = context
        self._owner = owner
        self._slot = slot
        self._kind = kind
        self._models = models
        self._files: dict[str, ModelFile] = {}
        self._reads: set[asyncio.Task[None]] = set()
        self._tables: dict[str, LatencyTable] = {}
        self._loading: dict[str, None] = {}
        self._unloading: dict[str, None] = {}
        self._orders: deque[ModelFile | str] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._load_timer: asyncio.TimerHandle | None = None
        self._results: list[LoadResult] = []
        self._failed: set[int] = set()
        """Batches that have failed with their process, whose answers are still to come."""
        self._is_up = self._is_starting = self._is_process_lost = self._is_leaving = False
        self._loop = asyncio.get_running_loop()
        self._session: WorkerSession
        self._batches: RemoteBatches
        self._partition: Partition
        self._evidence = Evidence()
        self._worker: ServedWorker

    async def open(self) -> None:
        """Open the session and begin to load the models; the owner hears when the worker is ready.

        Raises PartitionError: the worker server cannot be reached, refuses the session, or has another worker.
        """
        context = self._context
        self._session = session = await context.open(
            self.url, self._kind, self._owner.leases, self._message, self._closed
        )
        welcome = session.welcome
        self.heard_s = self._loop.time()
        self.node = welcome.node
        self._partition = msgspec.structs.replace(welcome.partition, name=self._slot)
        try:
            self._check()
        except PartitionError:
            session.close()
            raise
        self._batches = RemoteBatches(
            context.batches,
            session,
            self._files,
            self._tables,
            self._loading,
            context.nodes.link(self.node),
            self.end,
        )
        context.nodes.joined(self.node, self)
        self._owner.worker_found(self)
        self._begin(welcome.worker)

    @property
    def is_up(self) -> bool:
        """True while it takes batches."""
        return self._is_up

    # -- orders

    def run(self, batch: DispatchBatch) -> None:
        """Send a batch; raises PartitionError if that is not possible."""
        self._batches.run(batch)

    def revoke(self, batch: int) -> None:
        """Ask for a batch back; too late is no error."""
        self._batches.revoke(batch)

    def ask_ready(self, number: int, key: str) -> bool:
        """Ask a model whether it is ready; returns false if the worker does not hold it."""
        if not self._is_up or key not in self._tables:
            return False
        self._session.send(AskModelReady(number, key))
        return True

    def load(self, file: ModelFile) -> None:
        """Load one more model."""
        self._loading[file.key] = None
        self._limit_load()
        self._order(file)

    def unload(self, key: str) -> None:
        """Unload a model after the batches that were sent."""
        self._models.pop(key, None)
        self._unloading[key] = None
        self._order(key)

    # -- the end

    def end(self, reason: str) -> None:
        """End the session: the worker is lost for that reason."""
        if not self._batches.is_closed:
            self._context.nodes.left(self.node, self)
            self.lost(f"node {self.node}: {reason}", is_node_lost=False)
            self.abandoned(reason)

    def leave(self, reason: str) -> None:
        """Get no more batches; those that were sent end as usual."""
        if self._is_leaving:
            return
        self._is_up, self._is_leaving = False, True
        self._batches.drain()
        if not self._is_process_lost:
            self._owner.worker_lost(self, reason, planned=True, is_node_lost=False, failed={})

    async def close_when_idle(self, reason: str, limit_s: float) -> None:
        """End the session of a worker that leaves: when the batches that were sent have ended or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._batches.idle.wait()
        self.close(reason)

    def close(self, reason: str) -> None:
        """End the session; nothing is reported but the failures of batches that have not ended."""
        self._is_leaving = True
        if self._stop():
            self._session.close()
            self._context.nodes.left(self.node, self)
            self.abandoned(reason)

    def lost(self, reason: str, *, is_node_lost: bool) -> None:
        """Tell the owner that the worker is lost, alone or with its node; the session ends if it has not ended yet."""
        if self._stop():
            self._session.close()
        if self._is_leaving or self._is_process_lost:
            return  # it knows
        self._is_up = False
        failed = self._failed_load(reason)
        self._owner.worker_lost(self, reason, planned=False, is_node_lost=is_node_lost, failed=failed)

    def abandoned(self, reason: str) -> None:
        """Fail the batches that the worker had."""
        self._is_up = False
        self._batches.abandon(reason)
        if not self.ended.done():
            self.ended.set_result(False)

    def _closed(self, reason: str) -> None:
        """The session has ended by itself."""
        if not self._stop():
            return
        if self._is_leaving:
            self._context.nodes.left(self.node, self)
            self.abandoned(reason)
        else:
            self._context.nodes.broke(self.node, self, f"{reason} ({self.url})")

    def _stop(self) -> bool:
        """Stop everything that waits; returns false if that was done before."""
        if self._batches.is_closed:
            return False
        self._batches.close()
        self._stop_load_timer()
        self._orders.clear()
        for task in (self._sending, *self._reads):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if peer := self._session.welcome.peers_url:
            self._context.models.gone(peer)
        return True

    def _refuse(self, reason: str) -> None:
        """Do not use the worker."""
        if self._stop():
            self._session.close()
            self._context.nodes.left(self.node, self)
            self._is_up = False
            self._owner.worker_lost(self, reason, planned=False, is_node_lost=False, failed={})
            self._batches.abandon(reason)
            self.ended.set_result(True)

    # -- messages

    def _message(self, message: FromWorkerServer, views: Sequence[memoryview]) -> None:
        self.heard_s = self._loop.time()
        try:
            self._take(message, views)
        except PartitionError as error:
            self.end(str(error))

    def _take(self, message: FromWorkerServer, views: Sequence[memoryview]) -> None:
        """Handle a message; raises PartitionError for one that cannot be true."""
        match message:
            case Finished() | RunRefused() | Withdrawn() if message.batch in self._failed:
                self._failed.discard(message.batch)
            case Finished() | RunRefused() | Withdrawn() | Loaded() | Unloaded():
                if not self._is_process_lost:  # else it is of the process before, whose batches have failed already
                    self._take_answer(message, views)
            case Pong():
                round_trip_ns = self._context.batches.clock() - message.sent_ns - message.echo_ns
                self._context.nodes.answered(self.node, round_trip_ns)
            case ModelReadiness():
                self._context.reported_ready(self._slot, message.number, message.is_ready)
            case WorkerLost(reason):
                self._process_lost(reason)
            case WorkerBack(worker):
                self._process_back(worker)
            case Asked(gateway, workers):
                if not self._is_leaving:
                    self._owner.worker_asked_for(gateway, workers)
            case FileWanted():
                read = self._loop.create_task(self._read_file(message))
                self._reads.add(read)
                read.add_done_callback(self._reads.discard)
            case Draining(reason):
                self.leave(f"node {self.node}: {reason}")
            case _:
                raise PartitionError(f"a {type(message).__name__} came, which was not expected")

    def _take_answer(
        self, answer: Finished | RunRefused | Withdrawn | Loaded | Unloaded, views: Sequence[memoryview]
    ) -> None:
        match answer:
            case Finished():
                self._batches.finished(answer, views)
            case RunRefused(fault=Fault.LOST) if not self._is_leaving:
                self._process_lost(answer.message)
                self._failed.discard(answer.batch)
            case RunRefused():
                self._batches.refused(answer)
            case Withdrawn():
                self._batches.withdrawn(answer)
            case Loaded(result):
                self._loaded(result)
            case Unloaded(key):
                self._unloaded(key)

    def _process_back(self, worker: ServedWorker) -> None:
        """The worker process was started again."""
        if not self._is_process_lost:
            raise PartitionError("the worker process is back, but it was not lost")
        self._is_process_lost = False
        if not self._is_leaving:
            self._begin(worker)

    def _process_lost(self, reason: str) -> None:
        """The worker process behind the session has ended; the worker server starts it again."""
        if self._is_process_lost:
            return
        failed = self._failed_load(reason)
        self._is_up, self._is_process_lost = False, True
        self._loading.clear()
        self._unloading.clear()
        self._orders.clear()
        self._tables.clear()
        self._stop_load_timer()
        if not self._is_leaving:
            self._owner.worker_lost(self, reason, planned=False, is_node_lost=False, failed=failed)
        self._failed.update(self._batches.abandon(reason))

    # -- models

    def _check(self) -> None:
        welcome = self._session.welcome
        who = f"the worker {welcome.name[:MOST_NAME]} at {self.url}"
        if welcome.version != self._context.version:
            raise UnusableWorker(f"{who} has the version {welcome.version}, expected {self._context.version}")
        if welcome.kind != self._kind:
            raise UnusableWorker(f"{who} is a partition of the kind {welcome.kind}, expected {self._kind}")
        if not 0 < len(welcome.node) <= MOST_NAME or not welcome.node.isprintable():
            raise UnusableWorker(
                f"the worker at {self.url} is on the node {welcome.node[:MOST_NAME]!r}, expected a name of 1 to "
                f"{MOST_NAME} printable characters"
            )

    def _begin(self, worker: ServedWorker) -> None:
        """Load the models that the worker is to begin with."""
        self._worker, self._evidence = worker, worker.evidence
        self._is_starting = True
        self._results.clear()
        self._loading.update(dict.fromkeys(self._models))
        if not self._loading:
            self._ready()
            return
        self._limit_load()
        for file in self._models.values():
            self._order(file)

    def _order(self, order: ModelFile | str) -> None:
        """Send an order to load or (by key) to unload after those before it."""
        self._orders.append(order)
        if self._sending is None or self._sending.done():
            self._sending = self._loop.create_task(self._send_orders())

    async def _send_orders(self) -> None:
        while self._orders:
            order = self._orders.popleft()
            try:
                await self._send_order(order)
            except PartitionError as error:
                self.end(str(error))
                return

    async def _send_order(self, order: ModelFile | str) -> None:
        if isinstance(order, str):
            self._session.send(RemoteUnload(order))
            return
        try:
            model = await self._context.models.describe(order, self._session.welcome.peers_url)
        except (ServingError, OSError) as error:
            if order.key in self._loading:
                self._loaded(LoadResult(order.key, None, str(error)))
            return
        if order.key in self._loading:  # the worker process was not lost meanwhile
            self._files[order.key] = order
            self._session.send(RemoteLoad(model))

    async def _read_file(self, wanted: FileWanted) -> None:
        """Send a part of a file of a model; the number of these that wait is bounded where they are read."""
        part = await self._context.models.read(wanted)
        with suppress(PartitionError):  # the session has ended, or has no room: the worker asks again
            self._session.send(part)

    def _loaded(self, result: LoadResult) -> None:
        if result.key not in self._loading:
            raise PartitionError(f"model {result.key} is loaded, which was not ordered")
        check_loaded(result)
        del self._loading[result.key]
        self._limit_load()
        self._context.loaded((result,))
        if result.evidence is not None:
            self._evidence = result.evidence
        if result.table is not None:
            self._tables[result.key] = result.table
            self._context.models.held(result.key, self._session.welcome.peers_url)
            self._models[result.key] = msgspec.structs.replace(self._files[result.key], table=result.table)
        if self._is_starting:
            self._results.append(result)
            if not self._loading:
                self._ready()
        elif not self._is_leaving and not self._refuse_unproved():
            self._batches.restart()
            self._owner.model_loaded(self, result)

    def _ready(self) -> None:
        self._is_starting = False
        if self._is_leaving or self._refuse_unproved():
            return
        self._is_up = self.was_up = True
        failed = {each.key: each.error for each in self._results if each.table is None}
        facts = WorkerFacts(
            self.node,
            self.url,
            self._partition,
            self._worker,
            self._evidence,
            dict(self._tables),
            tuple(self._results),
            failed,
        )
        self._owner.worker_ready(self, facts)

    def _refuse_unproved(self) -> bool:
        """Refuse the worker if its limits have to be proved and are not; returns whether that is so."""
        if not self._context.strict:
            return False
        reasons = isolation_violations(self._partition, self._evidence)
        if reasons:
            self._refuse(f"the worker at {self.url} is unenforced: {'; '.join(reasons)}")
        return bool(reasons)

    def _unloaded(self, key: str) -> None:
        if key not in self._unloading:
            raise PartitionError(f"model {key} is unloaded, which was not ordered")
        del self._unloading[key]
        self._tables.pop(key, None)
        self._files.pop(key, None)
        self._models.pop(key, None)  # again: the model may still have been loading when its unloading was ordered
        if not self._is_leaving:
            self._owner.model_unloaded(self, key)

    def _failed_load(self, reason: str) -> dict[str, str]:
        """The model that the worker was loading when it was lost, which may be the reason."""
        first = next(iter(self._loading), None)
        return {} if first is None else {first: f"the worker of {self._slot} was lost: {reason}"}

    def _limit_load(self) -> None:
        """Limit the time until the next model is loaded."""
        self._stop_load_timer()
        if self._loading:
            reason = f"the worker at {self.url} did not load a model within {LOAD_LIMIT_S:g} s"
            self._load_timer = self._loop.call_later(LOAD_LIMIT_S, self.end, reason)

    def _stop_load_timer(self) -> None:
        if self._load_timer is not None:
            self._load_timer.cancel()
            self._load_timer = None
