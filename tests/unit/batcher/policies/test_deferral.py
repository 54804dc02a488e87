"""Objective `cost`: 1, 1.1, 1.2 and 1.4 ms for 1, 2, 4 and 8 rows (8 are efficient), 150 us of hand-off."""

from sluice.batcher.interface.config import Limits, ScheduledModel
from sluice.batcher.interface.decisions import CompleteRequest, Member, ReleaseReason
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.base import Choice
from sluice.batcher.policies.deadline import DeadlineSettings, DeferringPolicy, Objective
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    CERTAINTY,
    GAINING,
    MS,
    ONE,
    US,
    S,
    arrival,
    cascade,
    completed,
    dispatch,
    model,
    serving,
    single,
    spec_of,
    step,
)
from tests.unit.batcher.policies.views import Waiting, WaitingQueue, idle

FULL, IDLE, DEADLINE = ReleaseReason.FULL, ReleaseReason.IDLE, ReleaseReason.DEADLINE


def frugal(key: str, max_batch: int = 8) -> ScheduledModel:
    return model(key, max_batch, DeadlineSettings(Objective.COST), confidences=(CERTAINTY,))


def one_model(partitions: tuple[str, ...] = ("cpu0",), late: Late = Late.SERVE) -> Scheduler:
    return serving(spec_of([frugal("m:1")], [single("m:1", late)], partitions=partitions), GAINING)


def test_a_lone_request_starts_when_there_is_just_time_for_one_more_and_for_a_batch_in_the_way() -> None:
    scheduler = one_model()
    assert step(scheduler, 0, arrival(1, 20 * MS)) == []
    # 20 ms less 1.1 ms for two rows, 1 ms for another batch of one, and 0.15 ms.
    assert scheduler.next_wakeup_ns() == 17_750 * US
    assert step(scheduler, 17_750 * US) == [dispatch(1, [1], DEADLINE)]


def test_every_row_that_joins_moves_the_start() -> None:
    scheduler = one_model()
    assert step(scheduler, 0, arrival(1, 20 * MS)) == []
    assert step(scheduler, MS, arrival(2, 30 * MS)) == []
    # Now 1.2 ms for three rows and 1.1 ms for two.
    assert scheduler.next_wakeup_ns() == 17_550 * US
    assert step(scheduler, 2 * MS, arrival(3, 12 * MS), arrival(4, 40 * MS)) == []
    # Request 3 is the head; 1.4 ms for five rows, 1.2 ms for four.
    assert scheduler.next_wakeup_ns() == 9_250 * US
    assert step(scheduler, 9_250 * US) == [dispatch(1, [3, 1, 2, 4], DEADLINE)]


def test_a_batch_that_is_nearly_as_efficient_as_can_be_starts_at_once() -> None:
    scheduler = one_model()
    # 8 rows in 1.4 ms (and 0.15 ms) are the best rate, 5.16 rows a ms; 5 rows in that time are 62 % of it, 6 are 75 %.
    assert step(scheduler, 0, *(arrival(number, S) for number in range(5))) == []
    assert step(scheduler, MS, arrival(5, S)) == [dispatch(1, range(6), IDLE)]


def test_a_batch_that_is_nearly_as_efficient_gathers_for_a_moment_where_more_came_before() -> None:
    table = LatencyTable.from_ms({1: 100, 2: 110, 4: 120, 8: 140})
    scheduler = serving(spec_of([frugal("m:1")], [single("m:1")]), table)
    assert step(scheduler, 0, *(arrival(number, S) for number in range(8))) == [dispatch(1, range(8), FULL)]
    assert len(step(scheduler, 140 * MS, completed(1, 0, 140 * MS))) == 8
    assert step(scheduler, 200 * MS, *(arrival(number, S) for number in range(8, 14))) == []
    # A tenth of what a full batch takes.
    assert scheduler.next_wakeup_ns() == 214 * MS
    arrivals = [arrival(14, S), arrival(15, S)]
    assert step(scheduler, 213 * MS, *arrivals) == [dispatch(2, range(8, 16), FULL)]


def test_a_batch_is_no_larger_than_is_efficient() -> None:
    scheduler = one_model()
    assert step(scheduler, 0, *(arrival(number, S) for number in range(9))) == [dispatch(1, range(8), FULL)]


def test_without_slack_it_starts_at_once() -> None:
    scheduler = one_model()
    assert step(scheduler, 0, arrival(1, 2_250 * US)) == [dispatch(1, [1], DEADLINE)]


def test_a_model_that_gains_nothing_from_batching_is_not_deferred() -> None:
    scheduler = serving(spec_of([frugal("m:1")]), LatencyTable.from_ms({1: 20, 2: 40, 4: 80, 8: 160}))
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1], FULL)]


def test_a_model_that_takes_single_rows_is_not_deferred() -> None:
    scheduler = serving(spec_of([frugal("m:1", 1)]), ONE)
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1], FULL)]


def test_behind_a_running_batch_it_goes_only_if_waiting_for_the_partition_would_be_too_late() -> None:
    scheduler = one_model()
    step(scheduler, 0, *(arrival(number, S) for number in range(8)))
    # The partition is free at 1.4 ms; request 8 has to start at 0.5 ms, and goes within hand-off of that end.
    assert step(scheduler, 200 * US, arrival(8, 2_750 * US)) == []
    assert scheduler.next_wakeup_ns() == 1_250 * US
    assert step(scheduler, 1_250 * US) == [dispatch(2, [8], DEADLINE)]


def test_behind_a_running_batch_it_waits_for_the_partition_when_there_is_time() -> None:
    scheduler = one_model()
    step(scheduler, 0, *(arrival(number, S) for number in range(8)))
    assert step(scheduler, 1_300 * US, arrival(8, 20 * MS)) == []
    assert step(scheduler, 1_400 * US, completed(1, 0, 1_400 * US)) == [
        CompleteRequest(number, Outcome.COMPLETED) for number in range(8)
    ]
    # When it was put off, a batch would have waited for 0.1 ms.
    assert scheduler.next_wakeup_ns() == 17_650 * US
    assert step(scheduler, 17_650 * US) == []
    assert scheduler.next_wakeup_ns() == 17_750 * US
    assert step(scheduler, 17_750 * US) == [dispatch(2, [8], DEADLINE)]


def test_one_of_several_idle_partitions_takes_it() -> None:
    scheduler = one_model(("cpu0", "cpu1", "cpu2"))
    assert step(scheduler, 0, arrival(1, 20 * MS), arrival(2, 20 * MS)) == []
    assert step(scheduler, 17_550 * US) == [dispatch(1, [1, 2], DEADLINE)]


def test_another_model_is_served_meanwhile() -> None:
    scheduler = serving(spec_of([frugal("m:1"), model("n:1")]), GAINING)
    assert step(scheduler, 0, arrival(1, 20 * MS)) == []
    assert step(scheduler, MS, arrival(2, 20 * MS, "n:1")) == [dispatch(1, [2], ReleaseReason.IDLE, model="n:1")]


def test_what_is_evicted_when_late_is_deferred_and_still_in_time() -> None:
    """As what is served late, it starts when there is time for one row more and for a batch in the way."""
    scheduler = one_model(late=Late.EVICT)
    assert step(scheduler, 0, arrival(1, 20 * MS)) == []
    assert scheduler.next_wakeup_ns() == 17_750 * US
    assert step(scheduler, 17_750 * US) == [dispatch(1, [1], DEADLINE)]
    assert step(scheduler, 18_750 * US, completed(1, 17_750 * US, 18_750 * US)) == [
        CompleteRequest(1, Outcome.COMPLETED)
    ]


def test_a_stage_uses_its_share_of_the_time_and_leaves_the_rest_to_those_after_it() -> None:
    limits = Limits(hand_off_ns=0)
    tables = {"m:1": GAINING, "n:1": LatencyTable.from_ms({1: 3, 8: 3})}
    spec = spec_of([frugal("m:1"), frugal("n:1")], [cascade("m:1", "n:1")], limits=limits)
    scheduler = serving(spec, tables)
    assert step(scheduler, 0, arrival(1, 40 * MS, "cascade:1")) == []
    # Its share is 1 ms of 1 + 3 ms, which makes 10 of the 40 ms; 1.1 ms and 1 ms before that it starts.
    assert scheduler.next_wakeup_ns() == 7_900 * US
    assert step(scheduler, 7_900 * US) == [dispatch(1, [1], DEADLINE)]
    assert step(scheduler, 8_900 * US, completed(1, 7_900 * US, 8_900 * US, 0.1)) == []
    # The last stage may use all that is left, less twice 3 ms.
    assert scheduler.next_wakeup_ns() == 34 * MS
    assert step(scheduler, 34 * MS) == [dispatch(2, [Member(1, 1, 1)], DEADLINE, model="n:1")]


def test_only_what_is_not_deferred_yields_to_what_is_planned_before_it() -> None:
    policy, context = DeferringPolicy(Limits()), idle(GAINING)
    assert policy.choose(WaitingQueue(Waiting(20 * MS)), context) == Choice(0, DEADLINE, 17_750 * US, yields=False)
    assert policy.choose(WaitingQueue(Waiting(2 * MS)), context) == Choice(1, DEADLINE, yields=False)
    assert policy.choose(WaitingQueue(*[Waiting()] * 6), context) == Choice(6, IDLE)
