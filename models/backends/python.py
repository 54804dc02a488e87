"""Models written in Python, each in a process of its own, so that one cannot harm another.

A process that ends is restarted at once; the batch that it was running has failed. `python_models.model` describes the
models.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sluice.models.backends.base import GpuOptions
from sluice.models.backends.calling import BatchBroke, BatchRan, CallMade, Progress, ReadyAnswer, ResponseMade
from sluice.models.backends.metric_updates import MetricKind, MetricUpdate
from sluice.models.backends.python_models.model import tensors_of
from sluice.models.backends.python_models.wire import (
    LOADED,
    CallAnswered,
    CancelBatch,
    FromDecoupledModel,
    FromModel,
    LoadPythonModel,
    MessageLink,
    ModelCall,
    ModelFailed,
    ReadyQuestion,
    ReadyReply,
    Received,
    SentResponse,
    TakeNext,
    TensorBatch,
    TensorMemory,
    close_all,
)
from sluice.models.backends.requests import CallResult, FailureCode, RequestPart
from sluice.models.errors import BackendFailed, BadTensor, ModelProcessEnded
from sluice.models.processes import module_environment
from sluice.models.tensors.arrays import Array, numpy_dtype
from sluice.models.tensors.spec import DataType
from sluice.models.triton_config.model_config import decode_config

LOAD_TIMEOUT_S = 100.0
"""Shorter than a worker's own time limit for a model, so that the model fails before the worker is ended."""
END_TIMEOUT_S = 5.0
"""Time for a model to finish before it is killed."""
RELOAD_WAIT_S = 2.0
"""Time that batches, and with them the models of the same worker, wait for a restarted process."""
DROPPED_S = 5.0
"""Time for which a decoupled model may send responses that nobody reads, as when its latency is measured."""
_MEASURED = "other models cannot be called while the model is loaded and measured"
BESIDE_S = 0.02
"""Time that a batch has the worker for itself while others of its model wait; then it counts as one that waits."""
_RESTARTED = "the process of the model is restarted: {}"
_ENDED = "the batch that calls it has ended"
RETRY_S = 1.0
"""Delay before a process that failed to load its model is restarted."""


class PythonBackend:
    """The loaded model of a `model.py`; see `Backend` and `CallingBackend`.

    The outputs of a run are valid until the next one. A model that calls other models while it is measured gets errors:
    such a run ends with outputs of zeros. The responses of a decoupled model are then dropped, errors among them, and
    one that goes on for long is cancelled.
    """

    provider, threads = "", 0

    def __init__(self, start: LoadPythonModel) -> None:
        form = decode_config(start.config)
        self.inputs, self.outputs = tensors_of(form)
        self.is_decoupled = form.is_decoupled
        self._start = start
        self._keeps_sequences = form.sequence_batching is not None
        self._process: _Process | None = None
        self._retry_at = 0.0
        self._metrics: tuple[MetricUpdate, ...] = ()
        process = self._begin()
        try:
            process.loaded(LOAD_TIMEOUT_S)
            self._metrics = process.metrics
        except EOFError:
            raise BackendFailed(f"{start.path}: cannot be loaded: its process {self._end(process)}") from None
        except BaseException:
            self._end(process)
            raise

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; raises BackendFailed for an error of the model, and when its process ends."""
        return self.measure(inputs, ())

    def measure(self, inputs: Mapping[str, Array], requests: Sequence[RequestPart]) -> dict[str, Array]:
        """Run one batch of these requests for its time alone; see `CallingBackend`."""
        calls = False
        until_s = time.monotonic() + DROPPED_S
        progress = self.start(0, inputs, requests)
        while True:
            for each in progress:
                if isinstance(each, BatchBroke):
                    if calls:
                        return self._zeros(inputs)
                    raise BackendFailed(each.message)
                if isinstance(each, BatchRan):
                    if each.errors and not calls:
                        raise BackendFailed(each.errors[0].message)
                    self._metrics += tuple(map(_without_runs, each.metrics))
                    return each.outputs
                if isinstance(each, ResponseMade):
                    if time.monotonic() > until_s:
                        self.cancel(0)
                    self.taken(0)
                if not isinstance(each, CallMade):
                    continue
                calls = True
                os.close(each.fd)
                self.answer(each.call, CallResult(error=_MEASURED, code=FailureCode.UNAVAILABLE), ())
            progress = self._go_on(None)

    def start(self, batch: int, inputs: Mapping[str, Array], requests: Sequence[RequestPart]) -> list[Progress]:
        """Start a batch; see `CallingBackend`. An error of the model is among the progress."""
        progress: list[Progress] = []
        try:
            self._hand_over(batch, inputs, requests, progress)
        except BackendFailed as error:
            return [*progress, BatchBroke(batch, str(error), isinstance(error, ModelProcessEnded))]
        if self.is_decoupled:
            return progress
        # The batches that wait may have to go on before this one can, as those that share a pool of threads with it.
        is_alone = self._process is None or len(self._process.batches) < 2
        until_s = time.monotonic() + BESIDE_S
        while not any(each.batch == batch for each in progress):
            left_s = until_s - time.monotonic()
            if left_s <= 0 and not is_alone:
                break
            progress += self._go_on(None if is_alone else left_s)
        return progress

    def resume(self) -> list[Progress]:
        """The progress of batches that waited; see `CallingBackend`."""
        return self._go_on(0)

    def taken(self, batch: int) -> None:
        """Let a decoupled model go on; see `CallingBackend`."""
        if self._process is not None:
            self._process.tell(batch, TakeNext)

    def cancel(self, batch: int) -> None:
        """Tell a decoupled model that its client has gone; see `CallingBackend`."""
        if self._process is not None:
            self._process.tell(batch, CancelBatch)

    def answer(self, call: int, result: CallResult, fds: Sequence[int]) -> None:
        """Answer a call; see `CallingBackend`."""
        if self._process is not None:
            self._process.answer_call(call, result, fds)

    @property
    def tells_ready(self) -> bool:
        """True if the model says by itself whether it is ready."""
        return self._process is not None and self._process.tells_ready

    def ask_ready(self, number: int) -> bool:
        """Ask the model whether it is ready; see `CallingBackend`."""
        return self._process is not None and self._process.was_loaded and self._process.ask_ready(number)

    def take_metrics(self) -> tuple[MetricUpdate, ...]:
        """The metrics of a process that has loaded; see `CallingBackend`. Runs that only measured do not count."""
        taken, self._metrics = self._metrics, ()
        return taken

    def filenos(self) -> Sequence[int]:
        """The descriptors to watch; see `CallingBackend`."""
        return () if self._process is None else self._process.filenos()

    def _go_on(self, timeout_s: float | None) -> list[Progress]:
        """Wait for the next message of the process; returns what it says, or the end of its batches."""
        process = self._process
        if process is None:
            return []
        try:
            progress = process.progress(timeout_s)
        except TimeoutError:
            return []
        except EOFError:
            return self._replace(process)[1]
        except _Misanswered as error:
            return self._replace(process, _RESTARTED.format(error))[1]
        return [] if progress is None else [progress]

    def _replace(self, process: "_Process", reason: str = "") -> tuple[str, list[Progress]]:
        """Replace a process; returns the reason or how it ended, and the failures of its batches."""
        batches, asked = process.batches, process.asked
        ended = self._end(process)
        reason = reason or f"the process of the model {ended}"
        try:
            self._begin()
        except BackendFailed as error:  # the next batch tries again
            reason = str(error)
        broken = [BatchBroke(batch, reason, process_ended=True) for batch in batches]
        return reason, [*broken, *(ReadyAnswer(each, False) for each in asked)]

    def _zeros(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        if self.is_decoupled:
            return {}
        rows = next(iter(inputs.values())).shape[:1]
        return {
            output.name: np.full(
                [rows[0] if index == 0 and size < 0 else max(size, 1) for index, size in enumerate(output.shape)],
                b"" if output.datatype is DataType.BYTES else 0,
                numpy_dtype(output.datatype),
            )
            for output in self.outputs
        }

    def _hand_over(
        self, batch: int, inputs: Mapping[str, Array], requests: Sequence[RequestPart], lost: list[Progress]
    ) -> None:
        """Give a batch to the process. Raises BackendFailed, and ModelProcessEnded if its sequences are gone.

        A process that has ended meanwhile is replaced, and the failures of batches that it had go to `lost`. The first
        batch of sequences after that fails.
        """
        if self._retry_at and time.monotonic() < self._retry_at:
            raise BackendFailed("the process of the model could not be restarted; it will be retried soon")
        process = self._process or self._begin()
        try:
            if not self._take(process, batch, inputs, requests):
                reason, broken = self._replace(process)
                lost += broken
                if self._keeps_sequences:
                    raise ModelProcessEnded(reason)
                process = self._process or self._begin()
                if not self._take(process, batch, inputs, requests):
                    raise EOFError
        except EOFError:
            raise ModelProcessEnded(self._replace(process)[0]) from None
        except _Misanswered as error:
            raise ModelProcessEnded(self._replace(process, _RESTARTED.format(error))[0]) from None
        except _NotLoaded as error:
            reason = f"the model could not be loaded again: {error}"
            raise ModelProcessEnded(self._replace(process, reason)[0]) from error

    def _take(
        self, process: "_Process", batch: int, inputs: Mapping[str, Array], requests: Sequence[RequestPart]
    ) -> bool:
        """Give the process a batch once it has loaded; returns False when it has ended."""
        if not process.was_loaded:
            process.loaded(process.started_s + RELOAD_WAIT_S - time.monotonic())
            self._metrics += process.metrics
        self._retry_at = 0.0
        return process.take(batch, inputs, requests)

    def _begin(self) -> "_Process":
        """Start a process, which loads while other models run; raises BackendFailed when none can be started now."""
        try:
            process = _Process(self._start, FromDecoupledModel if self.is_decoupled else FromModel)
        except OSError as error:
            self._retry_at = time.monotonic() + RETRY_S
            raise BackendFailed(f"the process of the model cannot be started: {error}") from error
        self._process = process
        self._finish = weakref.finalize(self, process.end)
        return process

    def _end(self, process: "_Process") -> str:
        """Forget the process; returns how it ended."""
        self._process = None
        self._finish.detach()
        ended = process.end()
        if not process.was_loaded:
            self._retry_at = time.monotonic() + RETRY_S
        return ended


def _without_runs(update: MetricUpdate) -> MetricUpdate:
    """A metric without what was counted while the model was measured; a gauge keeps its value."""
    if update.kind is MetricKind.GAUGE:
        return update
    return msgspec.structs.replace(update, value=0.0, counts=(0,) * len(update.counts))


class _NotLoaded(BackendFailed):
    """The process reports why it could not load the model."""


class _Misanswered(BackendFailed):
    """A message is no answer to the batch that runs, or comes from another process."""


class _Open(NamedTuple):
    """A batch that a process has, and the memory for its outputs."""

    batch: int
    outputs: TensorMemory


class _Process:
    """A process that starts loading a model at once; `incoming` is the union of the messages that it may send."""

    def __init__(self, start: LoadPythonModel, incoming: Any) -> None:
        self.was_loaded = False
        self._number = LOADED
        self.metrics: tuple[MetricUpdate, ...] = ()
        self.tells_ready = False
        self.asked: list[int] = []
        self._open: dict[int, _Open] = {}
        self._main_is_taken = False
        self.started_s = time.monotonic()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.enter_context(their_end)
            ours.enter_context(our_end)
            self._link = MessageLink(our_end, incoming)
            self._inputs, self._outputs = (TensorMemory(_memory(name, ours)) for name in ("in", "out"))
            # Closed when this process ends, so that the other one does not outlive it.
            life, our_life = os.pipe()
            theirs.callback(os.close, life)
            ours.callback(os.close, our_life)
            fds = {"socket": their_end.fileno(), "inputs": self._inputs.fd, "outputs": self._outputs.fd, "life": life}
            self._process = ours.enter_context(_spawn(fds))
            ours.callback(self._process.kill)
            self._pidfd = os.pidfd_open(self._process.pid)
            ours.callback(os.close, self._pidfd)
            self._poll = select.poll()
            self._poll.register(self._link, select.POLLIN)
            self._poll.register(self._pidfd, select.POLLIN)
            with contextlib.suppress(ConnectionError):  # the receiver notices the end
                self._link.send(start)
            self._opened = ours.pop_all()  # `end` closes them

    def loaded(self, timeout_s: float) -> None:
        """Return when the model is loaded.

        Raises BackendFailed when it is not loaded within that time, _NotLoaded when loading has failed or taken too
        long, _Misanswered, and EOFError when the process ends.
        """
        try:
            answer = self._receive(max(timeout_s, 0)).message
        except TimeoutError:
            if time.monotonic() - self.started_s >= LOAD_TIMEOUT_S:
                raise _NotLoaded(f"it was not loaded within {LOAD_TIMEOUT_S:g} s") from None
            raise BackendFailed("the process of the model is being restarted") from None
        if not isinstance(answer, TensorBatch | ModelFailed) or answer.number != LOADED:
            raise self._misanswered("it sent another message before it was loaded")
        if isinstance(answer, ModelFailed):
            raise _NotLoaded(answer.message)
        self.metrics, self.tells_ready = answer.metrics, answer.tells_ready
        self.was_loaded = True

    @property
    def batches(self) -> list[int]:
        """The batches that it has not answered, in the order of their start."""
        return [each.batch for each in self._open.values()]

    def filenos(self) -> tuple[int, int]:
        """The descriptors that can be read when it has sent something, or has ended."""
        return self._link.fileno(), self._pidfd

    def take(self, batch: int, inputs: Mapping[str, Array], requests: Sequence[RequestPart]) -> bool:
        """Send it a batch; returns False when it has ended. Batches beside one that waits get memory of their own."""
        number = self._number = self._number + 1
        try:
            if not self._main_is_taken:
                places, size = self._inputs.write(inputs)
                self._link.send(TensorBatch(number, places, size, tuple(requests)))
                self._open[number] = _Open(batch, self._outputs)
                self._main_is_taken = True
                return True
            with contextlib.ExitStack() as opened:
                given, taken = (TensorMemory(_memory(name, opened)) for name in ("in", "out"))
                places, size = given.write(inputs)
                self._link.send(TensorBatch(number, places, size, tuple(requests)), [given.fd, taken.fd])
                self._open[number] = _Open(batch, TensorMemory(os.dup(taken.fd)))
        except ConnectionError:
            return False
        return True

    def ask_ready(self, number: int) -> bool:
        """Ask the model whether it is ready; returns False when the process has ended."""
        try:
            self._link.send(ReadyQuestion(number))
        except ConnectionError:
            return False
        self.asked.append(number)
        return True

    def answer_call(self, call: int, result: CallResult, fds: Sequence[int]) -> None:
        """Answer a call; an ended process is noticed when it is read."""
        with contextlib.suppress(ConnectionError):
            self._link.send(CallAnswered(call, result), fds)

    def tell(self, batch: int, kind: type[TakeNext] | type[CancelBatch]) -> None:
        """Send a message about a batch that it has; an ended process is noticed when it is read."""
        for number, each in self._open.items():
            if each.batch == batch:
                with contextlib.suppress(ConnectionError):
                    self._link.send(kind(number))

    def progress(self, timeout_s: float | None) -> Progress | None:
        """Return its next message; None for one that matters no more.

        Raises TimeoutError, _Misanswered, and EOFError when the process ends.
        """
        message, _, fds = self._receive(timeout_s)
        if isinstance(message, ReadyReply):
            close_all(fds)
            if message.number not in self.asked:
                raise self._misanswered("it said whether it is ready and was not asked")
            self.asked.remove(message.number)
            return ReadyAnswer(message.number, message.is_ready)
        if message.number not in self._open:
            close_all(fds)
            if isinstance(message, ModelCall) and LOADED < message.number <= self._number:
                # A thread of the model's own has called when its batch ended.
                self.answer_call(message.call, CallResult(error=_ENDED, code=FailureCode.CANCELLED), ())
                return None
            expected = " or ".join(map(str, self._open)) or "none"
            raise self._misanswered(f"it answered batch {message.number}, expected batch {expected}")
        if isinstance(message, ModelCall):
            if len(fds) != 1:
                close_all(fds)
                raise self._misanswered(f"a call came with {len(fds)} descriptors, expected 1")
            return CallMade(self._open[message.number].batch, message.call, message.request, fds[0])
        close_all(fds)
        if isinstance(message, SentResponse):
            return self._response(message)
        batch, outputs = self._open.pop(message.number)
        if outputs is self._outputs:
            self._main_is_taken = False
        if isinstance(message, ModelFailed):
            return BatchBroke(batch, message.message)
        try:
            return BatchRan(batch, outputs.read(message.places, message.size), message.errors, message.metrics)
        except (AssertionError, BadTensor) as error:
            return BatchBroke(batch, f"the outputs cannot be read: {error}")
        finally:
            if outputs is not self._outputs:
                os.close(outputs.fd)

    def _response(self, message: SentResponse) -> ResponseMade:
        batch, memory = self._open[message.number]
        try:
            outputs = memory.read(message.places, message.size)
        except (AssertionError, BadTensor) as error:
            raise self._misanswered(f"the outputs of a response cannot be read: {error}") from None
        return ResponseMade(batch, outputs, message.error, message.code, message.is_final)

    def _receive(self, timeout_s: float | None = None) -> Received:
        """Return the next message.

        Raises EOFError when the process ends, TimeoutError when nothing comes in time, and _Misanswered, after which
        the process is killed: there is no telling which of its later answers belongs to which batch.
        """
        ready = self._poll.poll(None if timeout_s is None else timeout_s * 1000)
        if not ready:
            raise TimeoutError
        # The socket alone is not enough: processes that the model has started may hold it open.
        if all(fd == self._pidfd for fd, _ in ready):
            raise EOFError("the process is gone")
        try:
            received = self._link.receive()
        except msgspec.MsgspecError as error:
            raise self._misanswered(f"it sent an unreadable message: {error}") from None
        if received.sender != self._process.pid:
            close_all(received.fds)
            raise self._misanswered(f"process {received.sender} answered in place of process {self._process.pid}")
        return received

    def _misanswered(self, reason: str) -> _Misanswered:
        self._process.kill()
        return _Misanswered(reason)

    def end(self) -> str:
        """Let it finish, kill it if it does not, and return how it ended."""
        self._link.close()
        close_all(each.outputs.fd for each in self._open.values() if each.outputs is not self._outputs)
        self._open.clear()
        with self._opened, contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_TIMEOUT_S)
        status = self._process.returncode
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"


def _memory(name: str, opened: contextlib.ExitStack) -> int:
    fd = os.memfd_create(f"sluice-python-{name}")
    opened.callback(os.close, fd)
    return fd


def _spawn(fds: Mapping[str, int]) -> "subprocess.Popen[bytes]":
    """Start the process with copies of the descriptors."""
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "sluice.models.backends.python_models.process"),
            *(part for name, fd in fds.items() for part in (f"--{name}", str(fd))),
        ],
        pass_fds=tuple(fds.values()),
        env=module_environment(),
        stdin=subprocess.DEVNULL,
    )


def load(path: str, threads: int, config: str = "", gpu: GpuOptions | None = None) -> PythonBackend:
    """Load the model of a `model.py` with the configuration `config`, in JSON.

    `threads` is the number of cores, which the model itself has to respect, as it has to choose its GPU. Raises
    BackendFailed.
    """
    del gpu
    if not config:
        raise BackendFailed(f"{path}: expected a config.pbtxt with its inputs and outputs")
    return PythonBackend(LoadPythonModel(path, threads, config))
