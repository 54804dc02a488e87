"""The interface of backends whose models call other models: their batches may wait, and others run meanwhile."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from sluice.models.backends.metric_updates import MetricUpdate
from sluice.models.backends.requests import CallRequest, CallResult, RequestFailure, RequestPart
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
    """A batch has failed."""

    batch: int
    message: str


class ReadyAnswer(NamedTuple):
    """The answer to `CallingBackend.ask_ready`; it is about no batch."""

    number: int
    is_ready: bool
    batch: int = -1


Progress = CallMade | BatchRan | BatchBroke | ReadyAnswer


@runtime_checkable
class CallingBackend(Protocol):
    """A backend that runs batches as lists of requests, and may have several of them under way."""

    def start(self, batch: int, inputs: Mapping[str, Array], requests: Sequence[RequestPart]) -> list[Progress]:
        """Start a batch; returns when it has ended or waits for another model.

        It may also return when the batch runs on while others wait, as it may depend on them.

        Batches that were waiting may have gone on meanwhile.
        """
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
