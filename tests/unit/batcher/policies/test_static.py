"""The batching parameters of TensorFlow Serving: sizes, timeout, queue and threads."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import Limits, PolicyConfig, ScheduledModel
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CombineOutputs,
    CompleteRequest,
    DispatchBatch,
    EvictRequest,
    FailRequest,
    RejectRequest,
    ReleaseReason,
)
from sluice.batcher.interface.events import AnyEvent, Confidences, PartitionLost, PartitionReady
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.base import Choice
from sluice.batcher.policies.registry import decode_policy
from sluice.batcher.policies.static import StaticPolicy, StaticSettings
from sluice.batcher.queues.queue import NO_WAITERS
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    GAINING,
    MS,
    ONE,
    US,
    S,
    arrival,
    completed,
    model,
    serving,
    spec_of,
    step,
)
from tests.unit.batcher.policies.views import Waiting, WaitingQueue, idle

FULL, IDLE, DELAY = ReleaseReason.FULL, ReleaseReason.IDLE, ReleaseReason.DELAY
SIZES = StaticSettings(max_batch_size=6, allowed_batch_sizes=(2, 6))


def test_a_batch_closes_when_it_is_full_or_its_first_request_has_waited_for_the_timeout() -> None:
    policy = StaticPolicy(StaticSettings(max_batch_size=4, batch_timeout_micros=2000), Limits())
    few, many, context = WaitingQueue(Waiting(enqueued_ns=MS)), WaitingQueue(*[Waiting()] * 5), idle(ONE)
    assert policy.choose(many, context) == Choice(4, FULL)
    assert policy.choose(few, context) == Choice(0, DELAY, 3 * MS, 4)
    assert policy.choose(few, context._replace(now_ns=3 * MS)) == Choice(1, DELAY)
    assert StaticPolicy(StaticSettings(), Limits()).choose(few, context) == Choice(1, IDLE)


def test_no_further_batch_starts_while_all_threads_have_one() -> None:
    policy, queue = StaticPolicy(StaticSettings(num_batch_threads=2), Limits()), WaitingQueue(Waiting())
    assert policy.choose(queue, idle(ONE)._replace(under_way=1)) == Choice(1, IDLE)
    assert policy.choose(queue, idle(ONE)._replace(under_way=2)) == Choice(0, IDLE, S, NO_WAITERS)


def test_a_model_with_a_smaller_maximum_has_the_largest_allowed_size_below_that() -> None:
    sizes = StaticSettings(max_batch_size=16, allowed_batch_sizes=(3, 6, 16))
    assert StaticPolicy(sizes, Limits()).full_rows(idle(ONE).estimate) == 6  # of at most 8 rows
    assert model("m:1", 8, sizes).run_sizes == (3, 6)
    larger = StaticSettings(max_batch_size=16, allowed_batch_sizes=(16,))
    assert StaticPolicy(larger, Limits()).full_rows(idle(ONE).estimate) == 8
    assert model("m:1", 8, larger).run_sizes == ()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"max_batch_size": 0}, "max_batch_size: expected at least 1, got 0"),
        ({"batch_timeout_micros": -1}, "batch_timeout_micros: expected at least 0, got -1"),
        ({"max_enqueued_batches": 0}, "max_enqueued_batches: expected at least 1, got 0"),
        ({"num_batch_threads": -2}, "num_batch_threads: expected at least 0, got -2"),
        (
            {"max_batch_size": 8, "allowed_batch_sizes": [4, 2, 8]},
            r"allowed_batch_sizes: expected ascending sizes of at least 1 that end with max_batch_size \(8\), "
            r"got \[4, 2, 8\]",
        ),
        ({"max_batch_size": 8, "allowed_batch_sizes": [2, 4]}, r"that end with max_batch_size \(8\), got \[2, 4\]"),
        ({"max_batch_sizes": 8}, "unknown field `max_batch_sizes`.*did you mean 'max_batch_size'"),
    ],
)
def test_a_parameter_that_is_wrong_is_named(document: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_policy(PolicyConfig, {"name": "static", **document})


def test_a_batch_runs_with_the_next_allowed_size_and_is_predicted_to_take_its_time() -> None:
    scheduler = serving(spec_of([model("m:1", 8, SIZES)]), GAINING)
    (batch,) = step(scheduler, 0, *[arrival(number, S) for number in range(3)])
    assert isinstance(batch, DispatchBatch)
    assert (batch.rows, batch.padded_rows, batch.run_rows) == (3, 6, 6)
    estimate = scheduler.dispatcher.models["m:1"].estimates["cpu1"]
    assert estimate.sizes == (2, 6, 8)
    assert [estimate.expected_ns(rows) for rows in (1, 2, 3, 6)] == [1.1 * MS, 1.1 * MS, 1.4 * MS, 1.4 * MS]
    done = step(scheduler, 2 * MS, completed(1, 0, 2 * MS))
    assert done == [CompleteRequest(number, Outcome.COMPLETED) for number in range(3)]


@pytest.mark.parametrize("rows", [2, 6, 7])
def test_a_batch_of_an_allowed_size_and_one_larger_request_run_as_they_are(rows: int) -> None:
    scheduler = serving(spec_of([model("m:1", 8, SIZES)]), GAINING)
    (batch,) = step(scheduler, 0, arrival(1, S, rows=rows))
    assert isinstance(batch, DispatchBatch)
    assert (batch.rows, batch.padded_rows) == (rows, 0)


def test_a_model_that_sees_its_requests_gets_no_rows_but_theirs() -> None:
    config = ScheduledModel("m:1", 8, SIZES, sees_requests=True)
    (batch,) = step(serving(spec_of([config]), GAINING), 0, arrival(1, S))
    assert isinstance(batch, DispatchBatch)
    assert batch.run_rows == 1


def test_a_request_is_refused_while_the_rows_of_all_batches_wait() -> None:
    static = StaticSettings(max_batch_size=2, max_enqueued_batches=2, num_batch_threads=1)
    scheduler = serving(spec_of([model("m:1", 8, static)]), ONE)
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    assert step(scheduler, 1, *[arrival(number, S) for number in range(3, 7)]) == []
    (refused,) = step(scheduler, 2, arrival(7, S))
    assert isinstance(refused, RejectRequest)
    assert refused.outcome is Outcome.REJECTED_QUEUE_FULL
    assert refused.reason == "4 rows wait for model m:1, which has room for 2 batches"
    again, *done = sorted(step(scheduler, MS, completed(1, 0, MS)), key=lambda each: isinstance(each, CompleteRequest))
    assert isinstance(again, DispatchBatch)
    assert len(done) == 2
    assert step(scheduler, MS + 1, arrival(8, S, rows=2)) == []


def test_a_batch_that_ends_lets_the_next_one_start_on_another_kind_of_partition() -> None:
    spec = spec_of([model("m:1", 8, StaticSettings(max_batch_size=1, num_batch_threads=1))], partitions=("a", "b"))
    scheduler = serving(spec, ONE)
    (first,) = step(scheduler, 0, arrival(1, S), arrival(2, S))
    assert isinstance(first, DispatchBatch)
    assert step(scheduler, MS // 2) == []
    *_, second = step(scheduler, MS, completed(first.batch, 0, MS))
    assert isinstance(second, DispatchBatch)
    assert second.batch == 2


class PaddedService:
    """A batch takes 0.1 ms for each row that runs."""

    def batch_ns(self, batch: DispatchBatch) -> int:
        return 100 * US * batch.run_rows

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        return ()

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()


@given(
    st.lists(st.tuples(st.integers(0, 800), st.sampled_from(["m:1", "n:1"]), st.integers(1, 3)), max_size=40),
    st.integers(0, 10 * MS),
    st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_each_request_has_one_outcome_and_batches_only_allowed_sizes_whatever_fails(
    arrivals: list[tuple[int, str, int]], lost_ns: int, threads: int
) -> None:
    static = StaticSettings(4, 300, 2, threads, (1, 4))
    spec = spec_of([model("m:1", 4, static), model("n:1", 4, SIZES)], partitions=("a", "b"))
    scheduler, lines, outcomes = Scheduler(spec), list[bytes](), list[int]()
    writer = JournalWriter(lines.append, spec)

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        writer.record(now_ns, event, decisions)
        check_invariants(scheduler)
        for each in decisions:
            if isinstance(each, DispatchBatch):
                assert each.run_rows in {"m:1": (1, 4), "n:1": (2, 3)}[each.model]
                if each.reason is not ReleaseReason.RETRY and each.model == "m:1":
                    assert scheduler.dispatcher.models["m:1"].under_way <= threads
            elif isinstance(each, CompleteRequest | RejectRequest | EvictRequest | FailRequest):
                outcomes.append(each.request)

    simulator = Simulator(scheduler, PaddedService(), observe)
    table = LatencyTable.from_ms({1: 0.1, 2: 0.2, 4: 0.4})
    for name in ("a", "b"):
        simulator.at(0, PartitionReady(name, {"m:1": table, "n:1": table}))
    simulator.at(lost_ns, PartitionLost("a", "gone"))
    simulator.at(lost_ns + 5 * MS, PartitionReady("a", {"m:1": table, "n:1": table}))
    at_ns, events = 0, []
    for number, (gap_us, key, rows) in enumerate(arrivals):
        at_ns += gap_us * US
        events.append((at_ns, arrival(number, at_ns + S, key, rows=rows)))
    simulator.run(iter(events))
    assert sorted(outcomes) == list(range(len(arrivals)))
    assert replay(lines) is None
