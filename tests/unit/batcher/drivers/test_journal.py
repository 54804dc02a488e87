from pathlib import Path

import msgspec
import pytest

from sluice.batcher.drivers.journal import JournalStep, JournalWriter, decode_spec, decode_step, replay
from sluice.batcher.interface.config import Limits, PriorityLevels, SchedulerSpec
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CombineOutputs,
    DispatchBatch,
    Member,
    RejectRequest,
    ReleaseReason,
)
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    DrainStarted,
    FailureCause,
    LoopDelayed,
    OutputsCombined,
    PartitionLost,
    PartitionReady,
    RequestArrived,
    RequestCancelled,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.dynamic_batching import QueuePolicy
from sluice.models.errors import ConfigError
from sluice.models.pipelines.pipeline import Late
from tests.support.scheduling.builders import (
    CERTAINTY,
    GAINING,
    MS,
    S,
    arrival,
    cascade,
    ensemble,
    model,
    single,
    spec_of,
)

SPEC = spec_of(
    [model("m:1", confidences=(CERTAINTY,)), model("n:1", 4, TimeoutConfig((2, 4), 5 * MS))],
    [single("m:1", Late.EVICT), cascade("m:1", "n:1"), ensemble("m:1", "n:1")],
    limits=Limits(queue_requests=3),
)
STEPS: list[tuple[int, AnyEvent | None]] = [
    (1, arrival(0, S)),
    (2, PartitionReady("cpu0", {"m:1": GAINING, "n:1": GAINING})),
    (2, None),
    (3, arrival(1, S, "cascade:1", rows=2, memory_bytes=77)),
    (3, None),
    (MS, BatchCompleted(1, 3, MS, ((0.1, 0.95),))),
    (MS + 1, arrival(2, S, "ensemble:1")),
    (MS + 1, None),
    (2 * MS, BatchFailed(2, FailureCause.BACKEND, "no")),
    (2 * MS, arrival(3, 3 * MS)),
    (2 * MS, RequestCancelled(3)),
    (2 * MS, LoopDelayed(2 * MS, 4)),
    (2 * MS, arrival(5, S)),
    (3 * MS, RequestArrived(6, "m:1", 1, 5 * MS, received_ns=MS)),
    (3 * MS, DrainStarted()),
    (3 * MS, arrival(4, S)),
    (4 * MS, PartitionLost("cpu0", "killed")),
    (4 * MS, None),
    (6 * S, None),
]


def journal(spec: SchedulerSpec = SPEC) -> list[bytes]:
    lines: list[bytes] = []
    scheduler = Scheduler(spec)
    writer = JournalWriter(lines.append, spec)
    for now_ns, event in STEPS:
        decisions = scheduler.handle_wakeup(now_ns) if event is None else scheduler.handle(event, now_ns)
        writer.record(now_ns, event, decisions)
    return lines


def test_a_journal_is_a_line_for_the_spec_and_one_for_every_step() -> None:
    lines = journal()
    assert len(lines) == 1 + len(STEPS)
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert decode_spec(lines[0]) == SPEC
    assert decode_step(lines[5]) == JournalStep(
        3, None, (DispatchBatch(1, "cpu0", "m:1", 2, (Member(1, 0, 2),), ReleaseReason.IDLE, 1_100_003),)
    )


@pytest.mark.parametrize("event", [event for _, event in STEPS] + [BatchRevoked(7), OutputsCombined(1, 2, ((0.5,),))])
def test_every_event_survives_the_journal(event: AnyEvent | None) -> None:
    lines: list[bytes] = []
    decisions: list[AnyDecision] = [CombineOutputs(Member(1, 2, 2, (0, 3)))]
    JournalWriter(lines.append, SPEC).record(5, event, decisions)
    assert decode_step(lines[1]) == JournalStep(5, event, tuple(decisions))


def test_a_replay_comes_to_the_identical_decisions() -> None:
    assert replay(journal()) is None


def test_a_replay_refuses_what_had_waited_too_long_for_the_loop() -> None:
    steps = [decode_step(line) for line in journal()[1:]]
    full, overdue = (
        decision
        for step in steps
        for decision in step.decisions
        if isinstance(decision, RejectRequest) and decision.reason.startswith("the server is overloaded")
    )
    assert (full.request, full.outcome) == (5, Outcome.REJECTED_QUEUE_FULL)
    assert (overdue.request, overdue.outcome) == (6, Outcome.REJECTED_DEADLINE)


def test_an_arrival_from_before_its_wait_was_recorded_is_read() -> None:
    line = b'{"now_ns": 1, "event": {"type": "RequestArrived", "request": 1, "pipeline": "m:1", "rows": 1, '
    line += b'"deadline_ns": 9}, "decisions": []}'
    assert decode_step(line).event == RequestArrived(1, "m:1", 1, 9, received_ns=0)


def test_a_step_that_is_decided_otherwise_is_found() -> None:
    lines = journal()
    step = decode_step(lines[5])
    original = step.decisions
    assert isinstance(original[0], DispatchBatch)
    changed = msgspec.structs.replace(original[0], rows=1)
    lines[5] = msgspec.json.encode(msgspec.structs.replace(step, decisions=(changed,))) + b"\n"
    difference = replay(lines)
    assert difference is not None
    assert (difference.line, difference.decisions) == (6, original)
    assert difference.step.decisions == (changed,)


def test_a_changed_event_is_found_where_it_is_first_decided_otherwise() -> None:
    lines = journal()
    arrived = decode_step(lines[4])
    event = arrival(1, S, "cascade:1", rows=2, memory_bytes=1 << 40)
    lines[4] = msgspec.json.encode(msgspec.structs.replace(arrived, event=event)) + b"\n"
    first = replay(lines)
    assert first is not None
    assert first.line == 5
    assert isinstance(first.decisions[0], RejectRequest)


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (1, b"garbage\n"),
        (1, b"{}\n"),
        (3, b"garbage\n"),
        (3, b""),
        (3, b'{"now_ns": "soon", "event": null, "decisions": []}\n'),
        (3, b'{"now_ns": 1, "event": {"type": "RequestVanished"}, "decisions": []}\n'),
        (20, b'{"now_ns": 9, "event": nu'),
    ],
)
def test_a_line_that_is_none_of_a_journal_is_named(number: int, line: bytes) -> None:
    lines = journal()
    lines[number - 1] = line
    expected = "the scheduler's spec" if number == 1 else "a step"
    with pytest.raises(ConfigError, match=rf"^journal line {number}: expected {expected} in JSON: "):
        replay(lines)


def test_text_that_is_not_utf8_is_named_as_well() -> None:
    lines = journal()
    lines[2] = (
        b'{"now_ns": 1, "event": {"type": "PartitionLost", "partition": "\xff", "reason": ""}, "decisions": []}\n'
    )
    with pytest.raises(ConfigError, match=r"^journal line 3: "):
        replay(lines)


def test_an_empty_journal_is_no_journal() -> None:
    with pytest.raises(ConfigError, match=r"^journal line 1: expected the scheduler's spec, the journal is empty$"):
        replay([])


def test_a_journal_from_before_classes_and_fields_were_renamed_is_read() -> None:
    """It has a cascade, a combiner and the response cache, whose names were others when it was written."""
    lines = Path(__file__).with_name("journal_before_renaming.jsonl").read_bytes().splitlines()
    written = b"".join(lines)
    for name in (b"RecallOutputs", b"OutputsRecalled", b"OutputsUnknown", b'"verdicts"', b'"verdict"', b'"recalls"'):
        assert name in written
    assert b'"weighed"' in written
    assert replay(lines) is None


def test_priority_levels_survive_the_journal() -> None:
    """Their numbers are keys, which JSON has as strings."""
    levels = PriorityLevels(2, 2, policies={1: QueuePolicy(max_queue_size=1)})
    spec = spec_of([model("m:1", 4, TimeoutConfig(levels=levels))])
    lines: list[bytes] = []
    JournalWriter(lines.append, spec)
    assert decode_spec(lines[0]) == spec
