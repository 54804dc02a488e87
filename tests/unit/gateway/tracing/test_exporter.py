"""Spans in the queue of the exporter, with an exporter of the SDK that keeps or refuses them."""

import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.tracing import OtlpProtocol, OtlpSettings
from sluice.gateway.tracing.export import settled
from sluice.gateway.tracing.exporter import SpanQueue, build_exporter, build_resource, http_endpoint
from sluice.gateway.tracing.messages import SpanCounts
from sluice.models.errors import ConfigError
from tests.unit.gateway.tracing.test_spans import CASCADE, TRACE, request

SPANS = 13


class Kept(SpanExporter):
    """Keeps what is exported; it waits for `going` and then gives the results in turn, an error among them."""

    def __init__(self, *results: SpanExportResult | Exception) -> None:
        self.going = threading.Event()
        self.spans: list[ReadableSpan] = []
        self._results = list(results)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.going.wait(30)
        result = self._results.pop(0) if self._results else SpanExportResult.SUCCESS
        if isinstance(result, Exception):
            raise result
        if result is SpanExportResult.SUCCESS:
            self.spans += spans
        return result


def exported(exporter: Kept, requests: int, most_waiting: int) -> SpanCounts:
    """Put requests while an export is under way, and return the counts at the end."""
    counts: list[SpanCounts] = []
    queue = SpanQueue(exporter, Resource({}), most_waiting, counts.append)
    queue.put([request(*CASCADE)] * requests)
    exporter.going.set()
    queue.finish(30)
    return counts[-1]


def test_all_spans_come_with_times_of_the_day() -> None:
    exporter = Kept()
    assert exported(exporter, 3, 1000) == SpanCounts(3 * SPANS, 0, 0, "")
    root = exporter.spans[0]
    assert (root.name, root.kind, root.parent) == ("infer cascade", SpanKind.SERVER, None)
    assert root.context is not None
    assert root.context.trace_id == int(TRACE, 16)
    assert root.start_time is not None
    assert root.start_time > 10**18
    stage = next(span for span in exporter.spans if span.name == "stage first")
    assert stage.parent is not None
    assert stage.parent.span_id == root.context.span_id
    assert stage.kind is SpanKind.INTERNAL


def test_spans_that_have_no_room_are_dropped() -> None:
    exporter = Kept()
    assert exported(exporter, 5, 2 * SPANS) == SpanCounts(2 * SPANS, 3 * SPANS, 0, "")


@pytest.mark.parametrize(
    ("result", "trouble"),
    [
        (SpanExportResult.FAILURE, "the collector does not take them"),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_a_failed_export_is_counted_and_the_next_one_is_tried(
    result: SpanExportResult | Exception, trouble: str
) -> None:
    exporter = Kept(result)
    counts: list[SpanCounts] = []
    reported = threading.Event()

    def report(each: SpanCounts) -> None:
        counts.append(each)
        reported.set()

    queue = SpanQueue(exporter, Resource({}), 1000, report)
    exporter.going.set()
    queue.put([request(*CASCADE)])
    assert reported.wait(30)
    queue.put([request(*CASCADE)])
    queue.finish(30)
    assert counts == [SpanCounts(0, 0, SPANS, trouble), SpanCounts(SPANS, 0, SPANS, "")]


def test_a_variable_that_cannot_be_used_costs_the_spans_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    counts: list[SpanCounts] = []
    exporter = build_exporter(OtlpSettings(endpoint="http://localhost:4317", protocol=OtlpProtocol.GRPC))
    queue = SpanQueue(exporter, Resource({}), 1000, counts.append)
    queue.put([request(*CASCADE)])
    queue.finish(30)
    assert (counts[-1].exported, counts[-1].failed) == (0, SPANS)
    assert "a variable OTEL_EXPORTER_* cannot be used: ValueError: could not convert" in counts[-1].trouble


def test_an_error_has_its_reason() -> None:
    exporter = Kept()
    queue = SpanQueue(exporter, Resource({}), 1000, lambda counts: None)
    exporter.going.set()
    queue.put([request(outcome=Outcome.FAILED_BACKEND)])
    queue.finish(30)
    (span,) = exporter.spans
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "failed_backend")


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        (None, None),
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("http://localhost:4318/v1/traces", "http://localhost:4318/v1/traces"),
        ("https://host/otlp/v1/traces", "https://host/otlp/v1/traces"),
    ],
)
def test_an_endpoint_over_http_gets_the_path_of_the_standard(endpoint: str | None, url: str | None) -> None:
    assert http_endpoint(endpoint) == url


def test_the_resource_is_of_the_settings_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=a,zone=b")
    settings = OtlpSettings(resource={"zone": "c"})
    found = build_resource(settings, "1.2.3").attributes
    assert (found["service.name"], found["service.version"], found["team"], found["zone"]) == (
        "sluice",
        "1.2.3",
        "a",
        "c",
    )
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    assert build_resource(settings, "1.2.3").attributes["service.name"] == "mine"


def test_the_protocol_is_that_of_the_settings_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"):
        monkeypatch.delenv(name, raising=False)
    assert settled(OtlpSettings()).protocol is OtlpProtocol.HTTP
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert settled(OtlpSettings()).protocol is OtlpProtocol.GRPC
    assert settled(OtlpSettings(protocol=OtlpProtocol.HTTP)).protocol is OtlpProtocol.HTTP
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")
    with pytest.raises(ConfigError, match="TRACES_PROTOCOL: expected grpc or http/protobuf, got 'http/json'"):
        settled(OtlpSettings())
