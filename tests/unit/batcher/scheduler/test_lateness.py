import pytest

from sluice.batcher.interface.decisions import CompleteRequest, EvictRequest, Member, ReleaseReason
from sluice.batcher.interface.events import PartitionReady
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
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

FULL = ReleaseReason.FULL


def evicted(request: int, retry_after_ns: int) -> EvictRequest:
    return EvictRequest(request, Outcome.EVICTED_DEADLINE, "the deadline is out of reach", retry_after_ns)


def test_an_answer_at_the_deadline_is_in_time_and_one_after_it_is_late() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, 3 * MS), arrival(2, 3 * MS - 1))
    assert step(scheduler, 3 * MS, completed(1, 0, 3 * MS)) == [
        CompleteRequest(2, Outcome.COMPLETED_LATE),
        CompleteRequest(1, Outcome.COMPLETED),
    ]


def test_a_late_request_of_a_soft_objective_is_still_served() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, 0, arrival(1, 1500 * US), arrival(2, 3 * MS))
    step(scheduler, 850 * US)
    assert step(scheduler, 900 * US, arrival(3, 3150 * US)) == []
    assert step(scheduler, 9 * MS, completed(1, 0, 9 * MS)) == [CompleteRequest(1, Outcome.COMPLETED_LATE)]
    assert step(scheduler, 10 * MS, completed(2, 9 * MS, 10 * MS)) == [
        CompleteRequest(2, Outcome.COMPLETED_LATE),
        dispatch(3, [3], FULL),
    ]


def test_a_request_is_evicted_as_soon_as_its_deadline_is_out_of_reach() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], [single("m:1", Late.EVICT)]), ONE)
    step(scheduler, 0, arrival(1, S))
    step(scheduler, 0, arrival(2, 10 * MS))
    assert step(scheduler, 850 * US) == [dispatch(2, [2], FULL)]
    assert step(scheduler, 900 * US, arrival(3, 5 * MS)) == []
    # It takes 150 us and 1 ms.
    assert scheduler.next_wakeup_ns() == 3850 * US + 1
    assert step(scheduler, 3850 * US) == []
    assert step(scheduler, 3850 * US + 1) == [evicted(3, MS)]
    assert scheduler.queue_depths() == {"m:1": 0}


def test_a_running_request_is_not_evicted_and_wakes_nobody_at_its_deadline() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], [single("m:1", Late.EVICT)]), ONE)
    assert step(scheduler, 0, arrival(1, 2 * MS)) == [dispatch(1, [1], FULL)]
    assert scheduler.next_wakeup_ns() is None
    assert step(scheduler, 850 * US + 1) == []
    assert step(scheduler, 5 * MS, completed(1, 0, 5 * MS)) == [CompleteRequest(1, Outcome.COMPLETED_LATE)]


def test_a_request_of_many_rows_is_evicted_earlier() -> None:
    scheduler = serving(spec_of([model("m:1", 4)], [single("m:1", Late.EVICT)]), GAINING)
    step(scheduler, 0, arrival(1, S, rows=4), arrival(2, S, rows=4))
    assert step(scheduler, 1050 * US) == [dispatch(2, [Member(2, 0, 4)], FULL)]
    step(scheduler, 1050 * US, arrival(3, 10 * MS, rows=4))
    assert step(scheduler, 10 * MS - 150 * US - 1200 * US) == []
    assert step(scheduler, 10 * MS - 150 * US - 1200 * US + 1) == [evicted(3, 1200 * US)]


def test_a_stage_is_evicted_when_the_stages_after_it_leave_no_time() -> None:
    spec = spec_of([model("a:1", 1), model("b:1", 1)], [cascade("a:1", "b:1", late=Late.EVICT)])
    scheduler = serving(spec, ONE)
    step(scheduler, 0, arrival(1, S, "cascade:1"))
    assert step(scheduler, 100 * US, arrival(2, 10 * MS, "cascade:1")) == []
    assert step(scheduler, 850 * US) == [dispatch(2, [2], FULL, model="a:1")]
    assert step(scheduler, 860 * US, arrival(3, 9 * MS, "cascade:1")) == []
    # 150 us and 1 ms for each of two stages. Planned are its own two, and the second ones of the others.
    assert step(scheduler, 6700 * US) == []
    assert step(scheduler, 6700 * US + 1) == [evicted(3, 4450 * US)]


def test_a_request_is_evicted_between_its_stages() -> None:
    """The first batch overruns until nothing is left of the time of the second stage."""
    spec = spec_of([model("a:1", 1), model("b:1", 1)], [cascade("a:1", "b:1", late=Late.EVICT)])
    scheduler = serving(spec, ONE)
    step(scheduler, 0, arrival(1, 2900 * US, "cascade:1"))
    assert step(scheduler, 1750 * US) == []
    assert step(scheduler, 1900 * US + 1) == []
    assert step(scheduler, 2 * MS, completed(1, 0, 2 * MS, 0.1)) == [evicted(1, 1150 * US)]


def test_nothing_is_dispatched_in_the_way_of_what_was_admitted() -> None:
    """The second stage of the first request has to start by 1.6 ms, behind the first batch, which overruns."""
    spec = spec_of([model("a:1", 1), model("b:1", 1)], [cascade("a:1", "b:1", late=Late.EVICT), single("a:1")])
    scheduler = serving(spec, ONE)
    step(scheduler, 0, arrival(1, 2900 * US, "cascade:1"))
    step(scheduler, 10 * US, arrival(2, S, "a:1"))
    assert step(scheduler, 850 * US) == []
    assert step(scheduler, 1600 * US) == []
    assert step(scheduler, 1600 * US, completed(1, 0, 1600 * US, 0.1)) == [
        dispatch(2, [Member(1, 1, 1)], FULL, model="b:1")
    ]
    assert step(scheduler, 2600 * US, completed(2, 1600 * US, 2600 * US)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(3, [2], FULL, model="a:1"),
    ]


def kept_for_a_second_stage() -> Scheduler:
    """The first request ends its first stage at 1 ms on cpu0; its second one, 1 ms on cpu1, has to start by 1.35 ms."""
    pipelines = [cascade("a:1", "b:1"), single("c:1")]
    models = [model("a:1", 1, confidences=(CERTAINTY,)), model("b:1", 1), model("c:1", 1)]
    scheduler = Scheduler(spec_of(models, pipelines, partitions=("cpu0", "cpu1")))
    step(scheduler, 0, PartitionReady("cpu0", {"a:1": ONE}), PartitionReady("cpu1", {"b:1": ONE, "c:1": ONE}))
    step(scheduler, 0, arrival(1, 2500 * US, "cascade:1"))
    return scheduler


@pytest.mark.parametrize(
    ("deadline_us", "is_kept"),
    [
        pytest.param(3000, True, id="it would be through at 3 ms behind the second stage"),
        pytest.param(2999, False, id="it would be late then"),
    ],
)
def test_an_idle_partition_waits_only_if_what_is_there_can_wait_as_well(deadline_us: int, is_kept: bool) -> None:
    decisions = step(kept_for_a_second_stage(), 600 * US, arrival(2, deadline_us * US, "c:1"))
    assert decisions == ([] if is_kept else [dispatch(2, [2], FULL, model="c:1", partition="cpu1")])


def test_an_idle_partition_does_not_wait_for_what_can_start_behind_what_is_there() -> None:
    decisions = step(kept_for_a_second_stage(), 340 * US, arrival(2, S, "c:1"))
    assert decisions == [dispatch(2, [2], FULL, model="c:1", partition="cpu1")]


@pytest.mark.parametrize(("late", "goes_on"), [(Late.EVICT, True), (Late.SERVE, True), (Late.SERVE, False)])
def test_an_idle_partition_waits_for_what_is_about_to_come_and_no_longer(late: Late, goes_on: bool) -> None:
    """The first request is through with its first stage at 1 ms, and has to start its second by 1.35 ms elsewhere.

    The partition waits until it is known at 1 ms whether it goes on, and not until 1.35 ms.
    """
    pipelines = [cascade("a:1", "b:1", late=late), single("c:1")]
    models = [model("a:1", 1, confidences=(CERTAINTY,)), model("b:1", 1), model("c:1", 1)]
    scheduler = Scheduler(spec_of(models, pipelines, partitions=("cpu0", "cpu1")))
    step(scheduler, 0, PartitionReady("cpu0", {"a:1": ONE}), PartitionReady("cpu1", {"b:1": ONE, "c:1": ONE}))
    step(scheduler, 0, arrival(1, 2500 * US, "cascade:1"))
    assert step(scheduler, 600 * US, arrival(2, S, "c:1")) == []
    assert scheduler.next_wakeup_ns() == MS + 1
    if goes_on:
        assert step(scheduler, MS, completed(1, 0, MS, 0.1)) == [
            dispatch(2, [Member(1, 1, 1)], FULL, model="b:1", partition="cpu1")
        ]
    else:
        assert step(scheduler, MS, completed(1, 0, MS, 1.0)) == [CompleteRequest(1, Outcome.COMPLETED)]
        assert step(scheduler, MS + 1) == [dispatch(2, [2], FULL, model="c:1", partition="cpu1")]


def test_nothing_is_dispatched_that_is_predicted_late() -> None:
    """The first batch overruns, so that what would still have made it behind it does so no longer."""
    scheduler = serving(spec_of([model("m:1", 1)], [single("m:1", Late.EVICT)]), ONE)
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    assert step(scheduler, 850 * US) == [dispatch(2, [2], FULL)]
    assert step(scheduler, 900 * US, arrival(3, 3450 * US)) == []
    assert step(scheduler, 1500 * US, completed(1, 0, 1500 * US)) == [CompleteRequest(1, Outcome.COMPLETED)]
    # Batch 2 is now predicted to end at 2.5 ms: request 3 could be answered at 3.65 ms, which is too late.
    assert step(scheduler, 2300 * US) + step(scheduler, 2300 * US + 1) == [evicted(3, MS)]


def test_members_that_are_late_and_soft_do_not_hinder_the_others() -> None:
    pipelines = [single("m:1", name="soft:1"), single("m:1", Late.EVICT, name="hard:1")]
    scheduler = serving(spec_of([model("m:1", 2)], pipelines), ONE)
    step(scheduler, 0, arrival(1, S, "soft:1"))
    step(scheduler, 0, arrival(2, 2200 * US, "soft:1"))
    assert step(scheduler, 6 * MS, completed(1, 0, 6 * MS), arrival(3, 8 * MS, "hard:1")) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(2, [Member(3, 0, 1), Member(2, 0, 1)], FULL),
    ]


def test_what_joins_a_batch_of_late_ones_is_kept_in_time_from_then_on() -> None:
    pipelines = [single("m:1", name="soft:1"), single("m:1", Late.EVICT, name="hard:1")]
    scheduler = serving(spec_of([model("m:1", 4)], pipelines), GAINING)
    step(scheduler, 0, arrival(1, S, "soft:1"))
    step(scheduler, 0, arrival(2, 2300 * US, "soft:1"))
    # The first one is still running at 3 ms. Two rows then take 1.1 ms and three 1.2 ms.
    assert scheduler.handle(arrival(3, 4250 * US, "hard:1"), 3 * MS) == []
    assert scheduler.handle(arrival(4, 9 * MS, "hard:1"), 3 * MS) == []
    assert [batch.rows for batch in scheduler.dispatcher.fleet.partitions["cpu0"].planned] == [2, 1]
