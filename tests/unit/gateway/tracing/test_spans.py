"""Spans of requests, made from their records."""

import msgspec

from sluice.batcher.interface.config import StageConfig
from sluice.batcher.interface.decisions import DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.traces.context import SpanRef, TraceContext
from sluice.gateway.observability.traces.explanation import explain
from sluice.gateway.observability.traces.trace import BatchTrace, Trace
from sluice.gateway.tracing.messages import EndedTraces
from sluice.gateway.tracing.spans import Span, SpanLink, most_spans, spans_of

MS = 1_000_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
STAGES = (StageConfig("first", "small:1"), StageConfig("second", "large:1", (0,)))


def run(
    batch: int, model: str, stage: int, times_ms: tuple[float, float, float, float], *, failed: str = "", also: int = 0
) -> BatchTrace:
    """A batch: the times of its dispatch, start, end and report."""
    dispatched, started, ended, reported = (round(each * MS) for each in times_ms)
    members = (Member(1, stage, 2), *(Member(100 + number, 0, 1) for number in range(also)))
    dispatch = DispatchBatch(batch, "cpu0", model, 2 + also, members, ReleaseReason.FULL)
    trace = BatchTrace(dispatch, dispatched, dispatched, dispatched, started, ended, reported, 0.5, failed)
    if failed:
        trace.started_ns = trace.ended_ns = 0
    return trace


def request(*runs: BatchTrace, outcome: Outcome = Outcome.COMPLETED, ended_ms: float = 50, parent: str = "") -> Trace:
    trace = Trace("mine", RequestArrived(1, "cascade:1", 2, 100 * MS), 0, STAGES, runs)
    trace.outcome, trace.ended_ns = outcome, round(ended_ms * MS)
    trace.context, trace.span_id = TraceContext(TRACE, parent, True), 77
    return trace


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


def times(span: Span) -> tuple[float, float]:
    return span.started_ns / MS, span.ended_ns / MS


CASCADE = run(1, "small:1", 0, (1, 2, 5, 6)), run(2, "large:1", 1, (10, 12, 40, 43))


def test_stages_follow_each_other_and_have_their_batches() -> None:
    spans = spans_of(request(*CASCADE, parent="00f067aa0ba902b7"))
    root = spans[0]
    assert (root.name, root.id, root.parent, times(root), root.is_server) == (
        "infer cascade",
        77,
        0x00F067AA0BA902B7,
        (0, 50),
        True,
    )
    first, second = named(spans, "stage first")[0], named(spans, "stage second")[0]
    assert [(span.parent, times(span)) for span in (first, second)] == [(77, (0, 6)), (77, (6, 43))]
    assert [times(span) for span in named(spans, "queue")] == [(0, 1), (6, 10)]
    (batch,) = named(spans, "batch large:1")
    assert (batch.parent, times(batch)) == (second.id, (10, 43))
    inner = [(span.name, times(span)) for span in spans if span.parent == batch.id]
    assert inner == [("hand-off", (10, 12)), ("compute", (12, 40)), ("return", (40, 43))]
    assert len({span.id for span in spans}) == len(spans) == most_spans(request(*CASCADE))


def test_the_times_are_those_of_the_explanation() -> None:
    trace = request(*CASCADE)
    spans, explained = spans_of(trace), explain(trace, trace.ended_ns)
    for name, total_ms in (
        ("queue", sum(stage.queue_ms for stage in explained.stages)),
        ("hand-off", sum(stage.hand_off_ms for stage in explained.stages)),
        ("compute", sum(stage.compute_ms for stage in explained.stages)),
        ("return", sum(stage.return_ms for stage in explained.stages)),
    ):
        assert sum(span.ended_ns - span.started_ns for span in named(spans, name)) / MS == total_ms
    assert spans[0].attributes["sluice.why"] == explained.sentence


def test_a_batch_that_failed_and_ran_again_is_twice_in_its_stage() -> None:
    failed = run(1, "small:1", 0, (1, 0, 0, 4), failed="worker_lost")
    spans = spans_of(request(failed, run(2, "small:1", 0, (5, 6, 8, 9))))
    (stage,) = named(spans, "stage first")
    assert (times(stage), stage.error) == ((0, 9), "")
    first, second = named(spans, "batch small:1")
    assert (first.error, first.attributes["error.type"], times(first)) == ("worker_lost", "worker_lost", (1, 4))
    assert (second.error, times(second)) == ("", (5, 9))
    assert [span.name for span in spans if span.parent == first.id] == []
    assert len({span.id for span in spans}) == len(spans) < most_spans(request(failed, failed))


def test_a_batch_is_linked_to_the_spans_of_others_in_it() -> None:
    shared = run(1, "small:1", 0, (1, 2, 5, 6), also=2)
    trace = request(shared)
    (alone,) = named(spans_of(trace), "batch small:1")
    assert alone.links == []
    shared.traced = (SpanRef(TRACE, alone.id), SpanRef("1" * 32, 5), SpanRef("2" * 32, 6))
    (batch,) = named(spans_of(trace), "batch small:1")
    assert batch.links == [SpanLink("1" * 32, 5), SpanLink("2" * 32, 6)]
    assert (batch.attributes["sluice.batch.rows"], batch.attributes["sluice.rows"]) == (4, 2)
    assert batch.attributes["sluice.cost"] == 0.25


def test_a_request_that_never_ran_is_one_span() -> None:
    (span,) = spans_of(request(outcome=Outcome.REJECTED_QUEUE_FULL, ended_ms=0.5))
    assert span.error == span.attributes["error.type"] == "rejected_queue_full"
    (gone,) = spans_of(request(outcome=Outcome.CANCELLED_CLIENT))
    assert gone.error == ""


def test_a_record_makes_the_same_spans_in_another_process() -> None:
    twice = run(3, "small:1", 0, (1, 2, 5, 6))
    trace = request(twice, twice, CASCADE[1])  # two stages of the request were in one batch
    sent = msgspec.msgpack.encode(EndedTraces((trace,)))
    (received,) = msgspec.msgpack.Decoder(EndedTraces).decode(sent).traces
    assert spans_of(received) == spans_of(trace)
