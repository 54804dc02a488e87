"""Batches whose models wait for other models: their partition takes others meanwhile."""

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.interface.decisions import (
    CancelRequest,
    CompleteRequest,
    FailRequest,
    RejectRequest,
    ReleaseReason,
)
from sluice.batcher.interface.events import (
    BatchCompleted,
    BatchFailed,
    BatchSuspended,
    DrainStarted,
    FailureCause,
    PartitionLost,
    RequestArrived,
    RequestCancelled,
)
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
    model,
    serving,
    spec_of,
    step,
)

FULL = ReleaseReason.FULL


def waiting() -> Scheduler:
    """Batch 1 with request 1 was suspended at 0.1 ms; its partition is the only one."""
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1], FULL)]
    assert step(scheduler, 100 * US, BatchSuspended(1)) == []
    check_invariants(scheduler)
    return scheduler


def test_a_partition_takes_other_batches_while_one_waits() -> None:
    scheduler = waiting()
    assert step(scheduler, 200 * US, arrival(2, S)) == [dispatch(2, [2], FULL)]
    assert step(scheduler, 1200 * US, completed(2, 200 * US, 1200 * US)) == [CompleteRequest(2, Outcome.COMPLETED)]
    assert step(scheduler, 2 * MS, completed(1, 0, 2 * MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    check_invariants(scheduler)


def test_a_batch_that_waits_may_be_suspended_but_once() -> None:
    scheduler = waiting()
    assert step(scheduler, 200 * US, BatchSuspended(1)) == []
    check_invariants(scheduler)


def test_a_batch_that_waits_is_not_revoked_with_its_last_member() -> None:
    scheduler = waiting()
    assert step(scheduler, 200 * US, RequestCancelled(1)) == [CancelRequest(1, Outcome.CANCELLED_CLIENT)]
    assert step(scheduler, 2 * MS, completed(1, 0, 2 * MS)) == []
    check_invariants(scheduler)


def test_a_request_whose_worker_is_lost_while_it_waits_is_tried_once_more() -> None:
    scheduler = waiting()
    lost = PartitionLost("cpu0", "killed"), BatchFailed(1, FailureCause.WORKER_LOST, "killed")
    assert step(scheduler, MS, *lost) == []
    check_invariants(scheduler)


def test_members_with_an_error_fail_and_the_others_complete() -> None:
    scheduler = serving(spec_of([model("m:1", 4)]), GAINING)
    step(scheduler, 0, arrival(1, S), arrival(2, S), arrival(3, S))
    done = BatchCompleted(1, 0, MS, failures=((1, "m:1: odd"),))
    assert step(scheduler, MS, done) == [
        FailRequest(2, Outcome.FAILED_BACKEND, "m:1: odd"),
        CompleteRequest(1, Outcome.COMPLETED),
        CompleteRequest(3, Outcome.COMPLETED),
    ]
    check_invariants(scheduler)


def test_calls_of_models_are_served_while_the_server_drains() -> None:
    scheduler = waiting()
    step(scheduler, 200 * US, DrainStarted())
    (refused,) = step(scheduler, 300 * US, arrival(2, S))
    assert isinstance(refused, RejectRequest)
    call = RequestArrived(3, "m:1", 1, S, is_call=True)
    assert step(scheduler, 400 * US, call) == [dispatch(2, [3], FULL)]
