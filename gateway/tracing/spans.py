"""The spans of a request, made from its record when it has ended.

The span of the request has one for each of its stages. That of a stage has one for the time in the queue and one for
each batch, which has those of the hand-off to the worker, the backend, and the way back. All times are those that
`sluice why` reports.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.traces.context import batch_span_id, derived_span_id
from sluice.gateway.observability.traces.explanation import Explanation, Step, explain, steps_of
from sluice.gateway.observability.traces.trace import REVOKED, BatchTrace, Trace
from sluice.models.spec import public_key

STEP_SPANS = 5
"""The most spans of one run of a stage, beside that of the stage."""

_STAGE, _QUEUE = 1 << 60, 1 << 61
"""Numbers from which ids of spans are derived: those of batches are smaller."""
_HAND_OFF, _COMPUTE, _RETURN = 1, 2, 3
_TRANSPORTS: Mapping[str, Mapping[str, str]] = {
    "http": {"http.request.method": "POST", "network.protocol.name": "http"},
    "grpc": {"rpc.system": "grpc", "rpc.service": "inference.GRPCInferenceService", "rpc.method": "ModelInfer"},
}
"""Attributes of the semantic conventions of OpenTelemetry."""

Attribute: TypeAlias = str | int | float | bool


class SpanLink(NamedTuple):
    """A span of another request, or of the same one."""

    trace_id: str
    span_id: int


class Span(NamedTuple):
    """A span, on the clock of the server; `parent` is 0 without a parent. `error` is "" for one that did not fail."""

    id: int
    parent: int
    name: str
    started_ns: int
    ended_ns: int
    attributes: Mapping[str, Attribute]
    links: Sequence[SpanLink] = ()
    error: str = ""
    is_server: bool = False


def most_spans(trace: Trace) -> int:
    """The largest number of spans that a request may have."""
    return 1 + sum((STEP_SPANS + 1) * max(_parts(trace, run), 1) for run in trace.runs)


def _parts(trace: Trace, run: BatchTrace) -> int:
    return sum(member.request == trace.arrival.request for member in run.batch.members)


def spans_of(trace: Trace) -> list[Span]:
    """The spans of a request that has its outcome; that of the request is the first one."""
    steps = steps_of(trace)
    spans = [_request_span(trace, explain(trace, trace.ended_ns))]
    stages: dict[int, list[Step]] = {}
    for step in steps:
        stages.setdefault(step.member.stage, []).append(step)
    for stage, runs in stages.items():
        stage_id = derived_span_id(trace.span_id, _STAGE + stage)
        config = trace.stages[stage]
        spans.append(
            Span(
                stage_id,
                trace.span_id,
                f"stage {config.name}",
                min(step.ready_ns for step in runs),
                max(step.run.reported_ns for step in runs),
                {"sluice.stage": config.name, "sluice.model": public_key(runs[-1].run.batch.model)},
                error=_error(runs[-1]),
            )
        )
        for step in runs:
            spans += _step_spans(trace, stage_id, step)
    return spans


def _request_span(trace: Trace, explained: Explanation) -> Span:
    outcome = trace.outcome
    assert outcome is not None, "it has ended"
    name, _, version = public_key(trace.arrival.pipeline).rpartition(":")
    attributes: dict[str, Attribute] = {
        **_TRANSPORTS.get(trace.context.transport, {}),
        "sluice.request_id": trace.id,
        "sluice.pipeline": name,
        "sluice.version": version,
        "sluice.rows": trace.arrival.rows,
        "sluice.outcome": outcome.value,
        "sluice.in_time": outcome is Outcome.COMPLETED,
        "sluice.deadline_ms": explained.deadline_ms,
        "sluice.cost": explained.cost,
        "sluice.cause": explained.cause,
        "sluice.why": explained.sentence,
    }
    failed = not outcome.answered and outcome is not Outcome.CANCELLED_CLIENT
    if failed:
        attributes["error.type"] = outcome.value
    parent = int(trace.context.parent_id, 16) if trace.context.parent_id else 0
    error = (explained.reason or outcome.value) if failed else ""
    return Span(
        trace.span_id, parent, f"infer {name}", trace.arrived_ns, trace.ended_ns, attributes, (), error, is_server=True
    )


def _error(step: Step) -> str:
    """Why a batch failed; "" for one that was only revoked."""
    return "" if step.run.failed == REVOKED else step.run.failed


def _step_spans(trace: Trace, stage_id: int, step: Step) -> list[Span]:
    run, member = step.run, step.member
    batch = run.batch
    startable_ns = run.startable_ns
    batch_id = batch_span_id(trace.span_id, batch.batch, member.stage)
    attributes: dict[str, Attribute] = {
        "sluice.batch": batch.batch,
        "sluice.batch.rows": batch.rows,
        "sluice.batch.requests": len(batch.members),
        "sluice.rows": member.rows,
        "sluice.model": public_key(batch.model),
        "sluice.partition": batch.partition,
        "sluice.closed": batch.reason.value,
        "sluice.cost": run.cost * member.rows / batch.rows,
    }
    if batch.predicted_ns:
        attributes["sluice.predicted_ms"] = (batch.predicted_ns - run.dispatched_ns) / 1e6
    if run.failed == REVOKED:
        attributes["sluice.revoked"] = True
    elif run.failed:
        attributes["error.type"] = run.failed
    # A batch of other requests as well: their spans in it are linked.
    others = [SpanLink(each.trace_id, each.span_id) for each in run.traced if each.span_id != batch_id]
    queue_id = derived_span_id(batch_id, _QUEUE)
    spans = [
        Span(queue_id, stage_id, "queue", step.ready_ns, startable_ns, {}),
        Span(
            batch_id,
            stage_id,
            f"batch {public_key(batch.model)}",
            startable_ns,
            run.reported_ns,
            attributes,
            others,
            _error(step),
        ),
    ]
    if not run.failed:
        parts = (
            (_HAND_OFF, "hand-off", startable_ns, run.started_ns),
            (_COMPUTE, "compute", run.started_ns, run.ended_ns),
            (_RETURN, "return", run.ended_ns, run.reported_ns),
        )
        partition = {"sluice.partition": batch.partition}
        spans += [
            Span(derived_span_id(batch_id, number), batch_id, name, started_ns, ended_ns, partition)
            for number, name, started_ns, ended_ns in parts
        ]
    return spans
