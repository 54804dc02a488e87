"""The main program of a worker: the supervisor starts it by way of `sluice.mps.worker.start`.

The order matters: array libraries start threads when they are imported, so nothing that imports them is imported before
the process is pinned. A spare worker imports them before it has a partition, and is pinned with all its threads.
"""

import argparse
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from sluice.models.errors import PartitionError
from sluice.models.measuring.memory_meter import share_one_arena
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.channel import Channel
from sluice.mps.ipc.messages import (
    AddModel,
    BatchFinished,
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
    OverflowCreated,
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
    from sluice.mps.worker.responses import BatchResponses
    from sluice.mps.worker.runner import Runner
    from sluice.mps.worker.tensors import WorkerTensors

LIBRARIES = (
    "sluice.mps.nvidia.device_memory",
    "sluice.mps.worker.loader",
    "sluice.models.backends.onnxruntime",
    "sluice.models.backends.python",
)
"""The modules that take a worker time to import; none of them starts CUDA."""
QUEUE_LIMIT = 2
"""Batches that may wait here: the gateway sends the second at the last moment, and no third."""

_PR_SET_PDEATHSIG = 1


class Worker:
    """Handles the gateway's messages in turn; between two batches it reads new ones, so that a batch can be withdrawn.

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
        self._responses: BatchResponses | None = None
        self._cancelled: set[int] = set()
        """The waiting batches of decoupled models whose clients have gone."""

    def serve(self) -> None:
        """Run batches until the gateway closes the channel (EOFError or ConnectionError)."""
        while True:
            idle = not self._queue
            if self._loader.busy and idle:
                self._loader.wait(self._channel)
                idle = False
            for message, fds in self._channel.receive(wait=idle):
                self.handle(message, fds)
            if self._queue:
                run = self._queue.popleft()
                responses = self._runner.begin_responses(run)
                if responses is None:
                    self._send(*self._runner.run(run))
                elif isinstance(responses, BatchRefused):
                    self._channel.send(responses)
                else:
                    self._send_responses(run, responses)
            if self._loader.busy and (change := self._loader.step({run.model for run in self._queue})):
                self._channel.send(self._with_evidence(change))

    def _send(
        self, answer: BatchFinished | BatchRefused | ResponseSent, overflow: "tuple[OverflowCreated, Region] | None"
    ) -> None:
        if overflow:
            self._channel.send(overflow[0], [overflow[1].fd])
        self._channel.send(answer)

    def _send_responses(self, run: RunBatch, responses: "BatchResponses") -> None:
        """Send the responses to a batch until it ends, and handle messages meanwhile."""
        self._responses = responses
        if run.batch in self._cancelled:
            responses.cancel()
        try:
            while True:
                has_response = responses.wait(self._channel.fileno())
                for message, fds in self._channel.receive():
                    self.handle(message, fds)
                if not has_response:
                    continue
                try:
                    answer, overflow = responses.receive()
                except Exception as error:  # it ends this batch alone
                    self._channel.send(self._runner.refusal(run, error))
                    return
                self._send(answer, overflow)
                if isinstance(answer, BatchFinished):
                    return
                responses.sent()
        finally:
            self._responses = None
            self._cancelled.discard(run.batch)

    def handle(self, message: ToWorker, fds: tuple[int, ...]) -> None:
        """Handle one message; a batch is queued. Raises PartitionError for one out of order, such as a doubled one."""
        match message:
            case RunBatch():
                if message.batch <= self._last_batch:
                    raise PartitionError(f"worker: expected a batch after {self._last_batch}, got {message.batch}")
                self._last_batch = message.batch
                for slot in message.release:
                    self._tensors.free(slot)
                if len(self._queue) < QUEUE_LIMIT:
                    self._queue.append(message)
                else:
                    self._channel.send(
                        BatchRefused(message.batch, f"worker: expected at most {QUEUE_LIMIT} waiting batches")
                    )
            case WithdrawBatch():
                self._withdraw(message.batch)
            case ResponseTaken() | CancelResponses():
                self._handle_responses(message)
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

    def _handle_responses(self, message: ResponseTaken | CancelResponses) -> None:
        """Handle a message about a batch of a decoupled model, which may wait or have ended."""
        running = self._responses if self._responses is not None and self._responses.batch == message.batch else None
        if isinstance(message, ResponseTaken):
            if running is not None:
                running.taken(message.slot)
            elif message.slot >= 0:
                self._tensors.free(message.slot)
        elif running is not None:
            running.cancel()
        elif any(run.batch == message.batch for run in self._queue):
            self._cancelled.add(message.batch)

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
                self._channel.send(BatchWithdrawn(batch))
                return


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
    models = runner.load(load.models)
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
    # The gateway drains its workers: a signal to the process group must not end them with batches in flight.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
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
