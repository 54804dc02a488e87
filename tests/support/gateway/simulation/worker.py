"""A worker's process in virtual time: it speaks the real messages over a real socket, and maps the real memory."""

import asyncio
import os
import signal
import socket
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sluice.models.errors import PartitionError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.tensors.spec import DataType
from sluice.models.triton_config.timed_file import read_timed_file
from sluice.models.units import NS_PER_MS, NS_PER_S
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.channel import Channel
from sluice.mps.ipc.claim import is_taken, take
from sluice.mps.ipc.messages import (
    AddModel,
    BatchFault,
    BatchFinished,
    BatchRefused,
    BatchWithdrawn,
    DropModel,
    LoadResult,
    MapRegion,
    ModelAdded,
    ModelDropped,
    ModelFile,
    OutputTensor,
    OverflowCreated,
    RunBatch,
    StartWorker,
    ToWorker,
    UnmapRegion,
    WithdrawBatch,
    WorkerReady,
)
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import Partition
from sluice.mps.worker.main import QUEUE_LIMIT
from sluice.mps.worker.tensors import WorkerTensors
from tests.support.gateway.simulation.faults import Fault
from tests.support.gateway.simulation.models import row_confidences, run_model

if TYPE_CHECKING:
    from tests.support.gateway.simulation.machine import Machine

IMPORT_S = 0.3
START_S = 0.05
LOAD_S = 0.2
KILL_S = 0.001
RETRY_S = 0.001
SLOWER = 60
"""Something slow takes this many times as long."""
LATE_S = (0.05, 2.0, 30.0)
DIED = 9
"""The exit status of a worker that died by itself."""


class _Died(Exception):
    """The process ends at once."""


class SimulatedWorker:
    """A process that behaves like `sluice.mps.worker.main` until a fault happens (a `Child` of the supervisor)."""

    def __init__(
        self, machine: "Machine", pid: int, ours: socket.socket, theirs: socket.socket, *, is_spare: bool
    ) -> None:
        self.pid = pid
        self.socket = ours
        self.alive = True
        self.tensors: WorkerTensors | None = None
        self._machine = machine
        self._faults = machine.faults
        self._source = Random(f"{machine.seed} worker {pid}")
        self._is_spare = is_spare
        self._partition: Partition
        self._channel: Channel[ToWorker] = Channel(theirs, ToWorker)
        self._raw = theirs
        self._exit_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._status = 0
        self._running = asyncio.Event()
        self._running.set()
        self._timers: list[asyncio.TimerHandle] = []
        self._tables: dict[str, LatencyTable] = {}
        self._files: dict[str, ModelFile] = {}
        self._queue: deque[RunBatch] = deque()
        self._orders: deque[AddModel | DropModel] = deque()
        self._held_back: list[Any] = []
        self._last_batch = 0
        self._claims: dict[int, int] = {}
        self._task = machine.loop.create_task(self._live())

    # -- what the supervisor sees

    def fileno(self) -> int:
        return self._exit_fd

    def kill(self) -> None:
        if self.alive:
            self._timers.append(self._machine.loop.call_later(KILL_S, self._task.cancel))

    def wait(self) -> int:
        assert not self.alive
        os.close(self._exit_fd)
        return self._status

    # -- what the machine does to it

    def stop(self, for_s: float | None) -> None:
        """Stop it for a time, or for good."""
        self._running.clear()
        if for_s is not None:
            self._timers.append(self._machine.loop.call_later(for_s, self._running.set))

    # -- its life

    async def _live(self) -> None:
        try:
            await self._main()
        except asyncio.CancelledError:
            self._status = -signal.SIGKILL
        except (EOFError, ConnectionError):
            self._status = 0
        except _Died:
            self._status = DIED
        except (PartitionError, OSError, MemoryError):
            self._status = 1
        except Exception as error:
            self._machine.problems.append(f"the simulated worker failed: {error!r}")
            self._status = 1
        self.alive = False
        for timer in self._timers:
            timer.cancel()
        self._channel.close()
        for claim in self._claims.values():
            os.close(claim)
        if self.tensors is not None:
            for number in list(self.tensors._regions):
                self.tensors.unmap(number)
        os.eventfd_write(self._exit_fd, 1)

    async def _main(self) -> None:
        if self._is_spare:
            await self._spend(IMPORT_S)
        start = await self._first_message()
        self._partition = start.partition
        await self._spend(START_S if self._is_spare else IMPORT_S + START_S)
        self._die_if(Fault.DIES_STARTING)
        if self._faults.happens(Fault.SILENT_STARTING):
            await self._spend(10 * 24 * 3600)
        with self._machine.in_worker():
            self.tensors = WorkerTensors(start.output_region, start.output_bytes)
        if self._faults.happens(Fault.EARLY_ANSWER):
            early = OutputTensor("y", DataType.FP32, (1, 2), start.output_region, 0, 8)
            await self._send(BatchFinished(1, 0, 1, (early,), 0))
        models = tuple([await self._load(file) for file in start.models])
        ready = WorkerReady(self.pid, self._partition.cores, 1, models, Evidence(self._partition.cores, (self.pid,)))
        await self._send(ready, [self.tensors.output.fd])
        while True:
            if not self._queue and not self._orders:
                await self._wait_until_readable()
            for message, fds in self._channel.receive():
                await self._handle(message, fds)
            if self._queue and self._takes(run := self._queue.popleft()):
                await self._answer(run)
            if self._orders:
                await self._change()

    async def _add(self, run: RunBatch, fds: Sequence[int]) -> None:
        if fds and is_taken(fds[0]):
            os.close(fds[0])
            return
        if fds:
            self._claims[run.batch] = fds[0]
        if len(self._queue) < QUEUE_LIMIT:
            self._queue.append(run)
        else:  # it took a batch for withdrawn that was not
            self._takes(run)
            await self._send(BatchRefused(run.batch, "too many batches"))

    def _takes(self, run: RunBatch) -> bool:
        claim = self._claims.pop(run.batch, None)
        if claim is None:
            return True
        try:
            return take(claim)
        finally:
            os.close(claim)

    async def _first_message(self) -> StartWorker:
        while True:
            await self._wait_until_readable()
            for message, _ in self._channel.receive():  # none while parts of it are missing
                assert isinstance(message, StartWorker)
                return message

    async def _handle(self, message: ToWorker, fds: Sequence[int]) -> None:
        assert self.tensors is not None
        match message:
            case RunBatch():
                if message.batch <= self._last_batch:
                    raise PartitionError(f"expected a batch after {self._last_batch}, got {message.batch}")
                self._last_batch = message.batch
                for slot in message.release:
                    self.tensors.free(slot)
                await self._add(message, fds)
            case WithdrawBatch():
                for run in [run for run in self._queue if run.batch == message.batch]:
                    self._queue.remove(run)
                    if self._takes(run):
                        await self._send(BatchWithdrawn(message.batch))
            case MapRegion():
                with self._machine.in_worker():
                    self.tensors.map(message.region, Region.attach(fds[0], message.nbytes))
            case UnmapRegion():
                self.tensors.unmap(message.region)
            case AddModel() | DropModel():
                self._orders.append(message)
            case _:
                raise AssertionError(f"unexpected {message}")

    # -- models

    async def _change(self) -> None:
        order = self._orders[0]
        if isinstance(order, AddModel):
            result = await self._load(order.file)
            self._orders.popleft()
            await self._send(ModelAdded(msgspec.structs.replace(result, evidence=Evidence(self._partition.cores))))
        elif order.key not in {run.model for run in self._queue}:
            self._orders.popleft()
            self._tables.pop(order.key, None)
            await self._send(ModelDropped(order.key))

    async def _load(self, file: ModelFile) -> LoadResult:
        await self._spend(LOAD_S * self._slower())
        self._die_if(Fault.DIES_LOADING)
        if self._faults.happens(Fault.LOAD_FAILS):
            return LoadResult(file.key, None, "it does not load today")
        table = self._tables[file.key] = file.table or read_timed_file(Path(file.path)).table
        self._files[file.key] = file
        return LoadResult(file.key, table)

    # -- batches

    async def _answer(self, run: RunBatch) -> None:
        started_ns = self._machine.clock.now_ns()
        if run.model not in self._tables:
            await self._send(BatchRefused(run.batch, f"{run.model}: the model is not loaded on this worker"))
            return
        rows = run.inputs[0].shape[0]
        took_s = self._tables[run.model].latency_ns(rows) / NS_PER_S * self._source.uniform(0.7, 1.3) * self._slower()
        await self._spend(took_s)
        self._die_if(Fault.DIES_RUNNING)
        failed = self._faults.one_of(Fault.BATCH_FAILS, Fault.BATCH_MEMORY)
        if failed is not None:
            cause = BatchFault.MEMORY if failed is Fault.BATCH_MEMORY else BatchFault.BATCH
            await self._send(BatchRefused(run.batch, f"{run.model}: {failed.value}", cause))
            return
        try:
            finished, overflow = self._run(run, started_ns)
        except (PartitionError, OSError) as error:
            await self._send(BatchRefused(run.batch, f"{run.model}: {error}"))
            return
        if overflow is not None:
            await self._send(OverflowCreated(finished.outputs[0].region, overflow.nbytes), [overflow.fd])
            self._die_if(Fault.DIES_RUNNING)
        await self._send_answer(finished)
        self._die_if(Fault.DIES_ANSWERED)

    def _run(self, run: RunBatch, started_ns: int) -> tuple[BatchFinished, Region | None]:
        assert self.tensors is not None
        (tensor,) = run.inputs
        x = np.array(self.tensors.read(tensor), np.float32)
        with self._machine.in_worker():
            outputs, slot, overflow = self.tensors.write({"y": run_model(run.model, x)}, batchable=True)
        confidences = tuple(tuple(row_confidences(x)) for _ in self._files[run.model].confidences)
        ended_ns = self._machine.clock.now_ns()
        return BatchFinished(run.batch, started_ns, ended_ns, outputs, slot, confidences), overflow

    async def _send_answer(self, finished: BatchFinished) -> None:
        fault = self._faults.one_of(
            Fault.LATE_ANSWER,
            Fault.LOST_ANSWER,
            Fault.DOUBLED_ANSWER,
            Fault.REORDERED_ANSWER,
            Fault.GARBAGE,
            Fault.UNASKED,
            *_LIES,
        )
        match fault:
            case Fault.LATE_ANSWER:
                await self._spend(self._source.choice(LATE_S))
            case Fault.LOST_ANSWER:
                return
            case Fault.REORDERED_ANSWER:
                self._held_back.append(finished)
                return
            case Fault.DOUBLED_ANSWER:
                await self._send(finished)
            case Fault.GARBAGE:
                self._raw.send(self._source.randbytes(self._source.randint(1, 60)))
            case Fault.UNASKED:
                await self._send(self._unasked(finished.batch))
            case None:
                pass
            case _:
                finished = _lie(fault, finished)
        await self._send(finished)
        while self._held_back:
            await self._send(self._held_back.pop())

    def _unasked(self, batch: int) -> Any:
        cores = self._partition.cores
        return self._source.choice(
            [
                ModelAdded(LoadResult("quick:1", LatencyTable.from_ms({1: 1}))),
                ModelAdded(LoadResult("quick:1", None, "it did not load")),
                ModelDropped("quick:1"),
                WorkerReady(self.pid, cores, 1, (), Evidence(cores)),
                OverflowCreated(-1, 4096),
                OverflowCreated(1, 4096),
                BatchWithdrawn(batch),
                BatchRefused(batch + 1, "a batch that it was not given"),
            ]
        )

    # -- time and messages

    def _die_if(self, fault: Fault) -> None:
        if self._faults.happens(fault):
            raise _Died

    def _slower(self) -> float:
        return SLOWER if self._faults.happens(Fault.SLOW) else 1.0

    async def _spend(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._running.wait()

    async def _wait_until_readable(self) -> None:
        loop = self._machine.loop
        readable = asyncio.Event()
        loop.add_reader(self._channel.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._channel.fileno())
        await self._running.wait()

    async def _send(self, message: Any, fds: Sequence[int] = ()) -> None:
        packets = self._channel.packets(message)
        for packet in packets:
            while not self._channel.try_send(packet, fds if packet is packets[-1] else ()):
                await self._spend(RETRY_S)


_LIES = (
    Fault.WRONG_BATCH,
    Fault.WRONG_ROWS,
    Fault.WRONG_REGION,
    Fault.WRONG_PLACE,
    Fault.WRONG_OUTPUTS,
    Fault.WRONG_CONFIDENCES,
    Fault.WRONG_TIMES,
)


def _lie(fault: Fault, finished: BatchFinished) -> BatchFinished:
    """The answer with something in it that is not true."""
    replace = msgspec.structs.replace
    (output,) = finished.outputs
    rows, width = output.shape
    match fault:
        case Fault.WRONG_BATCH:
            return replace(finished, batch=finished.batch + 1)
        case Fault.WRONG_ROWS:
            fewer = replace(output, shape=(rows - 1, width), nbytes=(rows - 1) * width * 4)
            return replace(finished, outputs=(fewer,))
        case Fault.WRONG_REGION:
            return replace(finished, outputs=(replace(output, region=1 << 30),))
        case Fault.WRONG_PLACE:
            return replace(finished, outputs=(replace(output, offset=1 << 30),))
        case Fault.WRONG_OUTPUTS if finished.batch % 3 == 0:
            return replace(finished, outputs=())
        case Fault.WRONG_OUTPUTS if finished.batch % 3 == 1:
            return replace(finished, outputs=(replace(output, name="z"),))
        case Fault.WRONG_OUTPUTS:
            return replace(finished, outputs=(replace(output, datatype=DataType.FP64),))
        case Fault.WRONG_CONFIDENCES:
            return replace(finished, confidences=((0.5,) * (rows + 1),))
        case _:
            return replace(finished, ended_ns=finished.started_ns - 5 * NS_PER_MS)
