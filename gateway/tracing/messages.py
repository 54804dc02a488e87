"""The messages between the gateway's process and the exporter, over a SEQPACKET socket."""

import msgspec

from sluice.gateway.config.tracing import OtlpSettings
from sluice.gateway.observability.traces.trace import Trace


class StartExport(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message to the exporter: the collector, and the version of the server."""

    settings: OtlpSettings
    version: str


class EndedTraces(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Requests that have their outcomes and whose spans are to be exported."""

    traces: tuple[Trace, ...]


class FinishExport(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Export what waits, and exit after `timeout_s` at the latest."""

    timeout_s: float


ToExporter = StartExport | EndedTraces | FinishExport


class SpanCounts(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The spans since the start of the exporter: taken by the collector, dropped as too many waited, and not taken.

    `trouble` is why the collector has not taken the last ones, "" if it has.
    """

    exported: int
    dropped: int
    failed: int
    trouble: str


FromExporter = SpanCounts
