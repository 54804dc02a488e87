"""The responses of decoupled models, from the worker that sends them to the request that waits for them."""

from collections.abc import Callable, Mapping

from sluice.gateway.protocol.answer import Tensor
from sluice.models.errors import ServingError

TAIL_DECAY = 0.99
"""The longest tail of a pipeline falls by this factor with every request."""


class ModelResponse:
    """One response to a request: outputs, or an `error`, or neither if it only says that it `is_final`.

    `outputs` are views on shared memory of the workers, valid until `release`, which must be called: the model waits
    while too many responses are held. A response that is dropped without it releases itself.
    """

    __slots__ = ("_release", "error", "is_final", "outputs")

    def __init__(
        self,
        outputs: Mapping[str, Tensor],
        error: ServingError | None,
        is_final: bool,
        release: Callable[[], None] | None,
    ) -> None:
        self.outputs = outputs
        self.error = error
        self.is_final = is_final
        self._release = release

    @property
    def is_empty(self) -> bool:
        """True if it only says that there are no more."""
        return not self.outputs and self.error is None

    def release(self) -> None:
        """Free the memory of `outputs`; a second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            self.outputs = {}
            release()

    def __del__(self) -> None:
        self.release()


TakeResponse = Callable[[ModelResponse], None]
"""Gets the responses to a request one by one, and releases them."""


class ResponseRouter:
    """Passes the responses on to the open requests; one to a request that is not open is released at once."""

    def __init__(self) -> None:
        self._open: dict[int, TakeResponse] = {}
        self._responded: set[int] = set()
        self._tails_ns: dict[str, float] = {}

    def open(self, request: int, take: TakeResponse) -> None:
        """Pass the responses to a request on to `take`."""
        self._open[request] = take

    def close(self, request: int) -> None:
        """Pass no more responses to a request on."""
        self._open.pop(request, None)
        self._responded.discard(request)

    def has_responded(self, request: int) -> bool:
        """Return whether a request is open that has had a response, so that its deadline is over."""
        return request in self._responded

    def route(self, request: int, response: ModelResponse) -> None:
        """Pass a response on."""
        take = self._open.get(request)
        if take is None:
            response.release()
        else:
            self._responded.add(request)
            take(response)

    def note_tail(self, pipeline: str, tail_ns: int) -> None:
        """Record the time from the first response of a request to the end of its run."""
        self._tails_ns[pipeline] = max(self._tails_ns.get(pipeline, 0.0) * TAIL_DECAY, float(tail_ns))

    def tail_ns(self, pipeline: str) -> int:
        """The longest such time of the pipeline's recent requests."""
        return int(self._tails_ns.get(pipeline, 0))

    def forget(self, pipeline: str) -> None:
        """Forget a pipeline that gets no more requests."""
        self._tails_ns.pop(pipeline, None)
