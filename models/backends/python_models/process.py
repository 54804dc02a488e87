"""The process of one model in Python, started as `python -m sluice.models.backends.python_models.process`."""

import argparse
import fcntl
import io
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING

from sluice.models.backends.python_models import model as python_model
from sluice.models.backends.python_models.wire import (
    LOADED,
    LoadPythonModel,
    MessageLink,
    ModelFailed,
    TensorBatch,
    TensorMemory,
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


def serve(link: MessageLink, inputs: TensorMemory, outputs: TensorMemory) -> None:
    """Load the model that the first message names, then run batches until the other end closes.

    A process that the model forks may return here from the model's code. It has nothing to answer, and the memory of
    the outputs is not its own, so it returns at once.
    """
    owner = os.getpid()
    start: LoadPythonModel = link.receive()[0]
    answer: TensorBatch | ModelFailed
    try:
        model = python_model.load(start.path, start.threads, start.config)
        answer = TensorBatch(LOADED)
    except BackendFailed as error:
        answer = ModelFailed(LOADED, str(error))
    if os.getpid() != owner:
        return
    link.send(answer)
    if isinstance(answer, ModelFailed):
        return
    try:
        while True:
            batch: TensorBatch = link.receive()[0]
            try:
                arrays = model.run(inputs.read(batch))
                if os.getpid() == owner:
                    answer = outputs.write(batch.number, arrays)
            except Exception as error:  # any error fails this batch alone
                answer = ModelFailed(batch.number, str(error) or type(error).__name__)
            if os.getpid() != owner:
                return
            link.send(answer)
    except (EOFError, ConnectionError):
        model.finish()


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
    link = MessageLink(socket.socket(fileno=options.socket), LoadPythonModel | TensorBatch)
    os.register_at_fork(after_in_child=link.close)  # a child must not take batches
    serve(link, TensorMemory(options.inputs), TensorMemory(options.outputs))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
