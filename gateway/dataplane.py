"""The data plane under both protocols: checks a request, hands it to the runtime and waits for its answer."""

import asyncio
from collections.abc import Callable

from gateway.catalogue import Catalogue
from gateway.request import InferRequest, InferResponse, Parameters
from gateway.runtime import Runtime
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

    async def infer(
        self, signature: Signature, request: InferRequest, transport_budget_ns: int | None = None
    ) -> InferResponse:
        """Run a request; the response is to be released once its bytes have been encoded.

        `transport_budget_ns` is the time the client's own deadline leaves. Raises ServingError. Cancelling the caller
        cancels the request.
        """
        arrived_ns = self._clock()
        slo_ms = None
        if request.parameters:
            slo_ms, transport_budget_ns = _objectives(request.parameters, transport_budget_ns)
        inputs, rows, batch_key, memory_bytes = signature.accept(request.inputs)
        names = signature.select(request.outputs)
        due_ns = deadline_ns(arrived_ns, slo_ms, signature.pipeline.slo_ms, transport_budget_ns, self._default_slo_ms)
        submission = self._runtime.submit(signature.key, inputs, rows, batch_key, due_ns, memory_bytes)
        try:
            answer = await submission.future
        except asyncio.CancelledError:
            self._runtime.cancel(submission.request)
            raise
        if not answer.outcome.answered:
            answer.release()
            raise outcome_error(answer.outcome, answer.reason, answer.retry_after_s)
        return InferResponse(request.id, [(name, answer.outputs[name]) for name in names], answer)


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
