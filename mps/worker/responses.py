"""The responses of a running batch of a decoupled model: they are sent while it runs."""

from sluice.models.backends.calling import CallingBackend, ResponseMade
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import RESPONSE_WINDOW, OutputTensor, OverflowCreated, ResponseSent
from sluice.mps.worker.tensors import WorkerTensors


class BatchResponses:
    """The responses to the one request of a batch, of which at most `RESPONSE_WINDOW` are sent and not yet taken.

    While the client does not read, the model waits in its call that sends.
    """

    def __init__(self, batch: int, backend: CallingBackend, tensors: WorkerTensors) -> None:
        self.batch = batch
        self.failure: Exception | None = None
        """The error that ends the batch, whatever the model does."""
        self._backend = backend
        self._tensors = tensors
        self._untaken = 0
        self._model_waits = False

    def write(self, response: ResponseMade) -> tuple[ResponseSent, tuple[OverflowCreated, Region] | None] | None:
        """A response as it is sent; the overflow region, if there is one, is to be sent before it, and `sent` follows.

        None if there is no memory for it: the batch then fails once the model has ended its run.
        """
        written: tuple[OutputTensor, ...] = ()
        slot, region = -1, None
        try:
            if self.failure is None and response.outputs:
                written, slot, region = self._tensors.write(dict(response.outputs), batchable=False)
        except Exception as error:
            self.failure = error
            self.cancel()
        if self.failure is not None:
            self._backend.taken(self.batch)
            return None
        self._untaken += 1
        sent = ResponseSent(self.batch, written, slot, response.error, response.code, response.is_final)
        return sent, (OverflowCreated(written[0].region, region.nbytes), region) if region else None

    def sent(self) -> None:
        """Let the model go on: its response is on its way, whatever becomes of this worker."""
        if self._untaken < RESPONSE_WINDOW:
            self._backend.taken(self.batch)
        else:
            self._model_waits = True

    def taken(self, slot: int) -> None:
        """Record that the gateway needs a response no more, and free its slot; -1 if it has none."""
        self._untaken -= 1
        if slot >= 0:
            self._tensors.free(slot)
        if self._model_waits:
            self._model_waits = False
            self._backend.taken(self.batch)

    def cancel(self) -> None:
        """Tell the model that the client has gone."""
        self._backend.cancel(self.batch)
