from sluice.batcher.interface.decisions import CompleteRequest, EvictRequest, Member, ReleaseReason
from sluice.batcher.interface.outcome import Outcome
from sluice.models.pipelines.pipeline import Late
from tests.support.scheduling.builders import (
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
    # It takes 150 us and 1 ms: its place begins at 3.85 ms, and counts as kept for the 150 us of the hand-off.
    assert scheduler.next_wakeup_ns() == 3850 * US
    assert step(scheduler, 3850 * US) == []
    assert step(scheduler, 4 * MS) == []
    assert step(scheduler, 4 * MS + 1) == [evicted(3, 1150 * US)]
    assert scheduler.queue_depths() == {"m:1": 0}


def test_a_running_request_is_not_evicted() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], [single("m:1", Late.EVICT)]), ONE)
    step(scheduler, 0, arrival(1, 2 * MS))
    due_ns = scheduler.next_wakeup_ns()
    assert due_ns is not None
    assert step(scheduler, due_ns) == []
    assert step(scheduler, 5 * MS, completed(1, 0, 5 * MS)) == [CompleteRequest(1, Outcome.COMPLETED_LATE)]


def test_a_request_of_many_rows_is_evicted_earlier() -> None:
    scheduler = serving(spec_of([model("m:1", 4)], [single("m:1", Late.EVICT)]), GAINING)
    step(scheduler, 0, arrival(1, S, rows=4), arrival(2, S, rows=4))
    assert step(scheduler, 1050 * US) == [dispatch(2, [Member(2, 0, 4)], FULL)]
    step(scheduler, 1050 * US, arrival(3, 10 * MS, rows=4))
    assert scheduler.next_wakeup_ns() == 10 * MS - 150 * US - 1200 * US
    assert step(scheduler, 10 * MS - 1200 * US) == []
    assert step(scheduler, 10 * MS - 1200 * US + 1) == [evicted(3, 1350 * US)]


def test_a_stage_is_evicted_when_the_stages_after_it_leave_no_time() -> None:
    spec = spec_of([model("a:1", 1), model("b:1", 1)], [cascade("a:1", "b:1", late=Late.EVICT)])
    scheduler = serving(spec, ONE)
    step(scheduler, 0, arrival(1, S, "cascade:1"))
    assert step(scheduler, 100 * US, arrival(2, 10 * MS, "cascade:1")) == []
    assert step(scheduler, 850 * US) == [dispatch(2, [2], FULL, model="a:1")]
    assert step(scheduler, 860 * US, arrival(3, 9 * MS, "cascade:1")) == []
    # 150 us and 1 ms for each of two stages, and once more 150 us until its place counts as missed.
    assert step(scheduler, 6850 * US) == []
    assert step(scheduler, 6850 * US + 1) == [evicted(3, 4600 * US)]


def test_a_request_is_evicted_between_its_stages() -> None:
    """The first batch overruns until nothing is left of the time of the second stage."""
    spec = spec_of([model("a:1", 1), model("b:1", 1)], [cascade("a:1", "b:1", late=Late.EVICT)])
    scheduler = serving(spec, ONE)
    step(scheduler, 0, arrival(1, 2900 * US, "cascade:1"))
    assert step(scheduler, 1750 * US) == []
    assert step(scheduler, 1900 * US + 1) == []
    assert step(scheduler, 2 * MS, completed(1, 0, 2 * MS, 0.1)) == [evicted(1, 1150 * US)]


def test_nothing_is_dispatched_in_the_way_of_what_was_admitted() -> None:
    """Of the same partition's time, the second stage of the first request has the part from 1.75 ms on."""
    spec = spec_of([model("a:1", 1), model("b:1", 1)], [cascade("a:1", "b:1", late=Late.EVICT), single("a:1")])
    scheduler = serving(spec, ONE)
    step(scheduler, 0, arrival(1, 2900 * US, "cascade:1"))
    step(scheduler, 10 * US, arrival(2, S, "a:1"))
    assert step(scheduler, 850 * US) == []
    assert step(scheduler, 1750 * US, completed(1, 0, 1750 * US, 0.1)) == [
        dispatch(2, [Member(1, 1, 1)], FULL, model="b:1")
    ]
    assert step(scheduler, 2750 * US, completed(2, 1750 * US, 2750 * US)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(3, [2], FULL, model="a:1"),
    ]


def test_nothing_is_dispatched_that_is_predicted_late() -> None:
    """The first batch overruns, so that what would still have made it behind it does so no longer."""
    scheduler = serving(spec_of([model("m:1", 1)], [single("m:1", Late.EVICT)]), ONE)
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    assert step(scheduler, 850 * US) == [dispatch(2, [2], FULL)]
    assert step(scheduler, 900 * US, arrival(3, 3450 * US)) == []
    assert step(scheduler, 1500 * US, completed(1, 0, 1500 * US)) == [CompleteRequest(1, Outcome.COMPLETED)]
    # Batch 2 is now predicted to end at 2.5 ms: request 3 could be answered at 3.65 ms, which is too late.
    assert step(scheduler, 2300 * US) + step(scheduler, 2300 * US + 1) == [evicted(3, 1150 * US)]


def test_members_that_are_late_and_soft_do_not_hinder_the_others() -> None:
    pipelines = [single("m:1", name="soft:1"), single("m:1", Late.EVICT, name="hard:1")]
    scheduler = serving(spec_of([model("m:1", 2)], pipelines), ONE)
    step(scheduler, 0, arrival(1, S, "soft:1"))
    step(scheduler, 0, arrival(2, 2200 * US, "soft:1"))
    assert step(scheduler, 6 * MS, completed(1, 0, 6 * MS), arrival(3, 8 * MS, "hard:1")) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(2, [Member(3, 0, 1), Member(2, 0, 1)], FULL),
    ]
