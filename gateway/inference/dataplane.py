"""The data plane of both protocols: checks requests, submits them and builds responses."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from sluice.batcher.interface.outcome import ANSWERED, Outcome
from sluice.gateway.config.front_door import FrontDoorSettings
from sluice.gateway.config.status_settings import TRITON_STATUSES, StatusSettings
from sluice.gateway.inference.response_stream import ResponseStream
from sluice.gateway.observability.load_report import LoadReport
from sluice.gateway.observability.traces.context import NO_TRACE, TraceContext
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.classification import Classification
from sluice.gateway.protocol.pending_answer import OnAnswered
from sluice.gateway.protocol.request import InferRequest, InferResponse, Parameters, SharedMemoryOutput
from sluice.gateway.protocol.request_options import NO_PARAMETERS, Deliveries, RequestOptions
from sluice.gateway.protocol.shared_memory import SharedMemory, SharedMemoryRef, SharedMemoryWindow
from sluice.gateway.protocol.signature import Signature
from sluice.gateway.protocol.status import outcome_error
from sluice.gateway.tensors.responses import ModelResponse
from sluice.models.errors import RequestError, ServingError, UnsupportedRequest
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.sequence_batching import SequenceStep
from sluice.models.slo import MAX_START_AFTER_MS, deadline_ns
from sluice.models.units import INFINITE_NS, NS_PER_US, ms_to_ns

EXTENSIONS = (
    "classification",
    "sequence",
    "sequence(string_id)",
    "schedule_policy",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
)
"""The protocol extensions that inference requests may use."""

REQUEST_HEADER = "x-sluice-request"
"""Carries the id that the gateway gave to a request without a client's id."""
EXPLAIN_HEADER = "x-sluice-explain"
"""Asks for an explanation, like the parameter `sluice_explain`."""

_YES_OR_NO = {"1": True, "true": True, "0": False, "false": False}
_RESERVED_PARAMETERS = frozenset({"headers", "binary_data_output"})
_SERVER_PARAMETERS = _RESERVED_PARAMETERS | {
    "slo_ms",
    "max_cost",
    "max_latency_ms",
    "min_accuracy",
    "start_after_ms",
    "sluice_explain",
    "priority",
    "timeout",
    "sequence_id",
    "sequence_start",
    "sequence_end",
}
PARAMETER_BYTES = 64 << 10
"""The most parameters of a request that go on to its model: they travel in messages, not with the tensors."""
_RESERVED_PREFIX = "triton_"
_MOST_ID = (1 << 64) - 1
_MAX_SEQUENCE_ID_BYTES = 128
"""Triton's bound of ids that are text."""
_PRIORITIES = 1 << 64
"""No model has as many priority levels."""


class Submitted(Protocol):
    """A submitted request as transports see it (see `PendingAnswer`)."""

    request: int

    def then(self, callback: OnAnswered, relayed: Callable[[], object] | None = None) -> None:
        """Call back with the answer; `relayed` is called instead if the request has to be passed on."""
        ...

    @property
    def future(self) -> asyncio.Future[Answer]:
        """A new future of the answer, or of RelayNeeded."""
        ...

    @property
    def given_id(self) -> str:
        """The id that the server gave to the request; "" if the client gave one."""
        ...

    @property
    def notes(self) -> list[tuple[str, str]]:
        """The headers that the client gets unasked."""
        ...

    def explanation(self) -> list[tuple[str, str]]:
        """The explanation of an answered request that asked for one, as headers."""
        ...


class ServedPipelines(Protocol):
    """The pipelines that clients may name. `draining` is true while the server is stopping."""

    draining: bool

    def pipeline(self, name: str, version: str) -> Pipeline:
        """The pipeline of that name; version "" is the latest. Raises an error that says why there is none."""
        ...

    def versions(self, name: str) -> Sequence[str]:
        """The versions of a pipeline."""
        ...

    def only_name(self) -> str:
        """The only name that gets requests. Raises an error that says why there is none."""
        ...


class DataPlane(ABC):
    """Inference for both protocols: all that transports know of it.

    `served` are the pipelines. `network_ms` is left of each objective for the way to the client. `statuses` are for
    `build_response`. `client_key` names the header that tells clients apart, for pipelines without one of their own.
    Ids of requests have at most `max_id_bytes`.
    """

    def __init__(
        self,
        served: ServedPipelines,
        default_slo_ms: float,
        network_ms: float,
        shared_memory: SharedMemory,
        statuses: StatusSettings = TRITON_STATUSES,
        client_key: str | None = None,
        max_id_bytes: int = FrontDoorSettings().id_bytes,
    ) -> None:
        self.shared_memory = shared_memory
        self.statuses = statuses
        self._served = served
        self._default_slo_ms = default_slo_ms
        self.network_ns = ms_to_ns(network_ms)
        """The time that is left of each objective for the way to the client."""
        self._client_key = client_key
        self._max_id_bytes = max_id_bytes
        self._signatures: dict[tuple[str, int], Signature] = {}
        self.load_report: LoadReport | None = None
        """Reports the load of the server; None in a front end, which passes such requests on."""

    def signature(self, name: str, version: str) -> Signature:
        """The signature of a pipeline; version "" is the latest. Raises as `ServedPipelines.pipeline`."""
        pipeline = self._served.pipeline(name, version)
        revision = (pipeline.name, pipeline.version)
        signature = self._signatures.get(revision)
        if signature is None or signature.pipeline is not pipeline:
            for known in list(self._signatures):  # drop the signatures of unloaded versions
                if str(known[1]) not in self._served.versions(known[0]):
                    del self._signatures[known]
            signature = self._signatures[revision] = Signature(pipeline, self._client_key)
        return signature

    def only_name(self) -> str:
        """The only name that gets requests. Raises as `ServedPipelines.only_name`."""
        return self._served.only_name()

    def check(
        self,
        signature: Signature,
        request: InferRequest,
        transport_budget_ns: int | None = None,
        *,
        one_response: str = "",
    ) -> tuple[dict[str, Tensor], RequestOptions]:
        """Check a request; returns its tensors and its options.

        `transport_budget_ns` is the time until the client's own deadline. `one_response` names the kind of request if
        it can have one response only, so that decoupled models do not take it. Raises RequestError, or a subclass of
        it.
        """
        if one_response and signature.pipeline.decoupled:
            raise UnsupportedRequest(f"{one_response} doesn't support models with decoupled transaction policy")
        if request.id and len(request.id.encode()) > self._max_id_bytes:
            raise RequestError(f"expected an id of at most {self._max_id_bytes} bytes, got '{request.id:.80}…'")
        slo_ms = max_cost = None
        min_accuracy, start_after_ns = 0.0, 0
        explain, priority, timeout_ns, parameters, sequence = False, 0, 0, NO_PARAMETERS, None
        if request.parameters:
            slo_ms, timeout_ns = _objectives(request.parameters)
            start_after_ns = _start_after_ns(request.parameters)
            max_cost, explain = _max_cost(request.parameters), _explain(request.parameters)
            min_accuracy = _min_accuracy(request.parameters, signature.pipeline)
            priority, sequence = _priority(request.parameters), _sequence(request.parameters)
            parameters = _for_models(request.parameters)
        if request.shared:
            for tensor in request.inputs:
                if isinstance(tensor.data, SharedMemoryRef):
                    tensor.data = self.shared_memory.input_window(tensor.data)
        inputs, rows, batch_key, memory_bytes = signature.check_inputs(request.inputs)
        names = signature.check_outputs(request.outputs)
        deliveries = self._deliveries(signature, request.deliveries) if request.deliveries else None
        queue_ns = timeout_ns or None
        budget_ns = deadline_ns(start_after_ns, slo_ms, signature.pipeline.slo_ms, queue_ns, self._default_slo_ms)
        if transport_budget_ns is not None and transport_budget_ns < budget_ns:
            budget_ns = transport_budget_ns
        return inputs, RequestOptions(
            names,
            rows,
            batch_key,
            memory_bytes,
            budget_ns - self.network_ns,
            request.id,
            max_cost,
            explain,
            priority,
            deliveries,
            timeout_ns,
            parameters,
            sequence=sequence,
            min_accuracy=min_accuracy,
            start_after_ns=start_after_ns,
        )

    def _deliveries(self, signature: Signature, wanted: Mapping[str, SharedMemoryRef | int]) -> Deliveries:
        batchable = signature.pipeline.batchable
        return {
            name: self.shared_memory.window(each)
            if isinstance(each, SharedMemoryRef)
            else Classification(each, signature.outputs[name], batchable)
            for name, each in wanted.items()
        }

    @property
    def stopping(self) -> bool:
        """True if the server is stopping and refuses requests."""
        return self._served.draining

    @abstractmethod
    def submit(
        self,
        signature: Signature,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str = "",
        trace: TraceContext = NO_TRACE,
    ) -> Submitted:
        """Submit a checked request of a client. Raises RejectedError when the server has stopped."""

    @abstractmethod
    def open_responses(
        self,
        signature: Signature,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str = "",
        trace: TraceContext = NO_TRACE,
    ) -> ResponseStream:
        """Submit a checked request of a decoupled model; raises as `submit`."""

    @abstractmethod
    def cancel(self, submission: Submitted) -> None:
        """Cancel a request whose client no longer waits; its answer, if one comes, must still be released."""

    def memory(self, nbytes: int) -> memoryview | None:
        """Memory to receive the tensors of a large request into, where workers can read them; None without such."""
        del nbytes
        return None

    async def answer(self, submission: Submitted) -> Answer:
        """Wait for the answer to a request, which must be released. Cancelling the caller cancels the request."""
        try:
            return await submission.future
        except asyncio.CancelledError:
            self.cancel(submission)
            raise

    def response_headers(self, submission: Submitted, explain: bool) -> list[tuple[str, str]]:
        """The headers of a response: the id of a request whose client gave none, and the explanation if requested."""
        headers = [(REQUEST_HEADER, submission.given_id)] if submission.given_id else []
        headers += submission.notes
        return headers + submission.explanation() if explain else headers


def asks_for_explanation(value: str) -> bool:
    """Parse the value of the header `x-sluice-explain`. Raises RequestError."""
    if value not in _YES_OR_NO:
        raise RequestError(f"header '{EXPLAIN_HEADER}' must be one of {', '.join(_YES_OR_NO)}, got '{value:.80}'")
    return _YES_OR_NO[value]


def build_response(
    answer: Answer, options: RequestOptions, statuses: StatusSettings = TRITON_STATUSES
) -> InferResponse:
    """The response to a request; outputs in shared memory have been written.

    Raises ServingError if the request failed, or if its outputs cannot be delivered as requested.
    """
    if answer.outcome not in ANSWERED:
        answer.release()
        raise outcome_error(answer.outcome, answer.reason, answer.retry_after_s, statuses, answer.failure)
    outputs = answer.outputs
    if options.deliveries is None:
        return InferResponse(options.id, [(name, outputs[name]) for name in options.names], answer)
    try:
        given = [(name, _deliver(name, outputs[name], options.deliveries.get(name))) for name in options.names]
    except ServingError:
        answer.release()
        raise
    return InferResponse(options.id, given, answer)


def build_model_response(response: ModelResponse, options: RequestOptions) -> InferResponse:
    """One response to a request of a decoupled model; it has those of the requested outputs that the model sent.

    Raises ServingError as `build_response`.
    """
    names = [name for name in options.names if name in response.outputs]
    answer = Answer(Outcome.COMPLETED, outputs=response.outputs, release=response.release)
    return build_response(answer, options._replace(names=names))


def _deliver(
    name: str, tensor: Tensor, delivery: SharedMemoryWindow | Classification | None
) -> Tensor | SharedMemoryOutput:
    if isinstance(delivery, SharedMemoryWindow):
        return SharedMemoryOutput(delivery.write(name, tensor), tensor.shape)
    return tensor if delivery is None else delivery.top_classes(tensor)


def _objectives(parameters: Parameters) -> tuple[object, int]:
    """The `slo_ms` of a request, and Triton's `timeout` (in microseconds, 0 for none) in nanoseconds."""
    for key in parameters:
        if key in _RESERVED_PARAMETERS or key.startswith(_RESERVED_PREFIX):
            raise RequestError(f"parameter '{key}' is reserved and cannot be set by a request")
    timeout = parameters.get("timeout", 0)
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 0:
        raise RequestError(
            f"parameter 'timeout' must be a whole number of microseconds of 0 or more, got {timeout!r:.80}"
        )
    slo_ms, most_ms = parameters.get("slo_ms"), parameters.get("max_latency_ms")
    if most_ms is not None:
        if isinstance(most_ms, bool) or not isinstance(most_ms, int | float) or not 0 < most_ms < math.inf:
            raise RequestError(f"parameter 'max_latency_ms': expected a finite number above 0, got {most_ms!r:.80}")
        if slo_ms is not None:
            raise RequestError("parameter 'max_latency_ms': expected either it or 'slo_ms', which mean the same")
        slo_ms = most_ms
    return slo_ms, min(timeout * NS_PER_US, INFINITE_NS)


def _for_models(parameters: Parameters) -> str:
    """The parameters that are not the server's, as a JSON object, for models that look at them."""
    own = {key: value for key, value in parameters.items() if key not in _SERVER_PARAMETERS}
    if not own:
        return NO_PARAMETERS
    encoded = msgspec.json.encode(own)
    if len(encoded) > PARAMETER_BYTES:
        raise RequestError(f"the parameters have {len(encoded)} bytes of JSON, expected at most {PARAMETER_BYTES}")
    return encoded.decode()


def _max_cost(parameters: Parameters) -> float | None:
    value = parameters.get("max_cost")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise RequestError(f"parameter 'max_cost': expected a finite number of at least 0, got {value!r:.80}")
    return float(value)


def _min_accuracy(parameters: Parameters, pipeline: Pipeline) -> float:
    """The accuracy that a request asks of the models that run it; 0 if it asks for none."""
    value = parameters.get("min_accuracy")
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise RequestError(f"parameter 'min_accuracy': expected a number from 0 to 1, got {value!r:.80}")
    families = [stage for stage in pipeline.stages if stage.accuracies]
    if not families:
        raise RequestError(f"parameter 'min_accuracy': {pipeline.name} has no family to choose a model from")
    for stage in families:
        best = stage.accuracies[0]
        if best < value:
            raise RequestError(
                f"parameter 'min_accuracy': no model of stage '{stage.name}' reaches {value:g}; the best, "
                f"{stage.variants[0]}, has {best:g}"
            )
    return float(value)


def _start_after_ns(parameters: Parameters) -> int:
    """The time for which a request may not begin yet; 0 if it may at once."""
    value = parameters.get("start_after_ms")
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_START_AFTER_MS:
        expected = f"a number of milliseconds from 0 to {MAX_START_AFTER_MS:g}"
        raise RequestError(f"parameter 'start_after_ms': expected {expected}, got {value!r:.80}")
    return ms_to_ns(value)


def _priority(parameters: Parameters) -> int:
    value = parameters.get("priority", 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RequestError(f"parameter 'priority' must be a whole number of 0 or more, got {value!r:.80}")
    return value if value < _PRIORITIES else 0


def _sequence(parameters: Parameters) -> SequenceStep | None:
    """The part of a request in a sequence; None without an id, which 0 and "" are not. Negative ids are as in C."""
    identity = parameters.get("sequence_id", 0)
    if isinstance(identity, bool) or not isinstance(identity, int | str):
        raise RequestError(f"parameter 'sequence_id' must be a whole number or a string, got {identity!r:.80}")
    if isinstance(identity, str):
        if len(identity.encode()) > _MAX_SEQUENCE_ID_BYTES:
            expected = f"at most {_MAX_SEQUENCE_ID_BYTES} bytes"
            raise RequestError(f"parameter 'sequence_id': expected {expected}, got '{identity:.80}…'")
    elif not -(1 << 63) <= identity <= _MOST_ID:
        raise RequestError(f"parameter 'sequence_id' must be a number of 64 bits, got {identity}")
    elif identity < 0:
        identity += 1 << 64
    start, end = _flag("sequence_start", parameters), _flag("sequence_end", parameters)
    return SequenceStep(identity, start, end) if identity else None


def _flag(name: str, parameters: Parameters) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"parameter '{name}' must be true or false, got {value!r:.80}")
    return value


def _explain(parameters: Parameters) -> bool:
    value = parameters.get("sluice_explain", False)
    if not isinstance(value, bool):
        raise RequestError(f"parameter 'sluice_explain' must be true or false, got {value!r:.80}")
    return value
