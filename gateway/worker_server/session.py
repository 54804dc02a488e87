"""The worker server's end of a session: the lease of one gateway."""

import asyncio
import logging
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from sluice.gateway.tensors.input_slots import InputSlot
from sluice.gateway.worker_protocol.link import SessionLink
from sluice.gateway.worker_protocol.messages import (
    Asked,
    AskModelReady,
    Drain,
    Draining,
    Fault,
    FilePart,
    Finished,
    FromWorkerServer,
    Hello,
    Loaded,
    ModelReadiness,
    Ping,
    Pong,
    RemoteLoad,
    RemoteModel,
    RemoteRun,
    RemoteUnload,
    RunRefused,
    ServedWorker,
    SessionTensor,
    Unloaded,
    Withdraw,
    Withdrawn,
    WorkerBack,
    WorkerLost,
    message_name,
)
from sluice.gateway.worker_server.host import NO_RESPONSES, WorkerHost
from sluice.gateway.worker_server.model_files import FileLoads, GatewayFiles, ModelFiles
from sluice.models.errors import PartitionError
from sluice.models.triton_config.model_config import decode_config
from sluice.mps.ipc.messages import BatchFinished, LoadResult

logger = logging.getLogger(__name__)

MOST_BATCHES = 256
"""Batches of a session that may be open."""
MOST_MODELS = 4096
MOST_NAME = 256
MOST_KEY = 1024
_KEY = re.compile(r".+:[0-9]+(@[0-9]+)?")
MOST_LOADING = 1024
"""Loads of a session that may be under way."""
LATE_S = 0.05
"""A check that found nothing looks once more after this time: timers run before what has come is read."""
BACKENDS = frozenset(("onnxruntime", "python", "timed"))
"""The backends of models that a worker loads."""


class SessionOwner(Protocol):
    """The worker server."""

    host: WorkerHost
    files: ModelFiles

    def session_ended(self, session: "LeasedSession", reason: str) -> None:
        """The lease is over."""
        ...


class LeasedSession:
    """The session of a gateway that has the lease, numbered `number`, over `link`.

    What comes is carried out by the host. When the session ends, batches that have not begun are taken back, and the
    results of the others are dropped.
    """

    def __init__(self, owner: SessionOwner, link: SessionLink, hello: Hello, number: int) -> None:
        self.number = number
        self.gateway = hello.gateway
        self._owner = owner
        self._host = owner.host
        self._link = link
        self._lease_s = hello.lease_s
        self._loop = asyncio.get_running_loop()
        self._batches: dict[int, int] = {}
        """The host's numbers of the open batches, by the gateway's."""
        self._slot: InputSlot | None = None
        """The memory of a batch whose tensors have not all come."""
        self._refusal = ""
        self._loading: set[str] = set()
        self._unloading: set[str] = set()
        self._gateway_files = GatewayFiles(self._send)
        self._files_loading = FileLoads(owner.files, self._gateway_files, self._have_files, self._have_no_files)
        self._unclaimed = set(owner.host.models)
        """Models of an earlier session that this one has not asked for."""
        self._is_over = self._is_draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._watch(False)

    # -- the lease

    def _watch(self, again: bool) -> None:
        silent_s = self._loop.time() - self._link.last_read_s
        if silent_s < self._lease_s:
            self._timer = self._loop.call_later(self._lease_s - silent_s + 0.001, self._watch, False)
        elif not again:
            self._timer = self._loop.call_later(LATE_S, self._watch, True)
        else:
            self._link.fail(
                f"the lease is over: nothing has come for {silent_s:.1f} s, expected a Ping within {self._lease_s:g} s"
            )

    def close(self, reason: str) -> None:
        """End the session from this side."""
        self.ended(reason)
        self._link.close(reason)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that wait to be sent."""
        return self._link.unsent_bytes

    def ended(self, reason: str) -> None:
        """The session is over: take back what has not begun."""
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._drop_slot()
        self._files_loading.close()
        self._gateway_files.close(reason)
        self._withdraw_all()
        self._owner.session_ended(self, reason)

    def _withdraw_all(self) -> None:
        """Take back what has not begun, the last batches first: none is sent to the process in place of another one."""
        for number in reversed(list(self._batches.values())):
            self._host.withdraw(number)

    def asked(self, gateway: str, workers: int) -> None:
        """Another gateway, which has that many workers, was refused."""
        self._send(Asked(gateway, workers))

    def drain(self, reason: str) -> None:
        """Take no new batches."""
        self._is_draining = True
        self._send(Draining(reason))

    # -- what comes

    def place(self, message: Any, size: int) -> memoryview | None:
        """The memory for the inputs of a batch."""
        if not isinstance(message, RemoteRun):
            raise PartitionError(f"a {message_name(message)} came with tensors")
        self._refusal = ""
        try:
            slot = self._host.place(message.model, size)
        except PartitionError as error:
            self._refusal = str(error)
            return None
        self._slot = slot
        return slot.view[slot.offset : slot.offset + size]

    def _drop_slot(self) -> None:
        if self._slot is not None:
            self._host.free(self._slot)
            self._slot = None

    def take(self, message: Any, body: memoryview | None) -> None:
        """Carry out a message. Raises PartitionError for one that no gateway sends."""
        if isinstance(message, RemoteRun):
            self._run(message)
        elif isinstance(message, Ping):
            self._link.send_urgent(Pong(message.number, message.sent_ns, 0))
        elif isinstance(message, Withdraw):
            if (number := self._batches.get(message.batch)) is not None:
                self._host.withdraw(number)
        elif isinstance(message, RemoteLoad):
            self._load(message.model)
        elif isinstance(message, RemoteUnload):
            self._unload(message.key)
        elif isinstance(message, AskModelReady):
            if not self._host.ask_ready(message.number, message.key):
                self._send(ModelReadiness(message.number, False))
        elif isinstance(message, FilePart):
            self._gateway_files.answered(message)
        elif isinstance(message, Drain):
            self._is_draining = True
            self._withdraw_all()
        else:
            raise PartitionError(f"a {message_name(message)} came within a session")

    def _run(self, message: RemoteRun) -> None:
        slot, self._slot = self._slot, None
        if message.batch in self._batches:
            if slot is not None:
                self._host.free(slot)
            raise PartitionError(f"batch {message.batch} came again before it had its answer")
        if self._unclaimed:
            self._drop_unclaimed()
        refusal = self._refusal
        if self._is_draining:
            refusal = "the worker server is stopping"
        elif len(self._batches) >= MOST_BATCHES:
            refusal = f"{MOST_BATCHES} batches are open already"
        if refusal:
            if slot is not None:
                self._host.free(slot)
            self._refusal = ""
            self._send(RunRefused(message.batch, refusal, Fault.RESOURCES))
            return
        owner = _Answer(self, message.batch)
        self._batches[message.batch] = 0
        number = self._host.submit(
            message.model,
            message.inputs,
            slot,
            max(message.deadline_in_ns, 0),
            message.requests,
            message.sequences,
            owner,
        )
        if message.batch in self._batches:
            self._batches[message.batch] = number

    def _load(self, model: RemoteModel) -> None:
        self._unclaimed.discard(model.key)
        reason = ""
        if len(model.key) > MOST_KEY or not (model.key.isprintable() and _KEY.fullmatch(model.key)):
            reason = (
                f"expected a model NAME:VERSION, of at most {MOST_KEY} printable characters, got {model.key[:80]!r}"
            )
        elif len(self._host.models) >= MOST_MODELS and model.key not in self._host.models:
            reason = f"the worker holds {MOST_MODELS} models already"
        elif len(self._loading) >= MOST_LOADING:
            reason = f"{MOST_LOADING} models are being loaded already"
        elif model.backend not in BACKENDS:
            reason = f"expected a backend of {', '.join(sorted(BACKENDS))}, got '{model.backend:.80}'"
        elif trouble := _unsuitable(model):
            reason = trouble
        elif model.files is None and not os.path.exists(model.path):  # which is false for what is no path at all
            reason = f"{model.path} is not on this machine"
        if reason:
            self._send(Loaded(LoadResult(model.key, None, reason)))
            return
        if model.key not in self._host.loaded:
            self._drop_unclaimed()
        self._loading.add(model.key)
        if model.files is not None:
            self._files_loading.begin(model, model.files)
        else:
            self._host.load(model, model.path)

    def _have_files(self, model: RemoteModel, path: str) -> None:
        self._host.load(model, path)

    def _have_no_files(self, model: RemoteModel, reason: str) -> None:
        self.model_loaded(LoadResult(model.key, None, reason))

    def _unload(self, key: str) -> None:
        self._unclaimed.discard(key)
        if self._files_loading.give_up(key):
            self._loading.discard(key)
        self._unloading.add(key)
        self._host.unload(key)

    def _drop_unclaimed(self) -> None:
        unclaimed, self._unclaimed = self._unclaimed, set()
        for key in unclaimed:
            self._host.unload(key)

    # -- what the host reports

    def model_loaded(self, result: LoadResult) -> None:
        """A load has finished."""
        if result.key in self._loading:
            self._loading.discard(result.key)
            self._send(Loaded(result))

    def model_unloaded(self, key: str) -> None:
        """An unload has finished; those of models of earlier sessions are not the gateway's."""
        if key in self._unloading:
            self._unloading.discard(key)
            self._send(Unloaded(key))

    def worker_lost(self, reason: str) -> None:
        """The worker process has ended."""
        self._send(WorkerLost(reason))

    def worker_back(self, worker: ServedWorker) -> None:
        """The worker process is up again."""
        self._loading.difference_update(result.key for result in worker.models)
        self._send(WorkerBack(worker))

    def readiness(self, number: int, is_ready: bool) -> None:
        """A model has said whether it is ready."""
        self._send(ModelReadiness(number, is_ready))

    def answer(self, batch: int, message: FromWorkerServer) -> None:
        """Send the answer to a batch that has no outputs."""
        self._batches.pop(batch, None)
        self._send(message)

    def finished(
        self, batch: int, answer: BatchFinished, waited_ns: int, outputs: Sequence[memoryview], free: Callable[[], None]
    ) -> None:
        """Send the outputs of a batch from where they lie."""
        self._batches.pop(batch, None)
        if self._is_over:
            free()
            return
        tensors = tuple(SessionTensor(each.name, each.datatype, each.shape, each.nbytes) for each in answer.outputs)
        ran_ns = answer.ended_ns - answer.started_ns
        message = Finished(batch, waited_ns, ran_ns, tensors, answer.confidences, answer.errors, answer.metrics)
        self._send(message, outputs, free)

    def _send(
        self, message: FromWorkerServer, tensors: Sequence[memoryview] = (), sent: Callable[[], None] | None = None
    ) -> None:
        if self._is_over:
            if sent is not None:
                sent()
            return
        try:
            self._link.send(message, tensors, sent)
        except PartitionError as error:
            if sent is not None:
                sent()
            self._loop.call_soon(self._link.fail, f"the gateway does not read its answers: {error}")


class _Answer:
    """Gets the answer to one batch of a session (see `BatchOwner`)."""

    __slots__ = ("_batch", "_session")

    def __init__(self, session: LeasedSession, batch: int) -> None:
        self._session = session
        self._batch = batch

    def finished(
        self, answer: BatchFinished, waited_ns: int, outputs: Sequence[memoryview], free: Callable[[], None]
    ) -> None:
        """The batch ran."""
        self._session.finished(self._batch, answer, waited_ns, outputs, free)

    def refused(self, fault: Fault, reason: str) -> None:
        """The batch failed or did not run."""
        self._session.answer(self._batch, RunRefused(self._batch, reason, fault))

    def withdrawn(self) -> None:
        """The batch was taken back."""
        self._session.answer(self._batch, Withdrawn(self._batch))


def _unsuitable(model: RemoteModel) -> str:
    """The reason why a model cannot run here by its configuration, "" if it can."""
    try:
        decoupled = bool(model.config) and decode_config(model.config).is_decoupled
    except msgspec.MsgspecError as error:
        return f"its configuration cannot be read: {error}"
    return NO_RESPONSES if decoupled else ""
