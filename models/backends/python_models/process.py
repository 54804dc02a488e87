"""The process of one model in Python, started as `python -m sluice.models.backends.python_models.process`."""

import argparse
import fcntl
import os
import select
import socket
import sys

from sluice.models.backends.python_models import decoupled
from sluice.models.backends.python_models import model as python_model
from sluice.models.backends.python_models.wire import (
    LOADED,
    LoadPythonModel,
    MessageLink,
    ModelFailed,
    TensorBatch,
    TensorMemory,
    ToModel,
)
from sluice.models.errors import BackendFailed


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
        if model.is_decoupled:
            decoupled.serve(link, inputs, outputs, model.execute, model.check_response)
            return
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
    for fd in (options.socket, options.inputs, options.outputs, options.life):
        os.set_inheritable(fd, False)
    # When the other end of the pipe closes, SIGIO ends this process whatever the model is doing. A signal at the
    # parent's death would come when the thread that made the process ends.
    fcntl.fcntl(options.life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(options.life, fcntl.F_SETFL, fcntl.fcntl(options.life, fcntl.F_GETFL) | os.O_ASYNC)
    gone = select.poll()
    gone.register(options.life, 0)
    if gone.poll(0):  # it closed before there could be a signal
        return
    link = MessageLink(socket.socket(fileno=options.socket), ToModel)
    os.register_at_fork(after_in_child=link.close)  # a child must not take batches
    serve(link, TensorMemory(options.inputs), TensorMemory(options.outputs))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
