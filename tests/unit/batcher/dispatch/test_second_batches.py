"""A batch that waits behind another one is revoked where it is worth more elsewhere, or later; never twice."""

from sluice.batcher.interface.config import Limits, PartitionConfig, PipelineConfig, StageConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CompleteRequest,
    DispatchBatch,
    Member,
    ReleaseReason,
    RevokeBatch,
)
from sluice.batcher.interface.events import BatchRevoked, PartitionReady, RequestCancelled
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, arrival, completed, dispatch, model, serving, spec_of, step

FULL = ReleaseReason.FULL
TABLE = LatencyTable.from_ms({1: 10})
HAND_OFF = 150_000


def with_second() -> Scheduler:
    """Two partitions, of which each has a batch of 10 ms and, from 9.85 ms on, another one behind it."""
    scheduler = serving(spec_of([model("m:1", 1)], partitions=("cpu0", "cpu1")), TABLE)
    step(scheduler, 0, *(arrival(number, S) for number in (1, 2, 3, 4)))
    assert ran_at(scheduler, 10 * MS - HAND_OFF) == [("cpu0", 3), ("cpu1", 4)]
    return scheduler


def ran_at(scheduler: Scheduler, now_ns: int) -> list[tuple[str, int]]:
    return [(each.partition, each.batch) for each in step(scheduler, now_ns) if isinstance(each, DispatchBatch)]


def until_next(scheduler: Scheduler, end_ns: int) -> list[AnyDecision]:
    """The decisions on all wake-ups up to a time."""
    decisions = []
    while (due_ns := scheduler.next_wakeup_ns()) is not None and due_ns <= end_ns:
        decisions += step(scheduler, due_ns)
    return decisions


def done(request: int) -> CompleteRequest:
    return CompleteRequest(request, Outcome.COMPLETED)


def test_it_moves_to_an_idle_partition_once_the_batch_before_it_is_late_by_what_a_move_costs() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], partitions=("cpu0", "cpu1")), TABLE)
    step(scheduler, 0, *(arrival(number, S) for number in (1, 2, 3)))
    assert ran_at(scheduler, 10 * MS - HAND_OFF) == [("cpu0", 3)]
    step(scheduler, 10 * MS, completed(2, 0, 10 * MS))
    due_ns = 10 * MS + 3 * HAND_OFF
    assert until_next(scheduler, due_ns - 1) == [], "to ask, to hear and to send again takes three hand-offs"
    assert step(scheduler, due_ns) == [RevokeBatch(3)]
    assert step(scheduler, due_ns + 1, BatchRevoked(3)) == [dispatch(4, [3], FULL, partition="cpu1")]
    assert scheduler.dispatcher.second_batches.moved == 1


def test_nothing_is_revoked_and_there_is_no_timer_while_no_partition_is_idle() -> None:
    scheduler = with_second()
    step(scheduler, 10 * MS, completed(2, 0, 10 * MS))
    assert scheduler.next_wakeup_ns() == 20 * MS, "to look for batches that take far too long"
    assert step(scheduler, 19 * MS, completed(1, 0, 19 * MS)) == [done(1)]
    assert step(scheduler, 20 * MS, completed(4, 10 * MS, 20 * MS)) == [done(4)]
    assert scheduler.dispatcher.second_batches.moved == 0, "it runs"


def test_a_batch_that_had_begun_completes_as_if_nothing_had_been_asked() -> None:
    scheduler = with_second()
    step(scheduler, 10 * MS, completed(2, 0, 10 * MS))
    assert step(scheduler, 15 * MS, completed(4, 10 * MS, 15 * MS)) == [done(4), RevokeBatch(3)]
    step(scheduler, 15 * MS, completed(1, 0, 15 * MS))
    assert step(scheduler, 25 * MS, completed(3, 15 * MS, 25 * MS)) == [done(3)]
    assert scheduler.requests == {}


def test_it_waits_again_in_the_order_of_deadlines_and_is_not_revoked_twice() -> None:
    scheduler = with_second()
    step(scheduler, 10 * MS, completed(2, 0, 10 * MS))
    assert step(scheduler, 15 * MS, completed(4, 10 * MS, 15 * MS))[-1] == RevokeBatch(3)
    assert step(scheduler, 15 * MS + 1, arrival(5, S // 2)) == [dispatch(5, [5], FULL, partition="cpu1")]
    # cpu0 may be given the next batch at any time: its own should have ended long ago.
    assert step(scheduler, 15 * MS + 2, BatchRevoked(3)) == [dispatch(6, [3], FULL, partition="cpu0")]
    assert step(scheduler, 19 * MS, completed(5, 15 * MS, 19 * MS)) == [CompleteRequest(5, Outcome.COMPLETED)]
    assert scheduler.dispatcher.second_batches.moved == 1


def test_a_batch_that_is_cancelled_while_it_is_asked_back_does_not_wait_again() -> None:
    scheduler = with_second()
    step(scheduler, 10 * MS, completed(2, 0, 10 * MS))
    step(scheduler, 15 * MS, completed(4, 10 * MS, 15 * MS))
    step(scheduler, 15 * MS + 1, RequestCancelled(3))
    assert step(scheduler, 15 * MS + 2, BatchRevoked(3)) == []


def test_what_has_a_copy_elsewhere_is_withdrawn_with_the_answer_of_the_copy() -> None:
    table = LatencyTable.from_ms({1: 1})
    scheduler = serving(spec_of([model("m:1", 1)], partitions=("cpu0", "cpu1", "cpu2")), table)
    step(scheduler, 0, *(arrival(number, S) for number in (0, 1, 2)))
    step(scheduler, 1, arrival(3, 200 * MS), arrival(4, S), arrival(5, S))
    assert ran_at(scheduler, MS - HAND_OFF) == [("cpu0", 4), ("cpu1", 5), ("cpu2", 6)]
    step(scheduler, MS, completed(2, 0, MS), completed(3, 0, MS))
    ended = step(scheduler, 2 * MS, completed(5, MS, 2 * MS), completed(6, MS, 2 * MS))
    assert ended == [done(4), done(5), RevokeBatch(4)], "the worker of cpu0 does not answer"
    copies = [each for each in until_next(scheduler, 100 * MS) if isinstance(each, DispatchBatch)]
    assert [(each.partition, each.members[0].request) for each in copies] == [("cpu1", 0), ("cpu2", 3)]
    step(scheduler, 102 * MS, completed(7, 100 * MS, 102 * MS))
    assert until_next(scheduler, 249 * MS) == [], "cpu2 is overdue, too, when there is no time for one more copy"
    step(scheduler, 250 * MS, arrival(8, 2 * S))
    step(scheduler, 250 * MS + 1, BatchRevoked(4))
    late = step(scheduler, 250 * MS + 2, completed(8, 100 * MS, 250 * MS + 2))
    assert late == [CompleteRequest(3, Outcome.COMPLETED_LATE)]
    assert scheduler.queue_depths() == {"m:1": 0}, "it does not run a second time"


def test_a_move_to_a_dearer_partition_has_to_save_a_request() -> None:
    for deadline_ms, moves in ((1000, False), (45, True)):
        partitions = PartitionConfig("cpu0", "cpu", 1.0), PartitionConfig("gpu0", "gpu", 5.0)
        scheduler = serving(spec_of([model("m:1", 1)], partitions=partitions), TABLE)
        step(scheduler, 0, arrival(1, S), arrival(2, S), arrival(3, deadline_ms * MS), arrival(4, S))
        second = [each for each in step(scheduler, 10 * MS - HAND_OFF) if isinstance(each, DispatchBatch)]
        behind = next(each for each in second if each.partition == "cpu0")
        other = next(each for each in second if each.partition == "gpu0")
        step(scheduler, 10 * MS, completed(2, 0, 10 * MS))
        decisions = step(scheduler, 30 * MS, completed(other.batch, 10 * MS, 30 * MS))
        is_revoked = RevokeBatch(behind.batch) in decisions
        assert is_revoked is (moves and behind.members[0].request == 3)


def test_a_stage_that_comes_late_overtakes_a_batch_that_has_time() -> None:
    chain = PipelineConfig("chain", (StageConfig("a", "a:1"), StageConfig("b", "b:1", (0,))))
    single = PipelineConfig("m:1", (StageConfig("m", "m:1"),))
    models = [model("a:1", 1), model("b:1", 1), model("m:1", 1)]
    spec = spec_of(models, [chain, single], partitions=("cpu0", "cpu1"), limits=Limits(hand_off_ns=HAND_OFF))
    scheduler = Scheduler(spec)
    step(scheduler, 0, PartitionReady("cpu0", {"b:1": TABLE, "m:1": TABLE}), PartitionReady("cpu1", {"a:1": TABLE}))
    step(scheduler, 1, arrival(2, S), arrival(1, 42 * MS, "chain"))
    step(scheduler, 2, arrival(3, S))
    assert until_next(scheduler, 11 * MS) == [dispatch(3, [3], FULL, model="m:1")], "it delays nothing too far"
    # Both first batches take 24 ms in place of 10: behind the second one, stage b would end after 44 ms.
    assert step(scheduler, 24 * MS, completed(2, 1, 24 * MS)) == [RevokeBatch(3)]
    assert step(scheduler, 24 * MS + 1, BatchRevoked(3)) == [dispatch(4, [Member(1, 1, 1)], FULL, model="b:1")]
    assert scheduler.dispatcher.second_batches.overtaken == 1
    assert step(scheduler, 25 * MS, completed(1, 1, 25 * MS)) == [done(2)]
    later = until_next(scheduler, 36 * MS)
    assert later == [dispatch(5, [3], FULL, model="m:1")], "what was overtaken runs next"
