from sluice.batcher.interface.decisions import CancelRequest, CompleteRequest, ReleaseReason, RevokeBatch
from sluice.batcher.interface.events import BatchRevoked, OutputsCombined, RequestCancelled
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from tests.support.scheduling.builders import (
    GAINING,
    MS,
    ONE,
    US,
    S,
    arrival,
    completed,
    dispatch,
    ensemble,
    model,
    serving,
    spec_of,
    step,
)

FULL = ReleaseReason.FULL
CANCELLED = Outcome.CANCELLED_CLIENT


def with_a_second_batch(*requests: int) -> Scheduler:
    """Batch 1 runs request 1 for 1 ms; batch 2 was closed for it at 0.85 ms with two of the other requests at most."""
    scheduler = serving(spec_of([model("m:1", 2)]), ONE)
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1])]
    assert step(scheduler, 100 * US, *(arrival(number, S) for number in requests)) == []
    assert step(scheduler, 850 * US) == [dispatch(2, requests[:2], FULL)]
    return scheduler


def test_a_queued_request_is_taken_out_of_the_queue() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, 0, arrival(1, S), arrival(2, S), arrival(3, S))
    assert scheduler.queue_depths() == {"m:1": 2}
    assert step(scheduler, 0, RequestCancelled(2)) == [CancelRequest(2, CANCELLED)]
    assert scheduler.queue_depths() == {"m:1": 1}
    assert step(scheduler, 850 * US) == [dispatch(2, [3], FULL)]


def test_a_request_that_runs_is_settled_at_once_and_its_result_dropped() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    assert step(scheduler, 100 * US, RequestCancelled(1)) == [CancelRequest(1, CANCELLED)]
    assert step(scheduler, MS, completed(1, 0, MS)) == [CompleteRequest(2, Outcome.COMPLETED)]


def test_a_batch_that_runs_is_not_revoked() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, S))
    assert step(scheduler, 100 * US, RequestCancelled(1)) == [CancelRequest(1, CANCELLED)]
    assert step(scheduler, MS, completed(1, 0, MS)) == []


def test_a_batch_that_has_not_started_is_revoked_with_its_last_member() -> None:
    scheduler = with_a_second_batch(2, 3)
    assert step(scheduler, 900 * US, RequestCancelled(2)) == [CancelRequest(2, CANCELLED)]
    assert step(scheduler, 900 * US, RequestCancelled(3)) == [CancelRequest(3, CANCELLED), RevokeBatch(2)]
    assert step(scheduler, 910 * US, BatchRevoked(2)) == []
    assert step(scheduler, 920 * US, arrival(4, S), arrival(5, S)) == [dispatch(3, [4, 5], FULL)]


def test_a_batch_that_started_before_it_could_be_revoked_still_yields_its_event() -> None:
    scheduler = with_a_second_batch(2, 3)
    step(scheduler, 990 * US, RequestCancelled(2), RequestCancelled(3))
    assert step(scheduler, MS, completed(1, 0, MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == []


def test_a_second_batch_that_has_become_the_first_is_not_revoked() -> None:
    scheduler = with_a_second_batch(2, 3)
    step(scheduler, MS, completed(1, 0, MS))
    assert step(scheduler, MS, RequestCancelled(2), RequestCancelled(3)) == [
        CancelRequest(2, CANCELLED),
        CancelRequest(3, CANCELLED),
    ]


def test_what_waits_takes_the_place_of_a_revoked_batch() -> None:
    scheduler = with_a_second_batch(2, 3, 4, 5)
    step(scheduler, 900 * US, RequestCancelled(2), RequestCancelled(3))
    assert step(scheduler, 910 * US, BatchRevoked(2)) == [dispatch(3, [4, 5], FULL)]


def test_a_request_that_is_settled_cannot_be_cancelled() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    step(scheduler, 0, RequestCancelled(2))
    assert step(scheduler, 0, RequestCancelled(2)) == []
    step(scheduler, MS, completed(1, 0, MS))
    assert step(scheduler, MS, RequestCancelled(1), RequestCancelled(77)) == []


def test_a_request_cancelled_while_a_combiner_runs_is_dropped_when_it_ends() -> None:
    scheduler = serving(spec_of([model("a:1")], [ensemble("a:1", "a:1")]), GAINING)
    step(scheduler, 0, arrival(1, S, "ensemble:1"))
    step(scheduler, MS, completed(1, 0, MS))
    assert step(scheduler, MS, RequestCancelled(1)) == [CancelRequest(1, CANCELLED)]
    assert step(scheduler, MS, OutputsCombined(1, 2)) == []


def test_cancelling_an_ensemble_takes_back_all_its_parts() -> None:
    spec = spec_of([model("a:1", 1), model("b:1", 1)], [ensemble("a:1", "b:1")])
    scheduler = serving(spec, ONE)
    step(scheduler, 0, arrival(1, S, "ensemble:1"))
    assert scheduler.queue_depths() == {"a:1": 0, "b:1": 1}
    assert step(scheduler, 0, RequestCancelled(1)) == [CancelRequest(1, CANCELLED)]
    assert scheduler.queue_depths() == {"a:1": 0, "b:1": 0}
    assert step(scheduler, MS, completed(1, 0, MS)) == []
