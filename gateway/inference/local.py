"""The data plane over the runtime of the same process."""

from collections.abc import Callable, Mapping
from functools import partial

from sluice.gateway.config.front_door import FrontDoorSettings
from sluice.gateway.config.status_settings import TRITON_STATUSES, StatusSettings
from sluice.gateway.inference.dataplane import DataPlane, ServedPipelines, Submitted
from sluice.gateway.inference.equal_requests import CacheableRequest, EqualRequests
from sluice.gateway.inference.request_runtime import RequestRuntime
from sluice.gateway.inference.response_stream import ResponseStream
from sluice.gateway.observability.traces.context import NO_TRACE, TraceContext
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.protocol.shared_memory import SharedMemory
from sluice.gateway.protocol.signature import Signature
from sluice.gateway.runtime.submission import Submission
from sluice.gateway.tensors.body_memory import LARGE_BYTES, BodyMemory
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.gateway.tensors.response_cache import ResponseCache, request_key
from sluice.gateway.tensors.responses import ResponseRouter


class LocalDataPlane(DataPlane):
    """Submits requests to the runtime; `clock` gives the nanoseconds of the clock of all deadlines.

    `cache` is the response cache, None without one. Large requests are received into `bodies`, None if workers cannot
    read them there. `responses` brings those of decoupled models.
    """

    def __init__(
        self,
        served: ServedPipelines,
        runtime: RequestRuntime,
        default_slo_ms: float,
        network_ms: float,
        clock: Callable[[], int],
        shared_memory: SharedMemory,
        cache: ResponseCache | None = None,
        statuses: StatusSettings = TRITON_STATUSES,
        client_key: str | None = None,
        max_id_bytes: int = FrontDoorSettings().id_bytes,
        bodies: BodyMemory | None = None,
        responses: ResponseRouter | None = None,
    ) -> None:
        super().__init__(served, default_slo_ms, network_ms, shared_memory, statuses, client_key, max_id_bytes)
        self._runtime = runtime
        self._clock = clock
        self._equal = None if cache is None else EqualRequests(cache, runtime)
        self._bodies = bodies
        self._responses = responses or ResponseRouter()

    def memory(self, nbytes: int) -> memoryview | None:
        """Memory to receive the tensors of a large request into, where workers can read them; None without such."""
        return None if self._bodies is None else self._bodies.allocate(nbytes)

    def submit(
        self,
        signature: Signature,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str = "",
        trace: TraceContext = NO_TRACE,
        received_ns: int = 0,
        shared: BatchOutputs | None = None,
    ) -> Submission:
        """Submit a checked request of a client. Raises RejectedError when the runtime is closed.

        A front end that read the request passes the time by which it had come, and the inputs as they lie in shared
        memory; otherwise it has come now.
        """
        if shared is None and options.memory_bytes >= LARGE_BYTES and self._bodies is not None:
            shared = self._bodies.locate(inputs)
        equal = self._equal
        cached = signature.pipeline.response_cache and options.sequence is None
        if cached and equal is not None and not self._served.draining:
            return self._cached(equal, signature, inputs, options, client, trace, received_ns, shared)
        return self._runtime.submit(signature.key, inputs, options, client, received_ns, shared, trace)

    def _cached(
        self,
        equal: EqualRequests,
        signature: Signature,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str,
        trace: TraceContext,
        received_ns: int,
        shared: BatchOutputs | None,
    ) -> Submission:
        now_ns = self._clock()
        key = request_key(signature.key, inputs)
        outputs = equal.cache.look_up(key, now_ns)
        if outputs is not None:
            return self._runtime.answer_from_cache(signature.key, options, outputs, received_ns or now_ns, trace)
        lookup_ns = self._clock() - now_ns
        request = CacheableRequest(signature.key, inputs, options, client, received_ns, shared, trace)
        return equal.submit(key, request, lookup_ns)

    def open_responses(
        self,
        signature: Signature,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str = "",
        trace: TraceContext = NO_TRACE,
    ) -> ResponseStream:
        """Submit a checked request of a decoupled model. Raises RejectedError when the runtime is closed.

        Its deadline is that of the first response. The scheduler plans to the end of the run, so it gets the deadline
        with the longest time that such requests have lately taken from there to the end.
        """
        responses, pipeline = self._responses, signature.key
        options = options._replace(budget_ns=options.budget_ns + responses.tail_ns(pipeline))
        submission = self.submit(signature, inputs, options, client, trace)
        stream = ResponseStream(self.statuses, self._clock)
        stream.given_id = submission.given_id
        stream.cancel = partial(self._runtime.cancel, submission.request)
        responses.open(submission.request, stream.put)
        submission.then(partial(self._responses_ended, pipeline, submission.request, stream))
        return stream

    def _responses_ended(self, pipeline: str, request: int, stream: ResponseStream, answer: Answer) -> None:
        self._responses.close(request)
        if stream.first_ns:
            self._responses.note_tail(pipeline, self._clock() - stream.first_ns)
        stream.end(answer)

    def cancel(self, submission: Submitted) -> None:
        """Cancel a request whose client no longer waits; its answer, if one comes, must still be released."""
        self._runtime.cancel(submission.request)
