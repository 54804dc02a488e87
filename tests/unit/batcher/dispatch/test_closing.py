"""A partition is kept for rows that are planned before those that wait, with 150 us of hand-off."""

from sluice.batcher.interface.config import ScheduledModel
from sluice.batcher.interface.decisions import DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.events import PartitionReady
from sluice.batcher.policies.deadline import DeadlineSettings, Objective
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    MS,
    US,
    S,
    arrival,
    chain,
    completed,
    dispatch,
    model,
    serving,
    single,
    spec_of,
    step,
)

IDLE, FULL = ReleaseReason.IDLE, ReleaseReason.FULL

# -- batches whose rows go on


def one_of_a_chain(took_ms: float, deadline_ns: int) -> Scheduler:
    """A batch of the first of two stages began at 0, and 1 us later the first stage is asked for again."""
    spec = spec_of([model("a:1", 1), model("b:1", 1)], [chain("a:1", "b:1"), single("a:1")])
    scheduler = serving(spec, LatencyTable.from_ms({1: took_ms}))
    assert step(scheduler, 0, arrival(1, S, "chain:1")) == [dispatch(1, [1], FULL, model="a:1")]
    assert step(scheduler, US, arrival(2, deadline_ns, "a:1")) == []
    return scheduler


def test_nothing_is_closed_ahead_of_rows_that_go_on_to_something_more_urgent() -> None:
    scheduler = one_of_a_chain(10, 2 * S)
    assert step(scheduler, 9850 * US) == []
    assert step(scheduler, 10 * MS, completed(1, 0, 10 * MS)) == [dispatch(2, [Member(1, 1, 1)], FULL, model="b:1")]
    assert step(scheduler, 19_850 * US) == [dispatch(3, [2], FULL, model="a:1")]


def test_what_is_more_urgent_than_rows_that_go_on_is_closed_ahead_of_them() -> None:
    scheduler = one_of_a_chain(10, S // 2)
    assert step(scheduler, 9850 * US) == [dispatch(2, [2], FULL, model="a:1")]


def test_a_partition_is_not_left_idle_for_more_than_a_tenth_of_a_batch_for_rows_that_go_on() -> None:
    scheduler = one_of_a_chain(1.4, 2 * S)
    assert step(scheduler, 1250 * US) == [dispatch(2, [2], FULL, model="a:1")]


def test_rows_that_go_on_are_waited_for_also_where_they_make_a_small_batch() -> None:
    """Their batch is planned before the others; that it could have four rows changes nothing."""
    spec = spec_of([model("a:1", 1), model("b:1", 4)], [chain("a:1", "b:1"), single("a:1")])
    scheduler = serving(spec, LatencyTable.from_ms({1: 10}))
    step(scheduler, 0, arrival(1, S, "chain:1"))
    step(scheduler, US, arrival(2, 2 * S, "a:1"))
    assert step(scheduler, 9850 * US) == []
    assert step(scheduler, 10 * MS, completed(1, 0, 10 * MS)) == [dispatch(2, [Member(1, 1, 1)], IDLE, model="b:1")]


def test_a_batch_that_lacks_rows_of_its_plan_waits_for_those_that_the_running_batch_brings() -> None:
    """Both requests have their places in one batch of b; the one that is there first would run alone."""
    spec = spec_of([model("a:1", 1), model("b:1", 4)], [chain("a:1", "b:1")])
    scheduler = serving(spec, LatencyTable.from_ms({1: 10}))
    both = arrival(1, S, "chain:1"), arrival(2, S, "chain:1")
    assert step(scheduler, 0, *both) == [dispatch(1, [1], FULL, model="a:1")]
    assert step(scheduler, 9_850 * US) == [dispatch(2, [2], FULL, model="a:1")]
    assert step(scheduler, 10 * MS, completed(1, 0, 10 * MS)) == []
    assert step(scheduler, 19_850 * US) == []
    assert step(scheduler, 20 * MS, completed(2, 10 * MS, 20 * MS)) == [
        dispatch(3, [Member(1, 1, 1), Member(2, 1, 1)], IDLE, model="b:1")
    ]


# -- batches that wait for the stage before


ALONE = model("c:1", 1)


def two_partitions(another: ScheduledModel = ALONE) -> Scheduler:
    """The first of two stages runs on cpu0 only, the second and another model on cpu1; a single row takes 10 ms."""
    spec = spec_of(
        [model("a:1", 1), model("b:1", 1), another],
        [chain("a:1", "b:1"), single("c:1")],
        partitions=("cpu0", "cpu1"),
    )
    scheduler, table = Scheduler(spec), LatencyTable.from_ms({1: 10, 2: 11, 4: 12, 8: 14})
    step(scheduler, 0, PartitionReady("cpu0", {"a:1": table}), PartitionReady("cpu1", {"b:1": table, "c:1": table}))
    return scheduler


FIRST = dispatch(1, [1], FULL, model="a:1")
TIGHT = arrival(1, 21_300 * US, "chain:1")
"""A request that leaves 1.15 ms between its stages."""


def second(batch: int) -> DispatchBatch:
    return dispatch(batch, [Member(1, 1, 1)], FULL, model="b:1", partition="cpu1")


def other(batch: int, request: int) -> DispatchBatch:
    return dispatch(batch, [request], FULL, model="c:1", partition="cpu1")


def test_a_partition_is_kept_for_rows_that_come_from_another_one() -> None:
    scheduler = two_partitions()
    assert step(scheduler, 0, TIGHT) == [FIRST]
    assert step(scheduler, 2 * MS, arrival(2, S, "c:1")) == []
    assert step(scheduler, 10 * MS, completed(1, 0, 10 * MS)) == [second(2)]
    assert step(scheduler, 19_850 * US) == [other(3, 2)]


def test_a_partition_is_not_kept_for_rows_that_can_start_in_time_afterwards() -> None:
    scheduler = two_partitions()
    assert step(scheduler, 0, TIGHT) == [FIRST]
    assert step(scheduler, MS, arrival(2, S, "c:1")) == [other(2, 2)]


def test_an_idle_partition_is_kept_only_until_the_rows_should_have_come() -> None:
    scheduler = two_partitions()
    assert step(scheduler, 0, TIGHT) == [FIRST]
    assert step(scheduler, 2 * MS, arrival(2, S, "c:1")) == []
    assert scheduler.next_wakeup_ns() == 10 * MS + 1
    assert step(scheduler, 10 * MS + 1) == [other(2, 2)]


def test_a_partition_that_runs_a_batch_is_kept_until_the_latest_start_of_the_rows() -> None:
    scheduler = two_partitions()
    assert step(scheduler, 0, TIGHT, arrival(2, S, "c:1")) == [FIRST, other(2, 2)]
    assert step(scheduler, 2 * MS, arrival(3, S, "c:1")) == []
    assert step(scheduler, 9_850 * US) == []
    assert scheduler.next_wakeup_ns() == 11_150 * US + 1
    # Both have taken longer than expected.
    assert step(scheduler, 11 * MS, completed(1, 0, 11 * MS)) == [second(3)]


def test_a_batch_that_is_deferred_is_looked_at_again_when_it_has_to_start_whatever_is_planned_before_it() -> None:
    scheduler = two_partitions(model("c:1", 8, DeadlineSettings(Objective.COST)))
    assert step(scheduler, 0, TIGHT) == [FIRST]
    assert step(scheduler, 2 * MS, arrival(2, S, "c:1")) == []
    # 1 s less 11 ms for two rows, 10 ms for another batch of one, and 0.15 ms.
    assert scheduler.next_wakeup_ns() == 978_850 * US
