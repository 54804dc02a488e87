"""The log of slow and failed requests."""

import logging
from typing import Any

import pytest

from sluice.batcher.interface.config import StageConfig
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.tracing import RequestLogSettings
from sluice.gateway.observability.request_log import RequestLog
from sluice.gateway.observability.traces.context import TraceContext
from sluice.gateway.observability.traces.trace import Trace

MS = 1_000_000


def ended(outcome: Outcome, total_ms: int, at_ms: int = 10_000) -> Trace:
    trace = Trace("a", RequestArrived(1, "m:1", 2, 10**15), (at_ms - total_ms) * MS, (StageConfig("m", "m:1"),))
    trace.outcome, trace.ended_ns = outcome, at_ms * MS
    trace.context = TraceContext("1" * 32)
    return trace


def fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.__dict__["fields"] for record in caplog.records]


@pytest.mark.parametrize(
    ("settings", "outcome", "total_ms", "logged"),
    [
        (RequestLogSettings(slower_than_ms=50), Outcome.COMPLETED, 51, True),
        (RequestLogSettings(slower_than_ms=50), Outcome.COMPLETED, 50, False),
        (RequestLogSettings(slower_than_ms=50), Outcome.REJECTED_DEADLINE, 1, False),
        (RequestLogSettings(failed=True), Outcome.REJECTED_DEADLINE, 1, True),
        (RequestLogSettings(failed=True), Outcome.FAILED_BACKEND, 1, True),
        (RequestLogSettings(failed=True), Outcome.CANCELLED_CLIENT, 1, False),
        (RequestLogSettings(failed=True), Outcome.COMPLETED_LATE, 100, False),
    ],
)
def test_slow_and_failed_requests_are_logged(
    settings: RequestLogSettings,
    outcome: Outcome,
    total_ms: int,
    logged: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    RequestLog(settings).ended(ended(outcome, total_ms))
    assert len(caplog.records) == logged


def test_a_line_says_what_why_says(caplog: pytest.LogCaptureFixture) -> None:
    RequestLog(RequestLogSettings(failed=True)).ended(ended(Outcome.REJECTED_DEADLINE, 3))
    (line,) = fields(caplog)
    assert caplog.records[0].levelno == logging.WARNING
    assert line == {
        "id": "a",
        "trace_id": "1" * 32,
        "pipeline": "m:1",
        "rows": 2,
        "outcome": "rejected_deadline",
        "total_ms": 3.0,
        "deadline_ms": 999_990_003.0,
        "cause": "rejected_deadline",
        "why": "It ended as rejected_deadline after 3.0 ms.",
        "stages": [],
    }


def test_lines_are_bounded_and_the_next_one_says_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    log = RequestLog(RequestLogSettings(failed=True, lines_per_s=2))
    for at_ms in (10_000, 10_100, 10_200, 10_999, 11_000):
        log.ended(ended(Outcome.FAILED_BACKEND, 1, at_ms))
    assert [line.get("suppressed") for line in fields(caplog)] == [None, None, 2]
