"""Explanations of requests: a trace as times, costs and one sentence about the main cause of its latency."""

import enum
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from sluice.batcher.interface.config import StageConfig
from sluice.batcher.interface.decisions import Member, ReleaseReason
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.traces.trace import BatchTrace, Trace
from sluice.models.units import NS_PER_MS

IN_PROGRESS = "in_progress"
_REASONS = {Outcome.EVICTED_DEADLINE: "its time in queues ran out"}
"""Reasons of outcomes that have no message of their own."""
MAX_HEADER = 2000
"""Longest header in characters; the rest is replaced by `...`. gRPC clients accept 8 kB of metadata."""


class Cause(enum.StrEnum):
    """The parts of a request's time."""

    QUEUE = "queue"
    """Waiting in a queue, and for the previous batch on the same worker."""
    HAND_OFF = "hand_off"
    """Transfer to workers and back."""
    COMPUTE = "compute"
    """In the backend, as predicted."""
    SLOW_COMPUTE = "slow_compute"
    """In the backend, beyond the prediction."""
    FAILED_BATCHES = "failed_batches"
    """In batches that failed and were repeated."""
    SHORT_DEADLINE = "short_deadline"
    """Computing alone takes longer than the request's deadline."""


class StageTrace(msgspec.Struct, frozen=True):
    """One batch of a request; `rows` of its `batch_rows` were the request's.

    `queue_ms`, `hand_off_ms` (to the worker), `compute_ms` and `return_ms` follow each other from the time when the
    stage's inputs were complete. `batch_wait_ms` is the part of `queue_ms` for which the worker had nothing to run: the
    batch waited for more rows. `predicted_ms` (None: unknown) and `actual_ms` run from the dispatch to the end of the
    batch. `cost` is the request's share. `failed` is the reason of a batch without a result; then only `queue_ms` and
    `actual_ms` are known. A model of a family has an `accuracy` (None: it is of none). It is the cheapest one in time
    of those that reach the `min_accuracy` of the request, or the plan's where that is 0. Where the planner gave the
    stage a rule, `rule` has its name and `fixed` or `search`, or `fallback` for a batch that could not follow it.
    """

    stage: str
    model: str
    partition: str
    batch: int
    batch_rows: int
    rows: int
    closed: str
    queue_ms: float
    hand_off_ms: float
    compute_ms: float
    return_ms: float
    predicted_ms: float | None
    actual_ms: float
    cost: float
    failed: str = ""
    batch_wait_ms: float = 0.0
    accuracy: float | None = None
    min_accuracy: float = 0.0
    rule: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """The outcome of a request and where its time went; times are in milliseconds, costs in units of currency.

    `deadline_ms` and `total_ms` run from its arrival, to the deadline and to the completion of its answer; for one that
    was sent ahead of its time, by `start_after_ms`, they run from its start. `cause` is the largest `Cause`, or the
    outcome of a request that never ran. `trace_id` is the id of its trace in OpenTelemetry,
    "" if it belongs to none.
    """

    id: str
    pipeline: str
    rows: int
    outcome: str
    reason: str
    deadline_ms: float
    total_ms: float
    cost: float
    max_cost: float | None
    stages: tuple[StageTrace, ...]
    cause: str
    sentence: str
    trace_id: str = ""
    start_after_ms: float = 0.0

    def headers(self) -> list[tuple[str, str]]:
        """The explanation as short `x-sluice-*` headers or metadata."""
        lines = [
            ("x-sluice-outcome", self.outcome),
            ("x-sluice-total-ms", f"{self.total_ms:.3f}"),
            ("x-sluice-deadline-ms", f"{self.deadline_ms:.3f}"),
            ("x-sluice-cost", f"{self.cost:.4g}"),
            ("x-sluice-cause", self.cause),
        ]
        if self.start_after_ms:
            lines.append(("x-sluice-start-after-ms", f"{self.start_after_ms:.3f}"))
        if self.reason:
            lines.append(("x-sluice-reason", _header_text(self.reason)))
        if self.trace_id:
            lines.append(("x-sluice-trace-id", self.trace_id))
        if self.stages:
            lines.append(("x-sluice-plan", _joined([_configuration(stage) for stage in self.stages])))
            lines.append(("x-sluice-stages", _joined([_figures(stage) for stage in self.stages])))
        return lines


class Step(NamedTuple):
    """The run of a stage.

    `ready_ns` is the time when its inputs were complete, `before` the run that it waited for last.
    """

    run: BatchTrace
    member: Member
    ready_ns: int
    before: "Step | None"

    @property
    def startable_ns(self) -> int:
        """The time from which only the hand-off kept the worker from starting."""
        return self.run.startable_ns

    def parts(self) -> dict[Cause, int]:
        """Nanoseconds by cause, from `ready_ns` to the report of the end."""
        run, startable_ns = self.run, self.startable_ns
        queue_ns = startable_ns - self.ready_ns
        if run.failed:
            return {Cause.QUEUE: queue_ns, Cause.FAILED_BATCHES: run.reported_ns - startable_ns}
        compute_ns = run.ended_ns - run.started_ns
        predicted_ns = run.batch.predicted_ns
        slow_ns = max(compute_ns - max(predicted_ns - run.expected_ns, 0), 0) if predicted_ns else 0
        return {
            Cause.QUEUE: queue_ns,
            Cause.HAND_OFF: run.started_ns - startable_ns + run.reported_ns - run.ended_ns,
            Cause.COMPUTE: compute_ns - slow_ns,
            Cause.SLOW_COMPUTE: slow_ns,
        }


def explain(trace: Trace, now_ns: int) -> Explanation:
    """The explanation of a request, as of `now_ns` if it is still in flight."""
    steps = steps_of(trace)
    stages = tuple(_stage_trace(step, trace.stages, trace.arrival.min_accuracy) for step in steps)
    ended_ns = max(now_ns, trace.arrived_ns) if trace.outcome is None else trace.ended_ns
    # A copy of an overdue batch may end when the request has its answer from another one.
    on_time = [step for step in steps if step.run.reported_ns <= ended_ns]
    cause, part = _largest(trace, _critical_path(on_time or steps), ended_ns)
    outcome = trace.outcome
    return Explanation(
        trace.id,
        trace.arrival.pipeline,
        trace.arrival.rows,
        IN_PROGRESS if outcome is None else outcome.value,
        _reason(trace),
        _ms(trace.arrival.deadline_ns - trace.arrived_ns),
        _ms(ended_ns - trace.arrived_ns),
        sum(stage.cost for stage in stages),
        trace.arrival.max_cost,
        stages,
        outcome.value if outcome is not None and not outcome.answered and not steps else cause.value,
        _sentence(trace, ended_ns, part),
        trace.context.trace_id,
        _ms(max(trace.arrival.not_before_ns - trace.arrival.received_ns, 0)),
    )


def steps_of(trace: Trace) -> list[Step]:
    """The runs of a request's stages, in the order of their ends."""
    done: dict[int, Step] = {}
    steps: list[Step] = []
    for index, run in enumerate(trace.runs):
        if index and run.batch.batch == trace.runs[index - 1].batch.batch:
            continue  # two stages of the request were in one batch
        for member in run.batch.members:
            if member.request == trace.arrival.request:
                # A stage that ran before was in a batch that failed; a copy that ran at the same time is no cause.
                before = done.get(member.stage)
                if before is None or before.run.reported_ns > run.dispatched_ns:
                    before = _gate(trace.stages, member.stage, done)
                ready_ns = trace.arrived_ns if before is None else before.run.reported_ns
                steps.append(Step(run, member, ready_ns, before))
        done.update((step.member.stage, step) for step in steps if step.run is run)
    return steps


def _gate(stages: Sequence[StageConfig], index: int, done: dict[int, Step]) -> Step | None:
    """The run that a stage waited for last; stages that never ran (combiners, empty escalations) take no time."""
    settled: list[Step | None] = []
    for number, stage in enumerate(stages[: index + 1]):
        asked = () if stage.when is None else (stage.when.stage,)
        gates = [gate for source in (*stage.sources, *asked) if (gate := settled[source]) is not None]
        last = max(gates, key=lambda step: step.run.reported_ns, default=None)
        settled.append(last if number == index else done.get(number, last))
    return settled[index]


def _critical_path(steps: Sequence[Step]) -> list[Step]:
    """The runs that the end of the request depended on, the last one first."""
    path: list[Step] = []
    step = max(steps, key=lambda step: step.run.reported_ns, default=None)
    while step is not None:
        path.append(step)
        step = step.before
    return path


def _largest(trace: Trace, path: Sequence[Step], ended_ns: int) -> tuple[Cause, str]:
    """The largest cause and its description; for a late request, the largest part beyond its predictable time."""
    parts = [(step, step.parts()) for step in path]
    totals = {cause: sum(each.get(cause, 0) for _, each in parts) for cause in Cause}
    late = trace.outcome is Outcome.COMPLETED_LATE
    if trace.outcome is None or not trace.outcome.answered:
        totals[Cause.QUEUE] += ended_ns - (path[0].run.reported_ns if path else trace.arrived_ns)
    if late:
        had_ns = trace.arrival.deadline_ns - trace.arrived_ns
        alone_ns = totals.pop(Cause.COMPUTE)
        if alone_ns > had_ns:
            said = f"it had {_ms(had_ns)} ms, and computing alone takes {_ms(alone_ns)} ms"
            return Cause.SHORT_DEADLINE, f"too little time from the start: {said}"
    cause = max(totals, key=totals.__getitem__)
    said = f"{_PHRASES[cause]}: {_ms(totals[cause])} ms"
    if path:
        step, most = max(parts, key=lambda part: part[1].get(cause, 0))
        if cause is Cause.QUEUE and step.run.batch.reason is ReleaseReason.DELAY:
            said = f"waiting for a batch to fill: {_ms(totals[cause])} ms"
        name = trace.stages[step.member.stage].name
        most_ns = most.get(cause, 0)
        share = "all" if most_ns == totals[cause] else f"{_ms(most_ns)} ms"
        said += f", {share} of it for stage '{name}' on {step.run.batch.partition}"
    return cause, said


_PHRASES = {
    Cause.QUEUE: "waiting behind other requests",
    Cause.HAND_OFF: "transfer to workers and back",
    Cause.COMPUTE: "computing, as predicted",
    Cause.SLOW_COMPUTE: "computing for longer than predicted",
    Cause.FAILED_BATCHES: "batches that failed",
}


def _sentence(trace: Trace, ended_ns: int, part: str) -> str:
    total = f"{_ms(ended_ns - trace.arrived_ns)} ms"
    left_ms = _ms(trace.arrival.deadline_ns - ended_ns)
    match trace.outcome:
        case None:
            return f"It has been in flight for {total}; the largest part was {part}."
        case Outcome.COMPLETED if trace.reason:
            return f"It was answered {left_ms} ms before its deadline, after {total}: {trace.reason}."
        case Outcome.COMPLETED:
            return f"It was answered {left_ms} ms before its deadline; the largest part of {total} was {part}."
        case Outcome.COMPLETED_LATE:
            return f"It was {-left_ms} ms late; the largest cause was {part}."
        case outcome:
            spent = "" if outcome.startswith("rejected_") else f"; the largest part was {part}"
            reason = f": {said}" if (said := _reason(trace)) else ""
            return f"It ended as {outcome} after {total}{reason}{spent}."


def _reason(trace: Trace) -> str:
    return trace.reason or ("" if trace.outcome is None else _REASONS.get(trace.outcome, ""))


def _stage_trace(step: Step, stages: Sequence[StageConfig], min_accuracy: float) -> StageTrace:
    run, member, batch = step.run, step.member, step.run.batch
    stage = stages[member.stage]
    return StageTrace(
        stage.name,
        batch.model,
        batch.partition,
        batch.batch,
        batch.rows,
        member.rows,
        batch.reason.value,
        queue_ms=_ms(step.startable_ns - step.ready_ns),
        hand_off_ms=0.0 if run.failed else _ms(run.started_ns - step.startable_ns),
        compute_ms=_ms(run.ended_ns - run.started_ns),
        return_ms=0.0 if run.failed else _ms(run.reported_ns - run.ended_ns),
        predicted_ms=_ms(batch.predicted_ns - run.dispatched_ns) if batch.predicted_ns else None,
        actual_ms=_ms((run.reported_ns if run.failed else run.ended_ns) - run.dispatched_ns),
        cost=run.cost * member.rows / batch.rows,
        failed=run.failed,
        batch_wait_ms=0.0 if run.failed else _ms(max(0, run.dispatched_ns - max(step.ready_ns, run.idle_ns))),
        accuracy=dict(zip(stage.variants, stage.accuracies, strict=False)).get(batch.model),
        min_accuracy=min_accuracy,
        rule=run.rule,
    )


def _ms(duration_ns: int) -> float:
    return round(duration_ns / NS_PER_MS, 3)


def _configuration(stage: StageTrace) -> str:
    plan = f"{_token(stage.stage)}={_token(stage.model)}*{stage.batch_rows}@{_token(stage.partition)}"
    if stage.accuracy is None:
        return plan
    reason = f"cheapest-in-time-of-{stage.min_accuracy:g}" if stage.min_accuracy else "plan"
    return f"{plan};accuracy={stage.accuracy:g};chosen={reason}"


def _figures(stage: StageTrace) -> str:
    figures = (
        f"{_token(stage.stage)};batch={stage.batch};size={stage.batch_rows};rows={stage.rows}"
        f";partition={_token(stage.partition)};queue={stage.queue_ms:.3f};batch-wait={stage.batch_wait_ms:.3f}"
        f";hand-off={stage.hand_off_ms:.3f};compute={stage.compute_ms:.3f};return={stage.return_ms:.3f}"
        f";cost={stage.cost:.4g}"
    )
    return figures + (f";failed={_token(stage.failed)}" if stage.failed else "")


def _token(name: str) -> str:
    """A name in printable ASCII without the separators of figures."""
    return quote(name, safe=":/#+")


def _header_text(text: str) -> str:
    """Printable ASCII of a bounded length."""
    return "".join(each if " " <= each <= "~" else "?" for each in text[: MAX_HEADER // 4])


def _joined(items: Sequence[str]) -> str:
    text = ""
    for item in items:
        if len(text) + len(item) > MAX_HEADER:
            return f"{text}, ..."
        text = f"{text}, {item}" if text else item
    return text
