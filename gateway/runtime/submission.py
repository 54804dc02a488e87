"""A request that is under way."""

import asyncio

import msgspec

from sluice.gateway.observability.explanation import explain
from sluice.gateway.observability.metrics import PipelineMeter
from sluice.gateway.observability.trace import Trace
from sluice.gateway.protocol.answer import Answer


class Submission(msgspec.Struct, eq=False):
    """A request that was handed to the runtime: its number, the future of its answer, and its trace.

    `meter` counts it.
    """

    request: int
    future: asyncio.Future[Answer]
    trace: Trace
    meter: PipelineMeter

    @property
    def given_id(self) -> str:
        """The id that the server gave to the request; "" if the client gave one."""
        trace = self.trace
        return "" if trace.client_id else trace.id

    def explanation(self) -> list[tuple[str, str]]:
        """The explanation of the answered request, as headers."""
        return explain(self.trace, self.trace.ended_ns).headers()
