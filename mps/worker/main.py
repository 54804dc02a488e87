"""The main program of a worker: the supervisor starts it by way of `sluice.mps.worker.start`.

The order matters: array libraries start threads when they are imported, so nothing that imports them is imported before
the process is pinned. A spare worker imports them before it has a partition, and is pinned with all its threads.
"""

import argparse
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from sluice.models.errors import PartitionError
from sluice.models.measuring.memory_meter import share_one_arena
from sluice.models.processes import leave_signals_to_gateway
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.channel import Channel
from sluice.mps.ipc.claim import is_taken, take
from sluice.mps.ipc.messages import (
    AddModel,
    AnswerCall,
    AskReady,
    BatchRefused,
    BatchWithdrawn,
    CancelResponses,
    DropModel,
    MapRegion,
    MeasureModel,
    ModelAdded,
    ModelDropped,
    ModelFile,
    ModelMeasured,
    ModelsLoading,
    ResponseSent,
    ResponseTaken,
    RunBatch,
    StartWorker,
    ToWorker,
    UnmapRegion,
    WithdrawBatch,
    WorkerReady,
)
from sluice.mps.isolation.mps_environment import await_daemon
from sluice.mps.isolation.pinning import bind_to_partition
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, Partition
from sluice.mps.worker.evidence import gather_evidence

if TYPE_CHECKING:
    from sluice.mps.worker.loader import Loader
    from sluice.mps.worker.runner import Report, Runner
    from sluice.mps.worker.tensors import WorkerTensors

LIBRARIES = (
    "sluice.mps.nvidia.device_memory",
    "sluice.mps.worker.loader",
    "sluice.models.backends.onnxruntime",
    "sluice.models.backends.python",
)
"""The modules that take a worker time to import; none of them starts CUDA."""
LOAD_POLL_MS = 5
"""Time between two steps of a load while batches wait for other models."""
QUEUE_LIMIT = 2
"""Batches that may wait here: the gateway sends the second at the last moment, and no third."""

_PR_SET_PDEATHSIG = 1


class Worker:
    """Handles the gateway's messages in turn; between two batches it reads new ones, so that a batch can be withdrawn.

    A batch with a claim may be taken back even while another one runs. It begins only if its claim is not taken.

    While models are to be loaded or unloaded, one step of that follows each batch. `evidence` is that of `partition` at
    the start.
    """

    def __init__(
        self,
        channel: Channel[ToWorker],
        tensors: "WorkerTensors",
        runner: "Runner",
        loader: "Loader",
        partition: Partition,
        evidence: Evidence,
    ) -> None:
        self._channel = channel
        self._tensors = tensors
        self._runner = runner
        self._loader = loader
        self._partition = partition
        self._evidence = evidence
        self._queue: deque[RunBatch] = deque()
        self._last_batch = 0
        self._claims: dict[int, int] = {}
        """The descriptors of the claims of waiting batches."""
        self._cancelled: set[int] = set()
        """The waiting batches of decoupled models whose clients have gone."""

    def serve(self) -> None:
        """Run batches until the gateway closes the channel (EOFError or ConnectionError)."""
        while True:
            idle = not self._queue or self._runner.is_running
            if self._runner.waiting_models:
                self._resume(wait=idle)
                idle = False
            elif self._loader.busy and idle:
                self._loader.wait(self._channel)
                idle = False
            for message, fds in self._channel.receive(wait=idle):
                self.handle(message, fds)
            if self._queue and not self._runner.is_running:
                run = self._queue.popleft()
                if self._takes(run.batch):
                    self._run(run)
                else:
                    self._cancelled.discard(run.batch)
            if self._loader.busy and (change := self._loader.step(self._used_models())):
                self._channel.send(self._with_evidence(change))

    def _run(self, run: RunBatch) -> None:
        """Run a batch, or start it if its model sends responses; it may then wait for other models."""
        if self._runner.shows_requests(run.model):
            self._report(self._runner.start(run))
            if run.batch in self._cancelled:
                self._cancelled.discard(run.batch)
                self._runner.cancel_responses(run.batch)
            return
        answer, overflow = self._runner.run(run)
        if overflow:
            self._channel.send(overflow[0], [overflow[1].fd])
        self._channel.send(answer)

    def _takes(self, batch: int) -> bool:
        """Take a batch that leaves the queue; False if it was taken back meanwhile."""
        claim = self._claims.pop(batch, None)
        if claim is None:
            return True
        try:
            return take(claim)
        finally:
            os.close(claim)

    def _used_models(self) -> set[str]:
        """The models of batches that wait for their turn, or for other models."""
        return {run.model for run in self._queue} | self._runner.waiting_models

    def _resume(self, wait: bool) -> None:
        """Go on with batches that wait for other models; with `wait`, return when something has come."""
        ready = select.poll()
        ready.register(self._channel, select.POLLIN)
        for fileno in self._runner.filenos():
            ready.register(fileno, select.POLLIN)
        timeout_ms = None if wait else 0
        if wait and self._loader.busy:
            timeout_ms = LOAD_POLL_MS
        ready.poll(timeout_ms)
        self._report(self._runner.resume())

    def _report(self, reports: Sequence["Report"]) -> None:
        for message, fds, owned in reports:
            self._channel.send(message, fds)
            if isinstance(message, ResponseSent):
                self._runner.response_sent(message.batch)
            if owned:
                for fd in fds:
                    os.close(fd)

    def handle(self, message: ToWorker, fds: tuple[int, ...]) -> None:
        """Handle one message; a batch is queued. Raises PartitionError for one out of order, such as a doubled one."""
        match message:
            case RunBatch():
                self._add(message, fds)
            case WithdrawBatch():
                self._withdraw(message.batch)
            case AnswerCall() | AskReady() | ResponseTaken():
                self._report(self._runner.pass_on(message, fds))
            case CancelResponses():
                self._cancel(message.batch)
            case MapRegion():
                self._tensors.map(message.region, Region.attach(fds[0], message.nbytes))
            case UnmapRegion():
                self._tensors.unmap(message.region)
            case AddModel() | DropModel():
                self._loader.submit(message)
            case MeasureModel():
                self._channel.send(self._measure(message.file))
            case StartWorker():
                raise PartitionError("worker: expected no second StartWorker: a worker is bound to its partition once")

    def _add(self, run: RunBatch, fds: tuple[int, ...]) -> None:
        if run.batch <= self._last_batch:
            raise PartitionError(f"worker: expected a batch after {self._last_batch}, got {run.batch}")
        self._last_batch = run.batch
        for slot in run.release:
            self._tensors.free(slot)
        if fds:
            if is_taken(fds[0]):
                os.close(fds[0])
                return
            self._claims[run.batch] = fds[0]
        if len(self._queue) >= QUEUE_LIMIT:
            self._drop_taken()
        if len(self._queue) < QUEUE_LIMIT:
            self._queue.append(run)
        elif self._takes(run.batch):
            self._channel.send(BatchRefused(run.batch, f"worker: expected at most {QUEUE_LIMIT} waiting batches"))

    def _drop_taken(self) -> None:
        """Drop the waiting batches that were taken back: while a model sends responses, they would fill the queue."""
        taken = {batch for batch, claim in self._claims.items() if is_taken(claim)}
        for run in [each for each in self._queue if each.batch in taken]:
            self._queue.remove(run)
            self._cancelled.discard(run.batch)
            self._takes(run.batch)

    def _cancel(self, batch: int) -> None:
        """Tell the model of a batch that its client has gone, now or once it starts; it may have ended."""
        if not self._runner.cancel_responses(batch) and any(run.batch == batch for run in self._queue):
            self._cancelled.add(batch)

    def _measure(self, file: ModelFile) -> ModelMeasured:
        """Measure a model and add the evidence of the partition; between two runs, look whether to exit."""
        from sluice.mps.nvidia.device_memory import memory_meter

        steps = self._runner.profile_steps(file, partial(memory_meter, self._partition))
        while True:
            try:
                next(steps)
            except StopIteration as end:
                measured: ModelMeasured = end.value
                break
            for message, fds in self._channel.receive():
                self.handle(message, fds)
        return msgspec.structs.replace(
            measured, evidence=gather_evidence(self._partition, self._runner, self._evidence)
        )

    def _with_evidence(self, change: ModelAdded | ModelDropped) -> ModelAdded | ModelDropped:
        """Add new evidence to a load result, since a model may place its threads as it likes."""
        if isinstance(change, ModelDropped):
            return change
        evidence = gather_evidence(self._partition, self._runner, self._evidence)
        return ModelAdded(msgspec.structs.replace(change.model, evidence=evidence))

    def _withdraw(self, batch: int) -> None:
        for run in self._queue:
            if run.batch == batch:
                self._queue.remove(run)
                self._cancelled.discard(batch)
                if self._takes(batch):
                    self._channel.send(BatchWithdrawn(batch))
                return


def _note_done(channel: Channel[ToWorker], models: int, done: int) -> None:
    """Tell the gateway how many of the first models were tried; the last one is followed by `WorkerReady`."""
    if done < models:
        channel.send(ModelsLoading(done))


def start(channel: Channel[ToWorker]) -> Worker:
    """Bind to the partition, load the models and report ready; messages sent meanwhile wait in the channel."""
    load, _ = next(channel.receive(wait=True))
    if not isinstance(load, StartWorker):
        raise PartitionError(f"worker: first message: expected StartWorker, got {type(load).__name__}")
    partition = load.partition
    cores = bind_to_partition(partition)
    if isinstance(partition, MpsPartition):
        await_daemon(partition)

    from sluice.models.backends.base import GpuOptions
    from sluice.mps.nvidia.device_memory import load_meter
    from sluice.mps.worker.loader import Loader
    from sluice.mps.worker.runner import Runner
    from sluice.mps.worker.tensors import WorkerTensors

    tensors = WorkerTensors(load.output_region, load.output_bytes)
    meter = partial(load_meter, partition)
    if isinstance(partition, CpuPartition):
        threads = len(cores)
        runner = Runner(tensors, threads, partition.slowdown, meter=meter, loading=load.loading)
    else:
        threads = len(partition.cores) or 1  # the work is the GPU's
        runner = Runner(tensors, threads, gpu=GpuOptions(partition.memory_bytes), meter=meter, loading=load.loading)
    models = runner.load(load.models, partial(_note_done, channel, len(load.models)))
    evidence = gather_evidence(partition, runner)
    gc.collect()
    gc.freeze()
    channel.send(WorkerReady(os.getpid(), evidence.cores, threads, models, evidence), [tensors.output.fd])
    return Worker(channel, tensors, runner, Loader(runner, load.loading.concurrent), partition, evidence)


def main() -> int:
    """Serve until the gateway closes the channel or exits; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="sluice.mps.worker.main", description="A worker process, started by the gateway."
    )
    parser.add_argument("--socket", type=int, required=True, metavar="FD", help="descriptor of the connected socket")
    parser.add_argument("--spare", action="store_true", help="import all libraries before there is a partition")
    arguments = parser.parse_args()
    leave_signals_to_gateway()
    # In addition to the end of the channel, for a gateway that dies while a batch is running.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.set_inheritable(arguments.socket, False)
    share_one_arena()
    if arguments.spare:
        for module in LIBRARIES:
            with suppress(ImportError):  # a model that needs it reports the error
                importlib.import_module(module)
    try:
        start(Channel(socket.socket(fileno=arguments.socket), ToWorker)).serve()
    except (EOFError, ConnectionError):
        return 0
    except PartitionError as error:
        print(f"worker {os.getpid()}: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print(f"worker {os.getpid()}: the partition has too little memory to start", file=sys.stderr)
        return 1
    return 0
