"""A request that is under way."""

import asyncio

import msgspec

from sluice.gateway.observability.metrics import PipelineMeter
from sluice.gateway.observability.trace import Trace
from sluice.gateway.protocol.answer import Answer


class Submission(msgspec.Struct, eq=False):
    """A request that was handed to the runtime: its number, what it will resolve to, and what is remembered of it.

    `meter` counts it.
    """

    request: int
    future: asyncio.Future[Answer]
    trace: Trace
    meter: PipelineMeter
