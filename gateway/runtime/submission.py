"""A request that is under way."""

import asyncio

from sluice.gateway.observability.meters import PipelineMeter
from sluice.gateway.observability.request_ids import server_id
from sluice.gateway.observability.traces.explanation import explain
from sluice.gateway.observability.traces.trace import PARTIAL_HEADER, Trace
from sluice.gateway.protocol.pending_answer import PendingAnswer
from sluice.gateway.protocol.request_options import NO_PARAMETERS
from sluice.models.backends.requests import FailureCode


class Submission(PendingAnswer):
    """A request that was handed to the runtime, with its trace. `meter` counts it.

    `parameters` are those that only its model knows, as a JSON object. `failure` is the kind of the error that the
    model gave it.
    """

    __slots__ = ("failure", "meter", "parameters", "trace")

    def __init__(
        self,
        request: int,
        loop: asyncio.AbstractEventLoop,
        trace: Trace,
        meter: PipelineMeter,
        parameters: str = NO_PARAMETERS,
    ) -> None:
        super().__init__(request, loop)
        self.trace = trace
        self.meter = meter
        self.parameters = parameters
        self.failure: FailureCode | None = None

    @property
    def given_id(self) -> str:
        """The id that the server gave to the request; "" if the client gave one."""
        return "" if self.trace.client_id else server_id(self.request)

    @property
    def notes(self) -> list[tuple[str, str]]:
        """The headers that the client gets unasked."""
        partial = self.trace.partial
        return [(PARTIAL_HEADER, ", ".join([each.header for each in partial]))] if partial else []

    def explanation(self) -> list[tuple[str, str]]:
        """The explanation of the answered request, as headers."""
        return explain(self.trace, self.trace.ended_ns).headers()
