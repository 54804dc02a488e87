"""Explanations of requests whose traces are known to the nanosecond."""

from collections.abc import Sequence

import pytest

from sluice.batcher.interface.config import StageConfig, WhenConfig
from sluice.batcher.interface.decisions import DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.cli.why import table
from sluice.gateway.observability.traces.explanation import Explanation, StageTrace, explain
from sluice.gateway.observability.traces.trace import BatchTrace, RecentTraces, Trace
from sluice.models.errors import NotFoundError

MS = 1_000_000
ONE = (StageConfig("mlp", "mlp:1"),)
CASCADE = (StageConfig("small", "small:1"), StageConfig("large", "large:1", when=WhenConfig(0, 0, 0.9)))
ENSEMBLE = (StageConfig("a", "m:1"), StageConfig("b", "m:1"), StageConfig("vote", None, (0, 1)))


def ns(milliseconds: float) -> int:
    return round(milliseconds * MS)


def batch(
    number: int, *members: Member, model: str = "mlp:1", predicted_ms: float = 0, reason: ReleaseReason | None = None
) -> DispatchBatch:
    rows = sum(member.rows for member in members)
    return DispatchBatch(number, "cpu0", model, rows, members, reason or ReleaseReason.IDLE, round(predicted_ms * MS))


def ran(
    ordered: DispatchBatch,
    dispatched: float,
    started: float,
    ended: float,
    explained: float,
    *,
    free: float = 0,
    expected: float = 0,
    idle: float | None = None,
    cost: float = 0,
) -> BatchTrace:
    """A batch that ran; times in ms, `free`, `expected` and `idle` are at its dispatch unless they are given."""
    return BatchTrace(
        ordered,
        dispatched_ns=ns(dispatched),
        free_ns=ns(max(free, dispatched)),
        expected_ns=ns(max(expected, dispatched)),
        idle_ns=ns(dispatched if idle is None else idle),
        started_ns=ns(started),
        ended_ns=ns(ended),
        reported_ns=ns(explained),
        cost=cost,
    )


def trace(
    runs: Sequence[BatchTrace],
    outcome: Outcome | None,
    ended_ms: float,
    *,
    stages: tuple[StageConfig, ...] = ONE,
    slo_ms: float = 10,
    reason: str = "",
    rows: int = 1,
    min_accuracy: float = 0.0,
) -> Trace:
    arrival = RequestArrived(7, "mlp:1", rows, round(slo_ms * MS), min_accuracy=min_accuracy)
    return Trace("r-1", arrival, 0, stages, tuple(runs), outcome, reason, round(ended_ms * MS))


def test_the_times_of_a_request_that_was_sent_ahead_count_from_its_start() -> None:
    run = ran(batch(3, Member(7, 0, 1)), 50, 51, 53, 54)
    arrival = RequestArrived(7, "mlp:1", 1, 60 * MS, received_ns=10 * MS, not_before_ns=50 * MS)
    ahead = Trace("r-1", arrival, 50 * MS, ONE, (run,), Outcome.COMPLETED, "", 54 * MS)
    explained = explain(ahead, 0)
    assert (explained.start_after_ms, explained.deadline_ms, explained.total_ms) == (40.0, 10.0, 4.0)
    assert explained.stages[0].queue_ms == 0
    assert ("x-sluice-start-after-ms", "40.000") in explained.headers()
    assert "completed in 4.000 of 10.000 ms, cost 0, to begin 40.000 ms after it came" in table(explained)
    waiting = Trace("r-1", arrival, 50 * MS, ONE)
    assert explain(waiting, 20 * MS).total_ms == 0


def test_a_batch_that_a_planner_has_a_rule_for_names_both() -> None:
    run = ran(batch(3, Member(7, 0, 1), reason=ReleaseReason.FULL), 1, 2, 4, 4.5)
    run.rule = "infless: fixed"
    explained = explain(trace([run], Outcome.COMPLETED, 4.5), 0)
    assert explained.stages[0].rule == "infless: fixed"
    assert "full (infless: fixed)" in table(explained)


def why(given: Trace) -> tuple[str, str]:
    explanation = explain(given, 100 * MS)
    return explanation.cause, explanation.sentence


def test_times_follow_each_other_and_a_request_pays_for_its_rows() -> None:
    members = Member(6, 0, 2), Member(7, 0, 1)
    run = ran(batch(3, *members, predicted_ms=4.5), 1, 2.25, 4, 4.5, free=2, cost=0.75)
    explained = explain(trace([run], Outcome.COMPLETED, 4.5), 0)
    assert explained == Explanation(
        id="r-1",
        pipeline="mlp:1",
        rows=1,
        outcome="completed",
        reason="",
        deadline_ms=10.0,
        total_ms=4.5,
        cost=0.25,
        max_cost=None,
        stages=(
            StageTrace(
                stage="mlp",
                model="mlp:1",
                partition="cpu0",
                batch=3,
                batch_rows=3,
                rows=1,
                closed="idle",
                queue_ms=2.0,  # 1 until the dispatch, 1 more until the worker had ended the batch before
                hand_off_ms=0.25,
                compute_ms=1.75,
                return_ms=0.5,
                predicted_ms=3.5,
                actual_ms=3.0,
                cost=0.25,
            ),
        ),
        cause="queue",
        sentence="It was answered 5.5 ms before its deadline; the largest part of 4.5 ms was waiting behind other "
        "requests: 2.0 ms, all of it for stage 'mlp' on cpu0.",
    )


ME = Member(7, 0, 1)


def test_a_copy_that_ran_beside_an_overdue_batch_waited_for_nothing() -> None:
    overdue = ran(batch(1, ME, predicted_ms=3), 1, 1.5, 59, 60)
    copy = ran(batch(2, ME, predicted_ms=12, reason=ReleaseReason.RETRY), 9, 9.5, 11, 11.5)
    explained = explain(trace([copy, overdue], Outcome.COMPLETED_LATE, 11.5), 0)
    assert [(each.batch, each.queue_ms, each.hand_off_ms) for each in explained.stages] == [
        (2, 9.0, 0.5),
        (1, 1.0, 0.5),
    ]
    assert explained.cause == "queue"
    assert explained.sentence == (
        "It was 1.5 ms late; the largest cause was waiting behind other requests: 9.0 ms, all of it for stage 'mlp' on "
        "cpu0."
    )


@pytest.mark.parametrize(
    ("runs", "ended_ms", "cause", "sentence"),
    [
        (
            [ran(batch(1, ME, predicted_ms=11), 9, 9.1, 11, 11.1)],
            11.1,
            "queue",
            "waiting behind other requests: 9.0 ms, all of it for stage 'mlp' on cpu0",
        ),
        (
            [ran(batch(1, ME, predicted_ms=11, reason=ReleaseReason.DELAY), 9, 9.1, 11, 11.1)],
            11.1,
            "queue",
            "waiting for a batch to fill: 9.0 ms, all of it for stage 'mlp' on cpu0",
        ),
        (
            [ran(batch(1, ME, predicted_ms=6), 1, 5, 9, 12)],
            12,
            "hand_off",
            "transfer to workers and back: 7.0 ms, all of it for stage 'mlp' on cpu0",
        ),
        (
            [ran(batch(1, ME, predicted_ms=3), 1, 1, 12, 12)],
            12,
            "slow_compute",
            "computing for longer than predicted: 9.0 ms, all of it for stage 'mlp' on cpu0",
        ),
        (
            # The batch before took longer than predicted, this one did not.
            [ran(batch(1, ME, predicted_ms=5), 1, 9, 11.5, 11.5, free=9, expected=2)],
            11.5,
            "queue",
            "waiting behind other requests: 9.0 ms, all of it for stage 'mlp' on cpu0",
        ),
        (
            [ran(batch(1, ME, predicted_ms=12), 0.5, 0.5, 12, 12)],
            12,
            "short_deadline",
            "too little time from the start: it had 10.0 ms, and computing alone takes 11.5 ms",
        ),
        (
            [
                BatchTrace(batch(1, ME), 1 * MS, reported_ns=9 * MS, failed="worker_lost"),
                ran(batch(2, ME), 10, 10, 12, 12),
            ],
            12,
            "failed_batches",
            "batches that failed: 8.0 ms, all of it for stage 'mlp' on cpu0",
        ),
    ],
)
def test_the_largest_cause_of_a_late_answer_is_named(
    runs: list[BatchTrace], ended_ms: float, cause: str, sentence: str
) -> None:
    named, said = why(trace(runs, Outcome.COMPLETED_LATE, ended_ms))
    assert (named, said) == (cause, f"It was {round(ended_ms - 10.0, 3)} ms late; the largest cause was {sentence}.")


def test_a_stage_waits_from_when_the_end_of_the_one_before_was_reported() -> None:
    runs = [
        ran(batch(1, Member(7, 0, 4), model="small:1"), 1, 1, 2, 2.5),
        ran(batch(2, Member(7, 1, 2, (0, 3)), model="large:1"), 11.5, 11.5, 12, 12),
    ]
    explained = explain(trace(runs, Outcome.COMPLETED_LATE, 12, stages=CASCADE, rows=4), 0)
    assert [(stage.stage, stage.rows, stage.queue_ms) for stage in explained.stages] == [
        ("small", 4, 1.0),
        ("large", 2, 9.0),
    ]
    assert explained.sentence == (
        "It was 2.0 ms late; the largest cause was waiting behind other requests: 10.0 ms, "
        "9.0 ms of it for stage 'large' on cpu0."
    )


def test_of_stages_side_by_side_only_the_one_that_ended_last_counts() -> None:
    runs = [
        ran(batch(1, Member(7, 0, 1), model="m:1"), 8, 8, 9, 9),
        ran(batch(2, Member(7, 1, 1), model="m:1"), 1, 7, 12, 12),
    ]
    explained = explain(trace(runs, Outcome.COMPLETED_LATE, 12, stages=ENSEMBLE), 0)
    assert [(stage.stage, stage.queue_ms) for stage in explained.stages] == [("a", 8.0), ("b", 1.0)]
    assert explained.cause == "hand_off"


def test_two_stages_of_a_request_may_share_a_batch() -> None:
    run = ran(batch(1, Member(7, 0, 1), Member(7, 1, 1), model="m:1"), 1, 1, 2, 2, cost=0.5)
    explained = explain(trace([run, run], Outcome.COMPLETED, 2, stages=ENSEMBLE), 0)
    assert [(stage.stage, stage.cost) for stage in explained.stages] == [("a", 0.25), ("b", 0.25)]
    assert explained.cost == 0.5


def test_a_request_without_an_answer_tells_its_reason() -> None:
    assert why(trace([], Outcome.REJECTED_DEADLINE, 0, reason="predicted to complete in 12.0 ms")) == (
        "rejected_deadline",
        "It ended as rejected_deadline after 0.0 ms: predicted to complete in 12.0 ms.",
    )
    assert why(trace([], Outcome.EVICTED_DEADLINE, 9, reason="out of reach")) == (
        "evicted_deadline",
        "It ended as evicted_deadline after 9.0 ms: out of reach; the largest part was waiting behind other requests: "
        "9.0 ms.",
    )
    expired = explain(trace([], Outcome.EVICTED_DEADLINE, 9), 0)
    assert dict(expired.headers())["x-sluice-reason"] == "its time in queues ran out"
    assert expired.sentence.startswith("It ended as evicted_deadline after 9.0 ms: its time in queues ran out; ")
    assert why(trace([], None, 0)) == (
        "queue",
        "It has been in flight for 100.0 ms; the largest part was waiting behind other requests: 100.0 ms.",
    )


def test_a_request_waits_for_its_batch_to_fill_while_the_worker_has_nothing_to_run() -> None:
    waits = [
        explain(trace([ran(batch(1, ME), 5, 5.5, 7, 7.5, idle=idle)], Outcome.COMPLETED, 7.5), 0).stages[0]
        for idle in (0, 3, 5)  # never busy since the request came, busy until 3, busy until the dispatch
    ]
    assert [(each.queue_ms, each.batch_wait_ms) for each in waits] == [(5.0, 5.0), (5.0, 2.0), (5.0, 0.0)]


def test_headers_are_short_and_ascii() -> None:
    run = ran(batch(3, Member(6, 0, 2), ME), 1, 2.25, 4, 4.5, free=2, cost=3e-8)
    assert explain(trace([run], Outcome.COMPLETED, 4.5), 0).headers() == [
        ("x-sluice-outcome", "completed"),
        ("x-sluice-total-ms", "4.500"),
        ("x-sluice-deadline-ms", "10.000"),
        ("x-sluice-cost", "1e-08"),
        ("x-sluice-cause", "queue"),
        ("x-sluice-plan", "mlp=mlp:1*3@cpu0"),
        (
            "x-sluice-stages",
            "mlp;batch=3;size=3;rows=1;partition=cpu0;"
            "queue=2.000;batch-wait=0.000;hand-off=0.250;compute=1.750;return=0.500;cost=1e-08",
        ),
    ]
    headers = dict(explain(trace([], Outcome.FAILED_BACKEND, 1, reason="ä\r\nx: y"), 0).headers())
    assert headers["x-sluice-reason"] == "???x: y"
    many = tuple(StageConfig(f"stage-{index}, ;", "m:1") for index in range(40))
    runs = [ran(batch(index, Member(7, index, 1)), 1, 2, 3, 4) for index in range(40)]
    lines = dict(explain(trace(runs, Outcome.COMPLETED, 4, stages=many), 0).headers())
    assert lines["x-sluice-plan"].startswith("stage-0%2C%20%3B=mlp:1*1@cpu0, stage-1%2C%20%3B=mlp:1*1@cpu0, ")
    assert lines["x-sluice-plan"].endswith("stage-39%2C%20%3B=mlp:1*1@cpu0")
    assert len(lines["x-sluice-stages"]) <= 2005
    assert lines["x-sluice-stages"].endswith(";cost=0, ...")


def test_the_table_has_a_line_a_stage_and_the_sentence() -> None:
    runs = [
        BatchTrace(batch(1, ME), 1 * MS, reported_ns=2 * MS, failed="backend"),
        ran(batch(2, Member(6, 0, 2), ME, predicted_ms=4.5), 2, 2.25, 4, 4.5, cost=0.75),
    ]
    assert table(explain(trace(runs, Outcome.COMPLETED, 4.5), 0)).splitlines() == [
        "request r-1: mlp:1, 1 row, completed in 4.500 of 10.000 ms, cost 0.25",
        "stage  model  partition  batch  size  rows  closed  queue  hand-off  compute  return  predicted  actual  cost",
        "mlp    mlp:1  cpu0       1      1     1     idle    1.000  -         backend  -       -          1.000   0",
        "mlp    mlp:1  cpu0       2      3     1     idle    0.000  0.250     1.750    0.500   2.500      2.000   0.25",
        "(times in ms; predicted and actual run from the dispatch to the end of the batch)",
        "It was answered 5.5 ms before its deadline; the largest part of 4.5 ms was computing, as predicted: 1.75 ms, "
        "all of it for stage 'mlp' on cpu0.",
    ]


def test_only_the_last_requests_are_remembered_and_of_equal_ids_the_latest() -> None:
    traces = RecentTraces(2)
    for number, id in enumerate(("first", "same", "same"), start=1):
        traces.add(Trace(id, RequestArrived(number, "mlp:1", 1, 0), 0, ONE))
    assert traces.find("same").arrival.request == 3
    with pytest.raises(NotFoundError, match="request 'first' is not remembered: expected one of the last 2, or of as"):
        traces.find("first")
    traces.add(Trace("", RequestArrived(4, "mlp:1", 1, 0), 0, ONE))
    assert traces.find("sluice-4").arrival.request == 4
    missed = traces.find("same")
    traces.add_missed(missed)
    for number in (5, 6):
        traces.add(Trace("", RequestArrived(number, "mlp:1", 1, 0), 0, ONE))
    assert traces.find("same") is missed


def test_a_model_of_a_family_comes_with_its_accuracy_and_why_it_was_chosen() -> None:
    family = (StageConfig("mlp", "big:1", variants=("big:1", "mlp:1"), accuracies=(0.95, 0.9)),)
    for min_accuracy, chosen in ((0.0, "plan"), (0.85, "cheapest-in-time-of-0.85")):
        run = ran(batch(1, ME), 1, 2, 3, 4)
        traced = trace([run], Outcome.COMPLETED, 4, stages=family, min_accuracy=min_accuracy)
        plan = dict(explain(traced, 0).headers())["x-sluice-plan"]
        assert plan == f"mlp=mlp:1*1@cpu0;accuracy=0.9;chosen={chosen}"
