"""The gateway's end of the exporter: ended requests go to its process, which makes and sends their spans."""

import asyncio
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric

from sluice.gateway.config.tracing import OtlpProtocol, OtlpSettings
from sluice.gateway.observability.logs import log
from sluice.gateway.observability.metrics import MetricsSource
from sluice.gateway.observability.traces.trace import Trace
from sluice.gateway.tracing.messages import (
    EndedTraces,
    FinishExport,
    FromExporter,
    SpanCounts,
    StartExport,
    ToExporter,
)
from sluice.gateway.tracing.spans import most_spans
from sluice.models.errors import ConfigError, PartitionError
from sluice.mps.supervisor.child import Child, launch_module
from sluice.mps.supervisor.process import MessageProcess, wait_for_exit

FLUSH_S = 0.05
"""The time for which ended requests wait for others, with which they share a message."""
FLUSH_TRACES = 16
"""Requests of one message: to write more at once would keep the others waiting."""
MOST_WAITING = 256
"""Requests that wait while the exporter does not read; the spans of further ones are dropped."""
FIRST_RESTART_S, LAST_RESTART_S = 1.0, 60.0
"""The first and the longest time before the exporter is started again; it doubles each time."""
FINISH_S = 3.0
"""The time for the last spans when the server stops."""
EXTRA = "sluice-gateway[otel]"

_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_MODULES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc", "opentelemetry.exporter.otlp.proto.http")

logger = logging.getLogger(__name__)


def check_extra() -> None:
    """Raise ConfigError unless the libraries are installed that exporting takes."""
    for module in _MODULES:
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            raise ConfigError(
                f"trace: mode: opentelemetry needs the package of {module}, which is not installed; install it with "
                f"pip install '{EXTRA}'"
            )


def settled(settings: OtlpSettings) -> OtlpSettings:
    """The settings with the protocol of the environment, if they have none. Raises ConfigError for an unknown one."""
    if settings.protocol is not None:
        return settings
    name = next((each for each in _PROTOCOL_VARIABLES if os.environ.get(each)), None)
    given = OtlpProtocol.HTTP if name is None else os.environ[name]
    try:
        return msgspec.structs.replace(settings, protocol=OtlpProtocol(given))
    except ValueError:
        expected = " or ".join(OtlpProtocol)
        raise ConfigError(f"environment variable {name}: expected {expected}, got '{given:.80}'") from None


def launch_exporter() -> Child:
    """Start the exporter on this machine. Raises OSError, and leaves nothing behind then."""
    return launch_module("sluice.gateway.tracing.main", [str(os.getpid())])


class SpanExport(MetricsSource):
    """Passes requests on to the exporter, and counts their spans. Requests never wait for it.

    It is started again when its process ends. Raises ConfigError without the libraries.
    """

    def __init__(self, settings: OtlpSettings, version: str, launch: Callable[[], Child] = launch_exporter) -> None:
        check_extra()
        self._start = StartExport(settled(settings), version)
        self._launch = launch
        self._process: MessageProcess[ToExporter, FromExporter] | None = None
        self._waiting: list[Trace] = []
        self._unread = 0
        """Spans that the exporter could not be given."""
        self._before = SpanCounts(0, 0, 0, "")
        """The counts of processes that have ended."""
        self._counts = SpanCounts(0, 0, 0, "")
        self._restart_s = FIRST_RESTART_S
        self._restarting: asyncio.TimerHandle | None = None
        self._stopping = False

    def start(self) -> None:
        """Start the exporter."""
        self._restarting = None
        try:
            child = self._launch()
        except OSError as error:
            self._exited(f"the exporter cannot be started: {error}")
            return
        self._process = MessageProcess("exporter", child, FromExporter, self._counted, self._exited, self._flush)
        self._process.send(self._start)
        self._flush()

    def export(self, trace: Trace) -> None:
        """Export the spans of a request that has its outcome, or drop them."""
        if len(self._waiting) >= MOST_WAITING:
            self._unread += most_spans(trace)
            return
        self._waiting.append(trace)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(FLUSH_S, self._flush)
        elif len(self._waiting) == FLUSH_TRACES:
            asyncio.get_running_loop().call_soon(self._flush)

    async def stop(self) -> None:
        """Have the exporter send the last spans, within FINISH_S, and end it."""
        self._stopping = True
        if self._restarting is not None:
            self._restarting.cancel()
        process = self._process
        if process is None:
            return
        while self._waiting and not process.is_blocked:
            self._flush()
        process.send(FinishExport(FINISH_S))
        if not await wait_for_exit([process.exited], FINISH_S + 1):
            process.kill("it did not end")
            await process.exited.wait()

    def _flush(self) -> None:
        """Send some of the waiting requests, unless the exporter does not read; others follow in another turn."""
        process = self._process
        if process is None or process.is_blocked or not self._waiting:
            return
        traces, self._waiting = self._waiting[:FLUSH_TRACES], self._waiting[FLUSH_TRACES:]
        try:
            process.send(EndedTraces(tuple(traces)))
        except PartitionError as error:  # batches of very many requests
            self._unread += sum(map(most_spans, traces))
            logger.warning("the spans of %d requests are dropped: %s", len(traces), error)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)

    def _counted(self, counts: FromExporter, fds: tuple[int, ...]) -> None:
        for fd in fds:
            os.close(fd)
        if counts.trouble and not self._counts.trouble:
            log(logger, logging.WARNING, "spans cannot be exported", reason=counts.trouble)
        elif self._counts.trouble and not counts.trouble:
            lost = self._before.failed + counts.failed
            log(logger, logging.INFO, "spans are exported again", failed_spans=lost)
        self._counts = counts
        if counts.exported:
            self._restart_s = FIRST_RESTART_S

    def _exited(self, reason: str) -> None:
        self._process = None
        self._before = self._all_counts()
        self._counts = SpanCounts(0, 0, 0, "")
        if self._stopping:
            return
        log(logger, logging.WARNING, "span exporter lost", reason=reason, restart_in_s=self._restart_s)
        self._restarting = asyncio.get_running_loop().call_later(self._restart_s, self.start)
        self._restart_s = min(2 * self._restart_s, LAST_RESTART_S)

    def _all_counts(self) -> SpanCounts:
        before, now = self._before, self._counts
        return SpanCounts(
            before.exported + now.exported, before.dropped + now.dropped, before.failed + now.failed, now.trouble
        )

    async def refresh(self) -> None:
        """Nothing to do: the exporter reports by itself."""

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        counts = self._all_counts()
        exported = CounterMetricFamily(
            "sluice_trace_spans_exported", "Spans that the collector of OpenTelemetry has taken.", counts.exported
        )
        dropped = CounterMetricFamily(
            "sluice_trace_spans_dropped",
            "Spans that were dropped: too many waited for the collector (queue) or for the exporter (exporter), or the "
            "collector did not take them (collector).",
            labels=["reason"],
        )
        for reason, count in (("queue", counts.dropped), ("exporter", self._unread), ("collector", counts.failed)):
            dropped.add_metric([reason], count)
        yield from (exported, dropped)
