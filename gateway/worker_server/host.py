"""The worker process of a worker server, the batches that it has, and the models that it holds."""

import asyncio
import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic_ns
from typing import Protocol

import msgspec

from sluice.gateway.config.triton_settings import BATCH_TIMEOUT_S
from sluice.gateway.executors.hang_detector import HangDetector
from sluice.gateway.observability.logs import log
from sluice.gateway.tensors.input_slots import InputSlot, InputSlots
from sluice.gateway.worker_protocol.framing import offsets_of
from sluice.gateway.worker_protocol.messages import Fault, RemoteModel, ServedWorker, SessionTensor
from sluice.models.backends.requests import CallResult, FailureCode, RequestPart
from sluice.models.errors import PartitionError
from sluice.models.measuring.model_loading import DEFAULT_MODEL_LOADING, ModelLoadingSettings
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.sequence_batching import SequenceRow
from sluice.models.units import NS_PER_S
from sluice.mps.daemon.control import MpsControl
from sluice.mps.ipc.claim import new_claim, take
from sluice.mps.ipc.messages import (
    AnswerCall,
    AskReady,
    BatchFault,
    BatchFinished,
    BatchRefused,
    BatchReport,
    BatchWaits,
    BatchWithdrawn,
    CallModel,
    InputTensor,
    LoadResult,
    ModelFile,
    OutputTensor,
    ReadinessReport,
    ResponseSent,
    RunBatch,
    Segment,
    WithdrawBatch,
    WorkerReady,
)
from sluice.mps.partitions.partition import Partition
from sluice.mps.supervisor.child import Launch, launch_worker
from sluice.mps.supervisor.process import WorkerProcess
from sluice.mps.supervisor.quarantine import DEFAULT_QUARANTINE, QuarantineSettings
from sluice.mps.supervisor.supervisor import Supervisor
from sluice.mps.supervisor.worker_spec import WorkerSpec

logger = logging.getLogger(__name__)

SENT_AHEAD = 2
"""Batches that the worker process has at a time: the next one is there when one has ended."""
NO_CALLS = "models on a partition of another machine cannot call other models"
NO_RESPONSES = "decoupled models run on partitions of the gateway's own machine only"
_FAULTS = {
    BatchFault.BATCH: Fault.BATCH,
    BatchFault.MEMORY: Fault.MEMORY,
    BatchFault.STATES: Fault.STATES,
    BatchFault.DEVICE: Fault.LOST,
}


class BatchOwner(Protocol):
    """Gets the one answer to a batch, on the event loop."""

    def finished(
        self, answer: BatchFinished, waited_ns: int, outputs: Sequence[memoryview], free: Callable[[], None]
    ) -> None:
        """The batch ran. Its outputs stay until `free` is called, which the owner must do."""
        ...

    def refused(self, fault: Fault, reason: str) -> None:
        """The batch failed or did not run."""
        ...

    def withdrawn(self) -> None:
        """The batch was taken back."""
        ...


class HostEvents(Protocol):
    """Follows the worker process, on the event loop."""

    def worker_lost(self, reason: str) -> None:
        """It has ended; its batches have been refused."""
        ...

    def worker_back(self, worker: ServedWorker) -> None:
        """It is up, for the first time or again."""
        ...

    def model_loaded(self, result: LoadResult) -> None:
        """An ordered load has finished."""
        ...

    def model_unloaded(self, key: str) -> None:
        """An ordered unload has finished."""
        ...


class HostedBatch:
    """A batch: the memory of its inputs, when all of them had come, and who gets the answer.

    `due_ns` is the time by which it has to begin (0: none); `number` is the host's own. `claim` is the descriptor of
    its claim, if it was sent behind another one.
    """

    __slots__ = (
        "arrived_ns",
        "batch",
        "claim",
        "due_ns",
        "inputs",
        "is_late",
        "model",
        "owner",
        "requests",
        "run_rows",
        "sequences",
        "slot",
    )

    def __init__(
        self,
        number: int,
        model: str,
        inputs: Sequence[SessionTensor],
        slot: InputSlot | None,
        requests: tuple[RequestPart, ...],
        sequences: tuple[SequenceRow, ...],
        rows: int,
        owner: BatchOwner,
    ) -> None:
        self.batch = number
        self.model = model
        self.inputs = inputs
        self.slot = slot
        self.requests = requests
        self.sequences = sequences
        self.run_rows = rows
        self.owner = owner
        self.arrived_ns = self.due_ns = 0
        self.claim: int | None = None
        self.is_late = False


class WorkerHost:
    """Runs batches on the worker process of one partition, in the order in which they come.

    `input_bytes` and `output_bytes` are the memory that it shares with that process. A batch that does not end within
    `batch_timeout_s` (see `HangDetector`) ends the process. It is started again whenever it ends.
    """

    def __init__(
        self,
        partition: Partition,
        input_bytes: int,
        output_bytes: int,
        events: HostEvents,
        batch_timeout_s: float = BATCH_TIMEOUT_S,
        quarantine: QuarantineSettings = DEFAULT_QUARANTINE,
        loading: ModelLoadingSettings = DEFAULT_MODEL_LOADING,
        controls: Mapping[str, MpsControl] = {},
        launch: Launch = launch_worker,
    ) -> None:
        self.partition = partition
        self._events = events
        self._batch_timeout_s = batch_timeout_s
        spec = WorkerSpec(partition, (), output_bytes, loading=loading)
        self._supervisor = Supervisor([spec], self, quarantine=quarantine, controls=controls, launch=launch)
        self._slots = InputSlots(self._supervisor, input_bytes)
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self.models: dict[str, RemoteModel] = {}
        """The models that the worker is to hold."""
        self.loaded: dict[str, LoadResult] = {}
        """Those that it holds, with their latencies."""
        self._files: dict[str, ModelFile] = {}
        self._dropping: set[str] = set()
        """Keys of which the worker has to drop a model before another one may be loaded."""
        self._unloading: set[str] = set()
        """Those of them of which `unload` ordered it."""
        self._tables: dict[str, LatencyTable] = {}
        self._loading: dict[str, None] = {}
        self._waiting: deque[HostedBatch] = deque()
        self._sent: dict[int, HostedBatch] = {}
        """The batches that the worker process has, in their order."""
        self._suspended: dict[int, HostedBatch] = {}
        self._process: WorkerProcess | None = None
        self._ready: WorkerReady | None = None
        self._detector: HangDetector | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._region = 0
        self._slots_in_use = 0
        self._lost_regions: dict[int, int] = {}
        """The slots in use of output regions of lost processes."""
        self._freed: list[int] = []
        self.reason = "the worker is starting"
        """Why there is no worker."""
        self.readiness: Callable[[int, bool], None] = _forget_readiness
        """Gets the answers to `ask_ready`."""
        self.on_idle: Callable[[], None] | None = None
        """Called when no batch is left."""

    def start(self) -> None:
        """Start the worker process."""
        self._supervisor.start()

    async def close(self, timeout_s: float = 5.0) -> None:
        """End the worker process and release all shared memory."""
        if self._detector is not None:
            self._detector.stop()
        if self._timer is not None:
            self._timer.cancel()
        await self._supervisor.drain(timeout_s)
        for batch in self._sent.values():
            self._drop_claim(batch)

    @property
    def worker(self) -> ServedWorker | None:
        """The worker process with the models that it holds; None while there is none."""
        ready = self._ready
        if ready is None:
            return None
        return ServedWorker(ready.pid, ready.cores, ready.evidence, tuple(self.loaded.values()))

    @property
    def open_batches(self) -> int:
        """The batches that have no answer."""
        return len(self._waiting) + len(self._sent) + len(self._suspended)

    # -- models

    def load(self, model: RemoteModel, path: str) -> None:
        """Load a model whose file is here; `model_loaded` follows, at once if the worker holds it already."""
        key = model.key
        file = ModelFile(
            key,
            path,
            model.backend,
            model.menu,
            model.batchable,
            model.confidences,
            model.table,
            model.config,
            model.memory_measured,
            model.declared,
        )
        before = self.models.get(key)
        if before is None:
            self._slots.join(1)
        elif is_same_model(before, model) and self._files[key].path == path and key not in self._dropping:
            if key in self.loaded:
                self._events.model_loaded(self.loaded[key])
            return  # otherwise it is being loaded
        self.models[key], self._files[key] = model, file
        if before is not None and key not in self._dropping:
            self._drop(key)
        if key not in self._dropping:
            self._order(file)

    def unload(self, key: str) -> None:
        """Unload a model after the batches that were submitted before; `model_unloaded` follows."""
        if self._forget(key):
            if self._process is None:
                self._events.model_unloaded(key)
            else:
                self._unloading.add(key)
                if key not in self._dropping:
                    self._drop(key)
        elif key not in self._dropping:
            self._events.model_unloaded(key)

    def _forget(self, key: str) -> bool:
        """Hold a model no longer; returns false if it was not to be held."""
        if self.models.pop(key, None) is None:
            return False
        del self._files[key]
        self._slots.leave(1)
        return True

    def _order(self, file: ModelFile) -> None:
        if self._process is not None:  # the next one gets all of them
            self._loading[file.key] = None
            self._supervisor.load(self.partition.name, file)

    def _drop(self, key: str) -> None:
        """Have the worker drop a model once it has been sent the batches that wait for it."""
        self._dropping.add(key)
        self.loaded.pop(key, None)
        if not any(each.model == key for each in self._waiting):
            self._supervisor.unload(self.partition.name, key)

    def ask_ready(self, number: int, key: str) -> bool:
        """Ask a model whether it is ready; returns false if it is not held."""
        if self._process is None or key not in self.loaded:
            return False
        self._process.send(AskReady(number, key))
        return True

    # -- batches

    def place(self, model: str, nbytes: int) -> InputSlot:
        """Memory for the inputs of a batch. Raises PartitionError if it is short."""
        return self._slots.allocate(model, nbytes)

    def free(self, slot: InputSlot) -> None:
        """Return memory in which no batch was submitted."""
        self._slots.free(slot)

    def submit(
        self,
        model: str,
        inputs: Sequence[SessionTensor],
        slot: InputSlot | None,
        deadline_in_ns: int,
        requests: tuple[RequestPart, ...],
        sequences: tuple[SequenceRow, ...],
        owner: BatchOwner,
    ) -> int:
        """Run a batch, whose inputs are in `slot` (None: they have no bytes); returns its number here."""
        held = self.models.get(model)
        rows = inputs[0].shape[0] if held is not None and held.batchable and inputs and inputs[0].shape else 1
        batch = HostedBatch(next(self._numbers), model, inputs, slot, requests, sequences, rows, owner)
        batch.arrived_ns = monotonic_ns()
        if deadline_in_ns:
            batch.due_ns = batch.arrived_ns + deadline_in_ns
        if self._process is None:
            self._answer_refused(batch, Fault.LOST, self.reason)
        elif model not in self.loaded:
            self._answer_refused(batch, Fault.RESOURCES, f"the worker does not hold {model:.200}")
        else:
            self._waiting.append(batch)
            self._send_next()
        return batch.batch

    def withdraw(self, number: int) -> None:
        """Take a batch back if it has not begun: at once, even while the worker process runs another one."""
        for position, batch in enumerate(self._waiting):
            if batch.batch == number:
                del self._waiting[position]
                self._answer_withdrawn(batch)
                return
        if (sent := self._sent.get(number)) is not None and self._take_back(sent):
            self._answer_withdrawn(sent)

    def _take_back(self, batch: HostedBatch) -> bool:
        """Take a batch that was sent from the worker process; False if it has begun, or says so itself."""
        if batch.claim is None:
            if self._process is not None:
                self._process.send(WithdrawBatch(batch.batch))
            return False
        if not take(batch.claim):
            return False
        del self._sent[batch.batch]
        self._send_next()
        return True

    def _send_next(self) -> None:
        """Send batches to the worker process until it has enough."""
        while self._waiting and len(self._sent) < SENT_AHEAD and self._process is not None:
            batch = self._waiting.popleft()
            if batch.due_ns and monotonic_ns() >= batch.due_ns:
                self._answer_late(batch)
                continue
            run = RunBatch(
                batch.batch,
                batch.model,
                tuple(_located(batch.inputs, batch.slot)),
                tuple(self._freed),
                batch.requests,
                batch.sequences,
            )
            batch.claim = new_claim() if self._sent else None
            try:
                self._process.send(run, () if batch.claim is None else (batch.claim,))
            except PartitionError as error:
                self._answer_refused(batch, Fault.RESOURCES, str(error))
                continue
            self._freed.clear()
            self._sent[batch.batch] = batch
            if len(self._sent) == 1 and self._detector is not None:
                self._detector.restart()
            if batch.model in self._dropping and not any(each.model == batch.model for each in self._waiting):
                self._supervisor.unload(self.partition.name, batch.model)
        self._watch_next()

    def _watch_next(self) -> None:
        """Take back the batch that is sent ahead once it cannot begin in time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if len(self._sent) < SENT_AHEAD:
            return
        batch = list(self._sent.values())[-1]
        if batch.due_ns and not batch.is_late:
            delay_s = max(batch.due_ns - monotonic_ns(), 0) / NS_PER_S
            self._timer = self._loop.call_later(delay_s, self._late, batch)

    def _late(self, batch: HostedBatch) -> None:
        self._timer = None
        if batch.batch in self._sent:
            batch.is_late = True
            if self._take_back(batch):
                self._answer_late(batch)

    def _answer_late(self, batch: HostedBatch) -> None:
        self._answer_refused(batch, Fault.DEADLINE, "its deadline passed before it began")

    def _answer_refused(self, batch: HostedBatch, fault: Fault, reason: str) -> None:
        self._release(batch)
        batch.owner.refused(fault, reason)
        self._ended()

    def _answer_withdrawn(self, batch: HostedBatch) -> None:
        self._release(batch)
        batch.owner.withdrawn()
        self._ended()

    def _release(self, batch: HostedBatch) -> None:
        """Free what a batch has here, once it has ended or is not to begin."""
        if batch.slot is not None:
            self._slots.free(batch.slot)
            batch.slot = None
        self._drop_claim(batch)

    @staticmethod
    def _drop_claim(batch: HostedBatch) -> None:
        if batch.claim is not None:
            os.close(batch.claim)
            batch.claim = None

    def _ended(self) -> None:
        if self.on_idle is not None and not self.open_batches:
            self.on_idle()

    # -- the worker process (see `WorkerCallbacks`)

    def worker_ready(self, partition: str, worker: WorkerProcess, ready: WorkerReady, output_region: int) -> None:
        """Take a new process into service."""
        self._process, self._ready, self._region = worker, ready, output_region
        self._slots_in_use, self._freed = 0, []
        for result in ready.models:
            self._note_loaded(result)
        overdue = partial(self._supervisor.recovery.end_worker, partition, worker)
        self._detector = HangDetector(
            self._sent, self._tables, self._loading, self._batch_timeout_s, worker.deliver_pending, overdue
        )
        present = self.worker
        assert present is not None, "it has just come up"
        self._events.worker_back(ServedWorker(present.pid, present.cores, present.evidence, ready.models))
        tried = {result.key for result in ready.models}
        for key, file in list(self._files.items()):
            if key not in tried:
                self._order(file)

    def _note_loaded(self, result: LoadResult) -> None:
        key = result.key
        if result.table is None:
            self._forget(key)
            self._supervisor.forget_model(key)
        elif key in self.models and key not in self._dropping:
            self.loaded[key] = result
            self._tables[key] = result.table

    def worker_lost(self, partition: str, reason: str) -> None:
        """Refuse the batches that the process had; the next one is sent those that wait for it no more either."""
        log(logger, logging.WARNING, "worker lost", partition=partition, reason=reason)
        was_up = self._process is not None
        self._process = self._ready = None
        self.reason = reason
        if self._detector is not None:
            self._detector.stop()
            self._detector = None
        if self._slots_in_use:
            self._lost_regions[self._region], self._slots_in_use = self._slots_in_use, 0
        elif was_up:
            self._supervisor.drop_region(self._region)
        failed = [*self._sent.values(), *self._suspended.values(), *self._waiting]
        self._sent.clear()
        self._suspended.clear()
        self._waiting.clear()
        self._dropped_with_worker()
        for batch in failed:
            self._answer_refused(batch, Fault.LOST, reason)
        if was_up:
            self._events.worker_lost(reason)

    def _dropped_with_worker(self) -> None:
        """The process that is lost holds nothing."""
        self.loaded.clear()
        self._loading.clear()
        dropped, self._dropping = self._dropping, set()
        unloaded, self._unloading = self._unloading, set()
        for key in dropped:
            self._supervisor.forget_model(key)
        for key in sorted(unloaded):
            self._events.model_unloaded(key)

    def runs_retry(self, partition: str) -> bool:
        """False: only the gateway knows which requests have failed before."""
        return False

    def worker_replaced(
        self,
        partition: str,
        worker: WorkerProcess,
        ready: WorkerReady,
        output_region: int,
        tables: dict[str, LatencyTable],
    ) -> None:
        """The partition of a worker server keeps its size."""
        raise AssertionError("no replacement is asked for")

    def worker_gone(self, worker: WorkerProcess, reason: str) -> None:
        """See `worker_replaced`."""
        raise AssertionError("no replacement is asked for")

    def model_loaded(self, partition: str, model: LoadResult) -> None:
        """A load has finished."""
        self._loading.pop(model.key, None)
        if self._detector is not None and self._sent:
            self._detector.restart()
        if model.key not in self._dropping:
            self._note_loaded(model)
            self._events.model_loaded(model)

    def model_unloaded(self, partition: str, key: str) -> None:
        """An unload has finished."""
        self._dropping.discard(key)
        self._supervisor.forget_model(key)
        self._tables.pop(key, None)
        if (file := self._files.get(key)) is not None:
            self._order(file)
        if key in self._unloading:
            self._unloading.discard(key)
            self._events.model_unloaded(key)

    def message(self, partition: str, worker: WorkerProcess, message: BatchReport) -> None:
        """Take an answer of the process. Raises PartitionError for one that does not fit what it was sent."""
        number = message.batch
        if isinstance(message, ResponseSent):
            raise PartitionError(f"a response of batch {number} came; {NO_RESPONSES}")
        batch = self._sent.get(number) or self._suspended.get(number)
        if batch is None or worker is not self._process:
            raise PartitionError(f"an answer to batch {number}, expected one of {sorted(self._sent) or 'none'}")
        if isinstance(message, BatchRefused) and message.fault is BatchFault.DEVICE:
            self._supervisor.recovery.context_lost(partition, worker, message.message)
            return
        self._sent.pop(number, None)
        if isinstance(message, BatchWaits):
            self._suspended[number] = batch
        else:
            self._suspended.pop(number, None)
        if self._sent and self._detector is not None:
            self._detector.restart()
        self._send_next()
        if isinstance(message, BatchFinished):
            self._finished(batch, message)
        elif isinstance(message, BatchRefused):
            self._answer_refused(batch, _FAULTS[message.fault], message.message)
        elif isinstance(message, BatchWithdrawn) and batch.is_late:
            self._answer_late(batch)
        elif isinstance(message, BatchWithdrawn):
            self._answer_withdrawn(batch)

    def _finished(self, batch: HostedBatch, message: BatchFinished) -> None:
        self._release(batch)
        outputs = [self._view(output) for output in message.outputs]
        waited_ns = max(message.started_ns - batch.arrived_ns, 0)
        batch.owner.finished(message, waited_ns, outputs, self._keep(message))
        self._ended()

    def _view(self, output: OutputTensor) -> memoryview:
        memory = self._supervisor.region(output.region).view
        return memory[output.offset : output.offset + output.nbytes]

    def _keep(self, message: BatchFinished) -> Callable[[], None]:
        """Keep the outputs of a batch until the result is called."""
        if message.slot < 0:
            if not message.outputs:
                return _nothing
            overflow = message.outputs[0].region
            return lambda: self._supervisor.drop_region(overflow)
        process, region, slot = self._process, self._region, message.slot
        self._slots_in_use += 1

        def free() -> None:
            if process is self._process:
                self._slots_in_use -= 1
                self._freed.append(slot)
            else:
                self._freed_of_lost(region)

        return free

    def _freed_of_lost(self, region: int) -> None:
        """Drop the output region of a lost process with the last of its outputs."""
        self._lost_regions[region] -= 1
        if not self._lost_regions[region]:
            del self._lost_regions[region]
            self._supervisor.drop_region(region)

    def model_called(self, partition: str, worker: WorkerProcess, call: CallModel, fd: int) -> None:
        """Refuse the call of a model."""
        os.close(fd)
        worker.send(AnswerCall(call.call, CallResult(error=NO_CALLS, code=FailureCode.UNSUPPORTED)))

    def readiness_reported(self, partition: str, report: ReadinessReport) -> None:
        """A model has said whether it is ready."""
        self.readiness(report.number, report.is_ready)


def is_same_model(one: RemoteModel, other: RemoteModel) -> bool:
    """True if two orders are for the same model: they may know more or less of its latency and memory."""
    return _identity(one) == _identity(other)


def _identity(model: RemoteModel) -> RemoteModel:
    path = model.path if model.files is None else model.files.digest
    return msgspec.structs.replace(model, path=path, table=None, memory_measured=False, files=None, peers=())


def _located(inputs: Sequence[SessionTensor], slot: InputSlot | None) -> list[InputTensor]:
    """The inputs of a batch where the worker process reads them."""
    if slot is None:
        return [InputTensor(each.name, each.datatype, each.shape, ()) for each in inputs]
    begins = offsets_of(inputs)
    return [
        InputTensor(each.name, each.datatype, each.shape, (Segment(slot.region, slot.offset + begin, each.nbytes),))
        for begin, each in zip(begins, inputs, strict=False)
    ]


def _forget_readiness(number: int, is_ready: bool) -> None:
    del number, is_ready


def _nothing() -> None:
    """Frees nothing."""
