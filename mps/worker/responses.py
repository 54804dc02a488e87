"""The responses of a running batch of a decoupled model: they are sent while it runs."""

import select
import time

from sluice.models.backends.base import DecoupledBackend
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import (
    RESPONSE_WINDOW,
    BatchFinished,
    OutputTensor,
    OverflowCreated,
    ResponseSent,
    RunBatch,
)
from sluice.mps.worker.tensors import WorkerTensors


class BatchResponses:
    """The responses to the one request of a batch, of which at most `RESPONSE_WINDOW` are sent and not yet taken.

    The backend has begun to run the batch. While the client does not read, the model waits in its call that sends.
    """

    def __init__(self, run: RunBatch, backend: DecoupledBackend, tensors: WorkerTensors, started_ns: int) -> None:
        self.batch = run.batch
        self._backend = backend
        self._tensors = tensors
        self._started_ns = started_ns
        self._untaken = 0

    def taken(self, slot: int) -> None:
        """Record that the gateway needs a response no more, and free its slot; -1 if it has none."""
        self._untaken -= 1
        if slot >= 0:
            self._tensors.free(slot)

    def cancel(self) -> None:
        """Tell the model that the client has gone."""
        self._backend.cancel()

    def wait(self, channel: int) -> bool:
        """Wait for a response that may be sent, or for messages in the channel; returns whether there is a response."""
        ready = select.poll()
        ready.register(channel, select.POLLIN)
        if self._untaken < RESPONSE_WINDOW:
            for descriptor in self._backend.readable:
                ready.register(descriptor, select.POLLIN)
        return any(descriptor != channel for descriptor, _ in ready.poll())

    def receive(self) -> tuple[ResponseSent | BatchFinished, tuple[OverflowCreated, Region] | None]:
        """The next response, or the end of the batch; the overflow region, if there is one, is to be sent before it.

        `sent` is to follow once a response has been sent.

        Raises whatever ends the batch early. The model has then ended its run.
        """
        response = self._backend.receive()
        if response is None:
            return BatchFinished(self.batch, self._started_ns, time.monotonic_ns(), (), -1), None
        self._untaken += 1
        written: tuple[OutputTensor, ...] = ()
        slot, region = -1, None
        if response.outputs:
            try:
                written, slot, region = self._tensors.write(dict(response.outputs), batchable=False)
            except BaseException:
                self._finish()
                raise
        sent = ResponseSent(self.batch, written, slot, response.error, response.is_final)
        return sent, (OverflowCreated(written[0].region, region.nbytes), region) if region else None

    def sent(self) -> None:
        """Let the model go on: its response is on its way, whatever becomes of this worker."""
        self._backend.taken()

    def _finish(self) -> None:
        """Drop the other responses of the run, so that the model can take the next one."""
        self._backend.cancel()
        self._backend.taken()
        while self._backend.receive() is not None:
            self._backend.taken()
