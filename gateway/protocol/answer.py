"""The answer to a submitted request."""

from collections.abc import Callable, Mapping

from sluice.batcher.interface.outcome import Outcome
from sluice.models.backends.requests import FailureCode
from sluice.models.tensors.arrays import Array, WireBytes

Tensor = Array | WireBytes
"""A tensor in the gateway: an array, or BYTES in wire form."""

_NO_OUTPUTS: Mapping[str, Tensor] = {}


class Answer:
    """The outcome of a request and, if it succeeded, its output tensors in the order of its rows.

    `outputs` are views on shared memory of the workers. They are valid until `release`, which must be called once the
    response bytes have been written. An answer that is dropped without it releases itself. `failure` is the kind of the
    error that the model gave the request.
    """

    __slots__ = ("_release", "failure", "outcome", "outputs", "reason", "retry_after_s")

    def __init__(
        self,
        outcome: Outcome,
        reason: str = "",
        retry_after_s: int | None = 0,
        outputs: Mapping[str, Tensor] = _NO_OUTPUTS,
        release: Callable[[], None] | None = None,
        failure: FailureCode | None = None,
    ) -> None:
        self.failure = failure
        self.outcome = outcome
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.outputs = outputs
        self._release = release

    def release(self) -> None:
        """Free the memory of `outputs`; a second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            self.outputs = _NO_OUTPUTS
            release()

    def __del__(self) -> None:
        self.release()
