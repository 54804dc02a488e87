"""Models written in Python, each in a process of its own: what it does to itself, it does not do to other models.

A process that ends is started again at once; the batch that it was running has failed. See `python_model` for what
such a model is.
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

from sluice.models.backends.base import GpuOptions
from sluice.models.backends.python_models.model import tensors_of
from sluice.models.backends.python_models.wire import (
    LoadPythonModel,
    MessageLink,
    ModelFailed,
    TensorBatch,
    TensorMemory,
)
from sluice.models.errors import BackendFailed
from sluice.models.processes import python_path
from sluice.models.tensors.arrays import Array
from sluice.models.triton_config.model_config import decode_config

LOAD_TIMEOUT_S = 100.0
"""Less than the time that a worker has to load a model: the model is to be given up before the worker is."""
END_TIMEOUT_S = 5.0
"""How long a model may take to finish before it is killed."""
RELOAD_WAIT_S = 2.0
"""How long batches wait, and with them the models that share the worker, for a process that was started again."""
RETRY_S = 1.0
"""A process that did not load its model is not started again for so long."""


class PythonBackend:
    """The model of a `model.py`, loaded; see `Backend`. The outputs of a run hold until the next one."""

    provider, threads = "", 0

    def __init__(self, start: LoadPythonModel) -> None:
        form = decode_config(start.config)
        self.inputs, self.outputs = tensors_of(form)
        self._start = start
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
        """Run one batch; raises BackendFailed for what the model raises, and when its process ends."""
        if self._retry_at and time.monotonic() < self._retry_at:
            raise BackendFailed("the process of the model could not be started again; it will be tried soon")
        process = self._process or self._begin()
        try:
            if not self._hand_over(process, inputs):
                self._end(process)  # it ended while it had nothing to do
                process = self._begin()
                self._hand_over(process, inputs)
            return process.answer()
        except EOFError:
            ended = self._end(process)
            self._begin()
            raise BackendFailed(f"the process of the model {ended}") from None
        except _NotLoaded as error:
            self._end(process)
            self._begin()
            raise BackendFailed(f"the model could not be loaded again: {error}") from error

    def _hand_over(self, process: "_Process", inputs: Mapping[str, Array]) -> bool:
        """Give the process a batch when it is loaded; False when it is gone."""
        if not process.was_loaded:
            process.loaded(process.started_s + RELOAD_WAIT_S - time.monotonic())
        self._retry_at = 0.0
        return process.take(inputs)

    def _begin(self) -> "_Process":
        """Start a process, which loads while other models run; raises BackendFailed when there can be none now."""
        try:
            process = _Process(self._start)
        except OSError as error:
            self._retry_at = time.monotonic() + RETRY_S
            raise BackendFailed(f"the process of the model cannot be started: {error}") from error
        self._process = process
        self._finish = weakref.finalize(self, process.end)
        return process

    def _end(self, process: "_Process") -> str:
        """Have no process any more; how it ended."""
        self._process = None
        self._finish.detach()
        ended = process.end()
        if not process.was_loaded:
            self._retry_at = time.monotonic() + RETRY_S
        return ended


class _NotLoaded(BackendFailed):
    """The process says why it could not load the model."""


class _Process:
    """A process that loads a model from when it is made."""

    def __init__(self, start: LoadPythonModel) -> None:
        self.was_loaded = False
        self.started_s = time.monotonic()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.enter_context(their_end)
            ours.enter_context(our_end)
            self._link = MessageLink(our_end, TensorBatch | ModelFailed)
            self._inputs, self._outputs = (TensorMemory(_memory(name, ours)) for name in ("in", "out"))
            # Closed with this process, whose end the other one is not to survive.
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
            with contextlib.suppress(ConnectionError):  # the end is told by what receives
                self._link.send(start)
            self._opened = ours.pop_all()  # `end` closes them

    def loaded(self, timeout_s: float) -> None:
        """Return when the model is loaded.

        Raises BackendFailed when it is not within that time, _NotLoaded when it will not be, or has taken too long for
        that, and EOFError when the process ends.
        """
        try:
            answer = self._receive(max(timeout_s, 0))
        except TimeoutError:
            if time.monotonic() - self.started_s >= LOAD_TIMEOUT_S:
                raise _NotLoaded(f"it was not loaded within {LOAD_TIMEOUT_S:g} s") from None
            raise BackendFailed("the process of the model is being started again") from None
        if isinstance(answer, ModelFailed):
            raise _NotLoaded(answer.message)
        self.was_loaded = True

    def take(self, inputs: Mapping[str, Array]) -> bool:
        """Give it a batch; False when it is gone."""
        try:
            self._link.send(self._inputs.write(inputs))
        except ConnectionError:
            return False
        return True

    def answer(self) -> dict[str, Array]:
        """The outputs of the batch that it took; raises BackendFailed, or EOFError when the process ends."""
        answer = self._receive()
        if isinstance(answer, ModelFailed):
            raise BackendFailed(answer.message)
        return self._outputs.read(answer)

    def _receive(self, timeout_s: float | None = None) -> TensorBatch | ModelFailed:
        """The next message; raises EOFError when the process ends, TimeoutError when nothing comes in time."""
        ready = self._poll.poll(None if timeout_s is None else timeout_s * 1000)
        if not ready:
            raise TimeoutError
        # The socket alone does not tell: what the process has started itself may hold it open.
        if all(fd == self._pidfd for fd, _ in ready):
            raise EOFError("the process is gone")
        answer: TensorBatch | ModelFailed = self._link.receive()
        return answer

    def end(self) -> str:
        """Have it finish, kill it where it does not, and say how it ended."""
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
    """The model of a `model.py` with the configuration `config`, in JSON.

    `threads` is how many cores there are, which is for the model to heed; so is the GPU. Raises BackendFailed.
    """
    del gpu
    if not config:
        raise BackendFailed(f"{path}: expected a config.pbtxt that says what its inputs and outputs are")
    return PythonBackend(LoadPythonModel(path, threads, config))
