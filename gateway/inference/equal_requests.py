"""Equal requests that are under way together: the first one runs, and the others wait for its answer."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from sluice.gateway.inference.request_runtime import RequestRuntime
from sluice.gateway.observability.traces.context import TraceContext
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.runtime.submission import Submission
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.gateway.tensors.response_cache import CacheKey, ResponseCache


class CacheableRequest(NamedTuple):
    """A checked request for `pipeline` whose answer may be cached, as `RequestRuntime.submit` takes it."""

    pipeline: str
    inputs: Mapping[str, Tensor]
    options: RequestOptions
    client: str
    received_ns: int
    shared: BatchOutputs | None
    trace: TraceContext


class _UnderWay(NamedTuple):
    """The request that runs, and those that wait for its answer."""

    first: Submission
    others: dict[int, tuple[Submission, CacheableRequest]]


class EqualRequests:
    """Runs requests whose answers are not in the cache yet, equal ones once.

    A request waits for an equal one that is due no later than itself, so its own deadline bounds the wait. If that one
    gets no answer, or its answer does not fit into the cache, those that waited run after all, each for itself.
    """

    def __init__(self, cache: ResponseCache, runtime: RequestRuntime) -> None:
        self.cache = cache
        self._runtime = runtime
        self._under_way: dict[CacheKey, _UnderWay] = {}

    def submit(self, key: CacheKey, request: CacheableRequest, lookup_ns: int) -> Submission:
        """Start a request, or have it wait; its look-up took `lookup_ns`. Raises as `RequestRuntime.submit`."""
        known = self._under_way.get(key)
        if known is not None:
            waiting = self._wait_for(known, request)
            if waiting is not None:
                return waiting
        submission = self._runtime.submit(*request)
        # The first callbacks: they run while the outputs are still valid.
        submission.then(partial(self.cache.store_answer, key, lookup_ns))
        if known is None:
            self._under_way[key] = _UnderWay(submission, {})
            submission.then(partial(self._answered, key))
        return submission

    def _wait_for(self, known: _UnderWay, request: CacheableRequest) -> Submission | None:
        """Have a request wait for an equal one; None if it has less time, or too many wait already."""
        received_ns = request.received_ns or self.cache.clock()
        if received_ns + request.options.budget_ns < known.first.trace.arrival.deadline_ns:
            return None
        held = self._runtime.hold(request.pipeline, request.options, received_ns, request.trace)
        if held is not None:
            known.others[held.request] = held, request
            held.then(lambda _: known.others.pop(held.request, None))  # one that is cancelled leaves its inputs
        return held

    def _answered(self, key: CacheKey, answer: Answer) -> None:
        """Answer those that waited, or let them run."""
        for submission, request in list(self._under_way.pop(key).others.values()):
            outputs = self.cache.look_up(key, self.cache.clock()) if answer.outcome.answered else None
            if outputs is None:
                self._runtime.run_held(submission, request.inputs, request.options, request.client, request.shared)
            else:
                self._runtime.answer_held(submission, outputs)
