"""Levels of priority, bounds of queues and answers in order, together with the other duties of the core."""

from sluice.batcher.interface.config import PolicyConfig, PriorityLevels
from sluice.batcher.interface.decisions import (
    CompleteRequest,
    EvictRequest,
    FailRequest,
    Member,
    RejectRequest,
    ReleaseReason,
)
from sluice.batcher.interface.events import BatchFailed, FailureCause, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.dynamic_batching import QueuePolicy, TimeoutAction
from sluice.models.pipelines.pipeline import Late
from tests.support.scheduling.builders import (
    MS,
    ONE,
    US,
    S,
    arrival,
    completed,
    dispatch,
    model,
    serving,
    single,
    spec_of,
    step,
)

NEVER = 3600 * S
FULL = ReleaseReason.FULL
TWO_LEVELS = TimeoutConfig(levels=PriorityLevels(2, 2))
IN_ORDER = TimeoutConfig(preserve_ordering=True)


def prioritized(request: int, priority: int, deadline_ns: int = NEVER) -> RequestArrived:
    return RequestArrived(request, "m:1", 1, deadline_ns, priority=priority)


def two_partitions(policy: PolicyConfig, max_batch: int = 2) -> Scheduler:
    return serving(spec_of([model("m:1", max_batch, policy)], partitions=("cpu0", "cpu1")), ONE)


def test_what_is_behind_others_is_refused_for_their_sake_and_what_goes_before_them_is_not() -> None:
    scheduler = serving(spec_of([model("m:1", 1, TWO_LEVELS)]), ONE)
    assert step(scheduler, 0, *(prioritized(number, 2) for number in range(10))) == [dispatch(1, [0], FULL)]
    (refused,) = step(scheduler, 0, prioritized(10, 2, 5 * MS))
    assert isinstance(refused, RejectRequest)
    # One runs and nine wait, whose deadlines are far off, but who came first.
    assert refused.reason == "predicted to complete in 11.2 ms, 5.0 ms are left"
    assert step(scheduler, 0, prioritized(11, 1, 5 * MS)) == []
    assert step(scheduler, MS, completed(1, 0, MS))[-1] == dispatch(2, [11], FULL)


def test_levels_have_their_batches_closed_only_for_an_idle_partition() -> None:
    scheduler = serving(spec_of([model("m:1", 1, TWO_LEVELS)]), ONE)
    step(scheduler, 0, prioritized(1, 2), prioritized(2, 2))
    assert step(scheduler, MS - 1) == []
    assert step(scheduler, MS, completed(1, 0, MS), prioritized(3, 1))[-1] == dispatch(2, [3], FULL)


def test_a_delayed_entry_waits_behind_the_others_and_is_not_late() -> None:
    delaying = QueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_us=100)
    scheduler = serving(spec_of([model("m:1", 1, TimeoutConfig(levels=PriorityLevels(policy=delaying)))]), ONE)
    step(scheduler, 0, arrival(1, NEVER), arrival(2, NEVER))
    step(scheduler, 200_000, arrival(3, NEVER))
    (queue,) = scheduler.dispatcher.fleet.queues.by_model["m:1"].values()
    assert [(entry.request.identity, entry.late) for entry in queue.entries()] == [(3, False), (2, False)]


def test_a_request_without_room_learns_how_many_wait() -> None:
    bounded = TimeoutConfig(levels=PriorityLevels(policy=QueuePolicy(max_queue_size=1)))
    scheduler = serving(spec_of([model("m:1", 1, bounded)]), ONE)
    step(scheduler, 0, arrival(1, NEVER))
    assert step(scheduler, 0, arrival(2, NEVER)) == []
    # Its only batch takes 1 ms.
    full = RejectRequest(3, Outcome.REJECTED_QUEUE_FULL, "1 request waits for model m:1", 1_000_000)
    assert step(scheduler, 0, arrival(3, NEVER)) == [full]


def test_the_order_of_answers_outlasts_the_loss_of_a_worker() -> None:
    scheduler = two_partitions(IN_ORDER, max_batch=1)
    assert step(scheduler, 0, arrival(1, NEVER), arrival(2, NEVER)) == [
        dispatch(1, [1], FULL),
        dispatch(2, [2], FULL, partition="cpu1"),
    ]
    assert step(scheduler, MS, completed(2, 0, MS)) == []
    lost = BatchFailed(1, FailureCause.WORKER_LOST, "killed")
    assert step(scheduler, MS, lost) == [dispatch(3, [1], ReleaseReason.RETRY)]
    assert step(scheduler, 2 * MS, completed(3, MS, 2 * MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        CompleteRequest(2, Outcome.COMPLETED),
    ]


def test_an_answer_that_failed_holds_nobody_back() -> None:
    scheduler = two_partitions(IN_ORDER, max_batch=1)
    step(scheduler, 0, arrival(1, NEVER), arrival(2, NEVER))
    assert step(scheduler, MS, completed(2, 0, MS)) == []
    settled = step(scheduler, 2 * MS, BatchFailed(1, FailureCause.BACKEND, "no"))
    assert settled == [FailRequest(1, Outcome.FAILED_BACKEND, "no"), CompleteRequest(2, Outcome.COMPLETED)]


def test_what_has_less_time_than_the_delay_is_admitted_and_may_be_evicted_where_no_other_fills_its_batch() -> None:
    """It waits for its own shape for as long as any other."""
    pipelines = [single("m:1", keyed=True), single("m:1", Late.EVICT, name="hard:1", keyed=True)]
    waiting = TimeoutConfig((), 10 * MS)
    scheduler = serving(spec_of([model("m:1", 8, waiting)], pipelines), ONE)
    assert step(scheduler, 0, arrival(1, NEVER, key="x=8"), arrival(2, NEVER, key="x=8")) == []
    # It is no company for the others, which start.
    assert step(scheduler, MS, arrival(3, 9 * MS, "hard:1", key="x=16")) == [dispatch(1, [1, 2], FULL)]
    assert step(scheduler, 2 * MS, completed(1, MS, 2 * MS), arrival(4, 14 * MS, "hard:1", key="x=16")) == [
        CompleteRequest(1, Outcome.COMPLETED),
        CompleteRequest(2, Outcome.COMPLETED),
    ]
    # Request 3 can no longer be in time, and request 4 still is after the delay.
    late = EvictRequest(3, Outcome.EVICTED_DEADLINE, "the deadline is out of reach", MS)
    assert step(scheduler, 7_850 * US) == []
    assert step(scheduler, 7_850 * US + 1) == [late]
    assert step(scheduler, 12 * MS) == [dispatch(2, [4], ReleaseReason.DELAY)]
    assert step(scheduler, 13 * MS, completed(2, 12 * MS, 13 * MS)) == [CompleteRequest(4, Outcome.COMPLETED)]


def test_what_joins_a_batch_that_still_waits_is_answered_late_if_no_other_fills_the_batch() -> None:
    scheduler = serving(spec_of([model("m:1", 8, TimeoutConfig((), 10 * MS))]), ONE)
    assert step(scheduler, 0, arrival(1, S)) == []
    assert step(scheduler, MS, arrival(2, 3 * MS)) == []
    assert step(scheduler, 10 * MS) == [dispatch(1, [1, 2], ReleaseReason.DELAY)]
    assert step(scheduler, 11 * MS, completed(1, 10 * MS, 11 * MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        CompleteRequest(2, Outcome.COMPLETED_LATE),
    ]


def test_what_fills_a_batch_is_in_time_without_the_delay() -> None:
    preferring = TimeoutConfig((4,), 10 * MS)
    scheduler = serving(spec_of([model("m:1", 8, preferring)]), ONE)
    assert step(scheduler, 0, arrival(1, S, rows=3)) == []
    assert step(scheduler, MS, arrival(2, 3 * MS)) == [dispatch(1, [Member(1, 0, 3), 2], FULL)]
    assert step(scheduler, MS, arrival(3, 4 * MS, rows=4)) == []
    assert step(scheduler, 1_850 * US) == [dispatch(2, [Member(3, 0, 4)], FULL)]
