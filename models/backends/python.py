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
from collections.abc import Mapping

import msgspec

from sluice.models.backends.base import GpuOptions
from sluice.models.backends.python_models.model import tensors_of
from sluice.models.backends.python_models.wire import (
    LOADED,
    LoadPythonModel,
    MessageLink,
    ModelFailed,
    TensorBatch,
    TensorMemory,
)
from sluice.models.errors import BackendFailed, ModelProcessEnded
from sluice.models.processes import python_path
from sluice.models.tensors.arrays import Array
from sluice.models.triton_config.model_config import decode_config

LOAD_TIMEOUT_S = 100.0
"""Shorter than a worker's own time limit for a model, so that the model fails before the worker is ended."""
END_TIMEOUT_S = 5.0
"""Time for a model to finish before it is killed."""
RELOAD_WAIT_S = 2.0
"""Time that batches, and with them the models of the same worker, wait for a restarted process."""
RETRY_S = 1.0
"""Delay before a process that failed to load its model is restarted."""


class PythonBackend:
    """The loaded model of a `model.py`; see `Backend`. The outputs of a run are valid until the next one."""

    provider, threads = "", 0

    def __init__(self, start: LoadPythonModel) -> None:
        form = decode_config(start.config)
        self.inputs, self.outputs = tensors_of(form)
        self._start = start
        self._keeps_sequences = form.sequence_batching is not None
        self._process: _Process | None = None
        self._retry_at = 0.0
        process = self._begin()
        try:
            process.loaded(LOAD_TIMEOUT_S)
        except EOFError:
            raise BackendFailed(f"{start.path}: cannot be loaded: its process {self._end(process)}") from None
        except BaseException:
            self._end(process)
            raise

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; raises BackendFailed for an error of the model, and ModelProcessEnded when its process ends.

        A model without sequences runs the batch in a new process if the old one ended while it was idle.
        """
        if self._retry_at and time.monotonic() < self._retry_at:
            raise BackendFailed("the process of the model could not be restarted; it will be retried soon")
        process = self._process or self._begin()
        try:
            if not self._hand_over(process, inputs):
                ended = self._end(process)  # while it was idle
                process = self._begin()
                if self._keeps_sequences:
                    raise ModelProcessEnded(f"the process of the model {ended}")
                self._hand_over(process, inputs)
            return process.answer()
        except EOFError:
            ended = self._end(process)
            self._begin()
            raise ModelProcessEnded(f"the process of the model {ended}") from None
        except _Misanswered as error:
            self._end(process)
            self._begin()
            raise ModelProcessEnded(f"the process of the model is restarted: {error}") from None
        except _NotLoaded as error:
            self._end(process)
            self._begin()
            raise ModelProcessEnded(f"the model could not be loaded again: {error}") from error

    def _hand_over(self, process: "_Process", inputs: Mapping[str, Array]) -> bool:
        """Give the process a batch once it has loaded; returns False when it has ended."""
        if not process.was_loaded:
            process.loaded(process.started_s + RELOAD_WAIT_S - time.monotonic())
        self._retry_at = 0.0
        return process.take(inputs)

    def _begin(self) -> "_Process":
        """Start a process, which loads while other models run; raises BackendFailed when none can be started now."""
        try:
            process = _Process(self._start)
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


class _NotLoaded(BackendFailed):
    """The process reports why it could not load the model."""


class _Misanswered(BackendFailed):
    """A message is no answer to the batch that runs, or comes from another process."""


class _Process:
    """A process that starts loading a model at once."""

    def __init__(self, start: LoadPythonModel) -> None:
        self.was_loaded = False
        self._number = LOADED
        self.started_s = time.monotonic()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.enter_context(their_end)
            ours.enter_context(our_end)
            self._link = MessageLink(our_end, TensorBatch | ModelFailed)
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
            answer = self._receive(max(timeout_s, 0))
        except TimeoutError:
            if time.monotonic() - self.started_s >= LOAD_TIMEOUT_S:
                raise _NotLoaded(f"it was not loaded within {LOAD_TIMEOUT_S:g} s") from None
            raise BackendFailed("the process of the model is being restarted") from None
        if isinstance(answer, ModelFailed):
            raise _NotLoaded(answer.message)
        self.was_loaded = True

    def take(self, inputs: Mapping[str, Array]) -> bool:
        """Send it a batch; returns False when it has ended."""
        self._number += 1
        try:
            self._link.send(self._inputs.write(self._number, inputs))
        except ConnectionError:
            return False
        return True

    def answer(self) -> dict[str, Array]:
        """Return the outputs of the batch that it was sent.

        Raises BackendFailed, _Misanswered, and EOFError when the process ends.
        """
        answer = self._receive()
        if isinstance(answer, ModelFailed):
            raise BackendFailed(answer.message)
        return self._outputs.read(answer)

    def _receive(self, timeout_s: float | None = None) -> TensorBatch | ModelFailed:
        """Return the answer to the last message.

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
            answer, sender = self._link.receive()
        except msgspec.MsgspecError as error:
            raise self._misanswered(f"it sent an unreadable message: {error}") from None
        if sender != self._process.pid:
            raise self._misanswered(f"process {sender} answered in place of process {self._process.pid}")
        if answer.number != self._number:
            raise self._misanswered(f"it answered batch {answer.number}, expected batch {self._number}")
        checked: TensorBatch | ModelFailed = answer
        return checked

    def _misanswered(self, reason: str) -> _Misanswered:
        self._process.kill()
        return _Misanswered(reason)

    def end(self) -> str:
        """Let it finish, kill it if it does not, and return how it ended."""
        self._link.close()
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
        env=os.environ | {"PYTHONPATH": python_path()},
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
