"""The interface of backends whose models call other models: their batches may wait, and others run meanwhile."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from sluice.models.backends.metric_updates import MetricUpdate
from sluice.models.backends.requests import CallRequest, CallResult, FailureCode, RequestFailure, RequestPart
from sluice.models.tensors.arrays import Array


class CallMade(NamedTuple):
    """A batch waits for another model; the descriptor of the call's inputs belongs to the receiver."""

    batch: int
    call: int
    request: CallRequest
    fd: int


class BatchRan(NamedTuple):
    """A batch has ended: its outputs, which are valid until the next batch starts, and the errors of its requests.

    `metrics` are the changes of the model's metrics.
    """

    batch: int
    outputs: dict[str, Array]
    errors: tuple[RequestFailure, ...]
    metrics: tuple[MetricUpdate, ...] = ()


class BatchBroke(NamedTuple):
    """A batch has failed; `process_ended` if what the model kept in its process is gone."""

    batch: int
    message: str
    process_ended: bool = False


class ReadyAnswer(NamedTuple):
    """The answer to `CallingBackend.ask_ready`; it is about no batch."""

    number: int
    is_ready: bool
    batch: int = -1


class ResponseMade(NamedTuple):
    """A response of a decoupled model to a batch: outputs, or an `error`, or neither if it is only the mark of the end.

    After the one that `is_final` there is no other. The outputs are valid until it is `taken`.
    """

    batch: int
    outputs: Mapping[str, Array]
    error: str | None = None
    code: FailureCode = FailureCode.INTERNAL
    is_final: bool = False

    @property
    def is_empty(self) -> bool:
        """True if it is nothing but the mark of the end."""
        return not self.outputs and self.error is None


Progress = CallMade | BatchRan | BatchBroke | ReadyAnswer | ResponseMade


@runtime_checkable
class CallingBackend(Protocol):
    """A backend that runs batches as lists of requests, and may have several of them under way."""

    @property
    def is_decoupled(self) -> bool:
        """True if the model sends any number of responses to a batch of one request, which ends without outputs."""
        ...

    def start(self, batch: int, inputs: Mapping[str, Array], requests: Sequence[RequestPart]) -> list[Progress]:
        """Start a batch; returns when it has ended or waits for another model, or at once if the model is decoupled.

        It may also return when the batch runs on while others wait, as it may depend on them. Batches that were waiting
        may have gone on meanwhile. The inputs stay as they are until the end of the batch.
        """
        ...

    def measure(self, inputs: Mapping[str, Array], requests: Sequence[RequestPart]) -> dict[str, Array]:
        """Run one batch for the sake of its time alone; raises BackendFailed. Calls of other models fail."""
        ...

    def taken(self, batch: int) -> None:
        """Let a decoupled model go on after its last response to a batch; nothing happens if the batch is gone."""
        ...

    def cancel(self, batch: int) -> None:
        """Tell a decoupled model that its responses are not wanted any more; it still ends the batch by itself."""
        ...

    def resume(self) -> list[Progress]:
        """Return what has come since, without waiting for more."""
        ...

    def answer(self, call: int, result: CallResult, fds: Sequence[int]) -> None:
        """Answer a call; nothing happens if its batch is gone."""
        ...

    @property
    def tells_ready(self) -> bool:
        """True if the model says by itself whether it is ready."""
        ...

    def ask_ready(self, number: int) -> bool:
        """Ask the model whether it is ready; a `ReadyAnswer` of that number follows, unless this returns False."""
        ...

    def take_metrics(self) -> tuple[MetricUpdate, ...]:
        """The metrics that the model defined when it was loaded, once."""
        ...

    def filenos(self) -> Sequence[int]:
        """The descriptors that can be read when there is something to `resume`."""
        ...
