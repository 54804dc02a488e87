"""The data plane under both protocols: checks a request, hands it to the runtime and reads its answer."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gateway.answer import Answer, Tensor
from gateway.catalogue import Catalogue
from gateway.request import InferRequest, InferResponse, Parameters
from gateway.runtime import Runtime, Submission
from gateway.signature import Signature
from gateway.status import outcome_error
from models.errors import RequestError, UnsupportedRequest
from models.slo import deadline_ns
from models.units import NS_PER_US

EXTENSIONS = ("binary_tensor_data", "parameters")
"""The protocol's extensions that are served."""

_SEQUENCE_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end")
_RESERVED_PARAMETERS = frozenset({"headers", "binary_data_output", *_SEQUENCE_PARAMETERS})
_RESERVED_PREFIX = "triton_"


class Terms(NamedTuple):
    """What a request asks for, but for the contents of its tensors; `budget_ns` is the time it gives for the answer."""

    names: Sequence[str]
    rows: int
    batch_key: str
    memory_bytes: int
    budget_ns: int


class DataPlane:
    """Inference as both protocols offer it. `clock` gives nanoseconds of the clock of all deadlines."""

    def __init__(self, catalogue: Catalogue, runtime: Runtime, default_slo_ms: float, clock: Callable[[], int]) -> None:
        self._catalogue = catalogue
        self._runtime = runtime
        self._default_slo_ms = default_slo_ms
        self._clock = clock
        self._signatures: dict[tuple[str, int], Signature] = {}

    def signature(self, name: str, version: str) -> Signature:
        """What requests to a pipeline must look like; version "" is the latest. Raises as `Catalogue.pipeline`."""
        pipeline = self._catalogue.pipeline(name, version)
        revision = (pipeline.name, pipeline.version)
        signature = self._signatures.get(revision)
        if signature is None or signature.pipeline is not pipeline:
            signature = self._signatures[revision] = Signature(pipeline)
        return signature

    def check(
        self, signature: Signature, request: InferRequest, transport_budget_ns: int | None = None
    ) -> tuple[dict[str, Tensor], Terms]:
        """The tensors of a request, and the rest of what it asks for.

        `transport_budget_ns` is the time the client's own deadline leaves. Raises RequestError, or a kind of it.
        """
        slo_ms = None
        if request.parameters:
            slo_ms, transport_budget_ns = _objectives(request.parameters, transport_budget_ns)
        inputs, rows, batch_key, memory_bytes = signature.accept(request.inputs)
        names = signature.select(request.outputs)
        budget_ns = deadline_ns(0, slo_ms, signature.pipeline.slo_ms, transport_budget_ns, self._default_slo_ms)
        return inputs, Terms(names, rows, batch_key, memory_bytes, budget_ns)

    def submit(self, signature: Signature, inputs: Mapping[str, Tensor], terms: Terms) -> Submission:
        """Hand a checked request to the runtime. Raises RejectedError when it is closed."""
        due_ns = self._clock() + terms.budget_ns
        return self._runtime.submit(signature.key, inputs, terms.rows, terms.batch_key, due_ns, terms.memory_bytes)

    def cancel(self, submission: Submission) -> None:
        """Tell that nobody waits for a request any more; its answer, if one comes, is still to be released."""
        self._runtime.cancel(submission.request)

    async def infer(
        self, signature: Signature, request: InferRequest, transport_budget_ns: int | None = None
    ) -> InferResponse:
        """Run a request; the response is to be released once its bytes have been encoded.

        As `check`, `submit` and `respond`. Cancelling the caller cancels the request.
        """
        inputs, terms = self.check(signature, request, transport_budget_ns)
        submission = self.submit(signature, inputs, terms)
        try:
            answer = await submission.future
        except asyncio.CancelledError:
            self.cancel(submission)
            raise
        return respond(answer, terms.names, request.id)


def respond(answer: Answer, names: Sequence[str], request_id: str) -> InferResponse:
    """The response that gives an answer's outputs of those names. Raises ServingError when it has none to give."""
    if not answer.outcome.answered:
        answer.release()
        raise outcome_error(answer.outcome, answer.reason, answer.retry_after_s)
    outputs = answer.outputs
    return InferResponse(request_id, [(name, outputs[name]) for name in names], answer)


def _objectives(parameters: Parameters, budget_ns: int | None) -> tuple[object, int | None]:
    """The `slo_ms` of a request and the transport's budget, cut by Triton's `timeout` (microseconds, 0 for none)."""
    for key in parameters:
        if key in _SEQUENCE_PARAMETERS:
            raise UnsupportedRequest(f"parameter '{key}': sequences are not supported")
        if key in _RESERVED_PARAMETERS or key.startswith(_RESERVED_PREFIX):
            raise RequestError(f"parameter '{key}' is reserved and cannot be set by a request")
    timeout = parameters.get("timeout", 0)
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 0:
        raise RequestError(
            f"parameter 'timeout' must be a whole number of microseconds of 0 or more, got {timeout!r:.80}"
        )
    if timeout:
        budget_ns = min(timeout * NS_PER_US, budget_ns) if budget_ns is not None else timeout * NS_PER_US
    return parameters.get("slo_ms"), budget_ns
