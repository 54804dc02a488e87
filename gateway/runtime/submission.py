"""A request that is under way."""

import asyncio

import msgspec

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
