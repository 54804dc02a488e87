"""The runtime as the data plane sees it."""

from collections.abc import Mapping
from typing import Protocol

from sluice.gateway.observability.traces.context import NO_TRACE, TraceContext
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.runtime.submission import Submission
from sluice.gateway.tensors.request_tensors import BatchOutputs


class RequestRuntime(Protocol):
    """The runtime as the data plane sees it (see `Runtime`)."""

    def submit(
        self,
        pipeline: str,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str = "",
        received_ns: int = 0,
        shared: BatchOutputs | None = None,
        trace: TraceContext = NO_TRACE,
    ) -> Submission:
        """Start a checked request."""
        ...

    def answer_from_cache(
        self,
        pipeline: str,
        options: RequestOptions,
        outputs: Mapping[str, Tensor],
        now_ns: int,
        trace: TraceContext = NO_TRACE,
    ) -> Submission:
        """Answer a request with cached outputs."""
        ...

    def cancel(self, request: int) -> None:
        """Record that the client of a request is gone."""
        ...

    def hold(
        self, pipeline: str, options: RequestOptions, received_ns: int, trace: TraceContext = NO_TRACE
    ) -> Submission | None:
        """Open a request that waits for the answer to another one."""
        ...

    def answer_held(self, submission: Submission, outputs: Mapping[str, Tensor]) -> None:
        """Answer a request that was held."""
        ...

    def run_held(
        self,
        submission: Submission,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str,
        shared: BatchOutputs | None,
    ) -> None:
        """Start a request that was held."""
        ...
