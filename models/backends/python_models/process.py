"""The process of one model in Python, started as `python -m sluice.models.backends.python_models.process`."""

import argparse
import contextlib
import fcntl
import io
import logging
import os
import select
import signal
import socket
import sys
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from sluice.models.backends.python_models import model as python_model
from sluice.models.backends.python_models.calls import Calls, follow_threads
from sluice.models.backends.python_models.custom_metrics import take_updates
from sluice.models.backends.python_models.decoupled import Runs, RunSender
from sluice.models.backends.python_models.triton_utils import LOGGER
from sluice.models.backends.python_models.wire import (
    LOADED,
    LoadPythonModel,
    MessageLink,
    ModelFailed,
    Received,
    TensorBatch,
    TensorMemory,
    ToModel,
    close_all,
)
from sluice.models.errors import BackendFailed
from sluice.models.processes import leave_signals_to_gateway

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class LossyOutput(io.RawIOBase):
    """A standard stream whose reader may leave, or whose disk may be full: what cannot be written is dropped.

    A model that prints would fail otherwise.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write bytes, or drop them; returns how many."""
        try:
            return os.write(self._fd, data)
        except OSError:
            return memoryview(data).nbytes


def _lossy(fd: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(LossyOutput(fd)), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )


class _LogFormatter(logging.Formatter):
    """Formats the lines of a model's own logger like those of the server."""

    def format(self, record: logging.LogRecord) -> str:
        """The time, the level, the logger and the message."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return f"{at} {record.levelname.lower()} {record.name}: {record.getMessage()}"


def _write_logs() -> None:
    """Write what the model logs by Triton's logger to the standard error, which is the server's."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LogFormatter())
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


class ModelServer:
    """Runs the batches that come over the link on one model; `inputs` and `outputs` are the usual memory of tensors.

    A process that the model forks may return here from the model's code. It has nothing to answer, and the memory of
    the outputs is not its own, so it returns at once.
    """

    def __init__(self, link: MessageLink, inputs: TensorMemory, outputs: TensorMemory) -> None:
        self._owner = os.getpid()
        self._link = link
        self._inputs = inputs
        self._outputs = outputs
        self._runs = Runs(link)
        self._calls = Calls(link, self._run_beside, self._runs)
        self._model: python_model.PythonModel

    def serve(self) -> None:
        """Load the model that the first message names, then run batches until the other end closes."""
        start: LoadPythonModel = self._link.receive().message
        answer: TensorBatch | ModelFailed
        try:
            self._model = python_model.load(start.path, start.threads, start.config, self._calls)
            if self._model.is_ready is not None:
                self._calls.answer_questions(self._model.is_ready)
            if self._model.is_decoupled:
                self._calls.start_reader()
            answer = TensorBatch(LOADED, metrics=take_updates(), tells_ready=self._model.is_ready is not None)
        except BackendFailed as error:
            answer = ModelFailed(LOADED, str(error))
        if os.getpid() != self._owner:
            return
        self._link.send(answer)
        if isinstance(answer, ModelFailed):
            return
        try:
            while True:
                batch: TensorBatch = self._calls.next_batch().message
                answer = self._run(batch, self._inputs, self._outputs)
                if os.getpid() != self._owner:
                    return
                self._runs.end(batch.number)
                self._send(answer)
        except (EOFError, ConnectionError):
            self._model.finish()

    def _run(self, batch: TensorBatch, inputs: TensorMemory, outputs: TensorMemory) -> TensorBatch | ModelFailed:
        if self._model.is_decoupled:
            return self._run_decoupled(batch, inputs, outputs)
        try:
            with self._calls.opened(batch.number), self._calls.running(batch.number):
                ran = self._model.run_requests(inputs.read(batch.places, batch.size), batch.requests)
            if os.getpid() != self._owner:
                return ModelFailed(batch.number, "")
            places, size = outputs.write(ran.outputs)
        except Exception as error:  # any error fails this batch alone
            return ModelFailed(batch.number, str(error) or type(error).__name__)
        return TensorBatch(batch.number, places, size, errors=ran.errors, metrics=take_updates())

    def _run_decoupled(
        self, batch: TensorBatch, inputs: TensorMemory, outputs: TensorMemory
    ) -> TensorBatch | ModelFailed:
        """Run a request until its final response; raises EOFError."""
        run = self._runs.begin(batch.number, outputs, partial(self._calls.away, batch.number))
        failure = ""
        with self._calls.opened(batch.number):
            try:
                with self._calls.running(batch.number):
                    arrays = inputs.read(batch.places, batch.size)
                    self._model.execute(arrays, batch.requests, RunSender(run, self._model.check_response))
            except Exception as error:  # any error fails this run alone
                failure = str(error) or type(error).__name__
            if os.getpid() != self._owner:
                return ModelFailed(batch.number, "")
            if failure:
                run.give_up(failure)
            run.wait_closed()
        failure = failure or run.failure
        return ModelFailed(batch.number, failure) if failure else TensorBatch(batch.number, metrics=take_updates())

    def _run_beside(self, received: Received) -> None:
        """Run a batch while the main thread has one; the memory of its tensors comes along."""
        try:
            answer = self._run(received.message, *map(TensorMemory, received.fds))
        except EOFError:
            return
        if os.getpid() != self._owner:
            os._exit(0)
        self._runs.end(received.message.number)
        close_all(received.fds)
        with contextlib.suppress(ConnectionError):
            self._send(answer)

    def _send(self, answer: TensorBatch | ModelFailed) -> None:
        """Send the answer to a batch, or why it cannot be sent, such as too many errors and metrics for a message."""
        try:
            self._link.send(answer)
        except ConnectionError:
            raise
        except Exception as error:
            self._link.send(ModelFailed(answer.number, f"the answer cannot be sent: {error}"))


def main() -> None:
    """Serve, then exit without the interpreter's own clean-up."""
    parser = argparse.ArgumentParser(prog="sluice.models.backends.python_models.process")
    for name in ("socket", "inputs", "outputs", "life"):
        parser.add_argument(f"--{name}", type=int, required=True, metavar="FD")
    options = parser.parse_args()
    leave_signals_to_gateway()
    sys.stdout, sys.stderr = _lossy(1), _lossy(2)
    for fd in (options.socket, options.inputs, options.outputs, options.life):
        os.set_inheritable(fd, False)
    # When the other end of the pipe closes, SIGKILL ends this process whatever the model is doing. A signal at the
    # parent's death would come when the thread that made the process ends.
    fcntl.fcntl(options.life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(options.life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(options.life, fcntl.F_SETFL, fcntl.fcntl(options.life, fcntl.F_GETFL) | os.O_ASYNC)
    gone = select.poll()
    gone.register(options.life, 0)
    if gone.poll(0):  # it closed before there could be a signal
        return
    _write_logs()
    follow_threads()
    link = MessageLink(socket.socket(fileno=options.socket), ToModel)
    os.register_at_fork(after_in_child=link.close)  # a child must not take batches
    ModelServer(link, TensorMemory(options.inputs), TensorMemory(options.outputs)).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
