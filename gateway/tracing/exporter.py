"""Sends spans to a collector with the SDK of OpenTelemetry, in a thread, from a queue of bounded length."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from sluice.gateway.config.tracing import OtlpProtocol, OtlpSettings
from sluice.gateway.observability.traces.trace import Trace
from sluice.gateway.tracing.messages import SpanCounts
from sluice.gateway.tracing.spans import Span, most_spans, spans_of

EXPORT_SPANS = 512
"""Spans of one export, about, as in the SDKs of OpenTelemetry."""
LINGER_S = 0.5
"""The time for which a few spans wait for others."""
MAX_TROUBLE = 500
TRACES_PATH = "/v1/traces"

logger = logging.getLogger(__name__)

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class SpanQueue:
    """Requests whose spans wait for the collector; `report` gets the counts after each export, in another thread.

    At most `settings.queue_spans` spans wait, and those of further requests are dropped.
    """

    def __init__(
        self, exporter: SpanExporter, resource: Resource, most_waiting: int, report: Callable[[SpanCounts], None]
    ) -> None:
        self._exporter = exporter
        self._resource = resource
        self._most_waiting = most_waiting
        self._report = report
        self._traces: deque[tuple[Trace, int]] = deque()
        self._waiting = 0
        self._exported = self._dropped = self._failed = 0
        self._reported = SpanCounts(0, 0, 0, "")
        self._trouble = ""
        self._changed = threading.Condition()
        self._finishing = False
        self._first_error = _FirstError()
        # For all loggers: Python would print what has no handler.
        logging.getLogger().addHandler(self._first_error)
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def put(self, traces: Sequence[Trace]) -> None:
        """Export the spans of requests, as far as they have room."""
        with self._changed:
            for trace in traces:
                size = most_spans(trace)
                if self._waiting + size > self._most_waiting:
                    self._dropped += size
                    continue
                self._waiting += size
                self._traces.append((trace, size))
            if self._waiting >= EXPORT_SPANS:
                self._changed.notify()

    def finish(self, timeout_s: float) -> None:
        """Export what waits, and return when that is done or the time is over."""
        with self._changed:
            self._finishing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._finishing and self._waiting < EXPORT_SPANS:
                    self._changed.wait(LINGER_S)
                traces: list[Trace] = []
                size = 0
                while self._traces and size < EXPORT_SPANS:
                    trace, spans = self._traces.popleft()
                    size += spans
                    traces.append(trace)
                is_last = self._finishing and not self._traces
            if traces:
                self._export(traces)
                with self._changed:
                    self._waiting -= size
            counts = SpanCounts(self._exported, self._dropped, self._failed, self._trouble)
            if counts != self._reported:
                self._reported = counts
                self._report(counts)
            if is_last:
                return

    def _export(self, traces: Sequence[Trace]) -> None:
        offset_ns = time.time_ns() - time.monotonic_ns()
        spans: list[ReadableSpan] = []
        self._first_error.text = ""
        try:
            for trace in traces:
                spans += [readable_span(trace, span, self._resource, offset_ns) for span in spans_of(trace)]
            taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # no error of these spans is one of the next
            taken, self._first_error.text = False, f"{type(error).__name__}: {error}"
        if taken:
            self._exported += len(spans)
            self._trouble = ""
        else:
            self._failed += len(spans) or sum(map(most_spans, traces))
            self._trouble = (self._first_error.text or "the collector does not take them")[:MAX_TROUBLE]


class _FirstError(logging.Handler):
    """Keeps the first warning or error of the SDK and its libraries since `text` was cleared: the cause of others."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.text = self.text or record.getMessage()


def readable_span(trace: Trace, span: Span, resource: Resource, offset_ns: int) -> ReadableSpan:
    """A span of a request as exporters take it; `offset_ns` is the time of day at 0 of the server's clock."""
    trace_id = int(trace.context.trace_id, 16)
    state = TraceState.from_header([trace.context.state]) if trace.context.state else None
    return ReadableSpan(
        span.name,
        SpanContext(trace_id, span.id, False, _SAMPLED, state),
        SpanContext(trace_id, span.parent, span.is_server, _SAMPLED, state) if span.parent else None,
        resource,
        span.attributes,
        links=[Link(SpanContext(int(each.trace_id, 16), each.span_id, False, _SAMPLED)) for each in span.links],
        kind=SpanKind.SERVER if span.is_server else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
        start_time=span.started_ns + offset_ns,
        end_time=span.ended_ns + offset_ns,
        instrumentation_scope=_SCOPE,
    )


_SCOPE = InstrumentationScope("sluice")


def build_resource(settings: OtlpSettings, version: str) -> Resource:
    """The attributes of the server: its name and version, those of the environment, and those of its settings."""
    own = {"service.name": "sluice", "service.version": version}
    given = dict(settings.resource)
    if name := os.environ.get("OTEL_SERVICE_NAME"):
        own["service.name"] = name
    # The resource of the environment is merged over the attributes that Resource.create gets, so it comes first.
    return Resource(own).merge(_environment_resource()).merge(Resource(given))


def _environment_resource() -> Resource:
    created = Resource.create()
    named = "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "") or "OTEL_SERVICE_NAME" in os.environ
    # Without a name of its own, the SDK calls every service unknown.
    return Resource({key: value for key, value in created.attributes.items() if named or key != "service.name"})


class UnusableExporter(SpanExporter):
    """Takes no spans, and logs the reason with each export."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Refuse the spans."""
        logger.error("%s", self._reason)
        return SpanExportResult.FAILURE


def build_exporter(settings: OtlpSettings) -> SpanExporter:
    """The exporter over gRPC or HTTP; what the settings leave out is read from the environment by the SDK.

    With settings or variables that the SDK refuses, it is an `UnusableExporter`: started again, it would do no better.
    """
    try:
        return _build_exporter(settings)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        return UnusableExporter(f"trace.opentelemetry or a variable OTEL_EXPORTER_* cannot be used: {what}")


def _build_exporter(settings: OtlpSettings) -> SpanExporter:
    headers = dict(settings.headers) or None
    exporter: Any
    if settings.protocol is OtlpProtocol.GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        exporter = GrpcExporter(endpoint=settings.endpoint, headers=headers)
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        exporter = HttpExporter(endpoint=http_endpoint(settings.endpoint), headers=headers)
    return exporter  # type: ignore[no-any-return]


def http_endpoint(endpoint: str | None) -> str | None:
    """The URL for traces: an endpoint without a path gets the standard's."""
    if endpoint is None or endpoint.split("//", 1)[1].rstrip("/").count("/"):
        return endpoint
    return endpoint.rstrip("/") + TRACES_PATH
