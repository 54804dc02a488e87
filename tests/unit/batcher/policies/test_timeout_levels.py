"""What levels of priority, bounds of queues and answers in order mean beside everything else that the core does."""

from sluice.batcher.interface.config import PolicyConfig, PriorityLevels
from sluice.batcher.interface.decisions import (
    CompleteRequest,
    DispatchBatch,
    FailRequest,
    Member,
    RejectRequest,
    ReleaseReason,
)
from sluice.batcher.interface.events import BatchFailed, FailureCause, PartitionLost, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.dynamic_batching import QueuePolicy, TimeoutAction
from sluice.models.pipelines.pipeline import Late
from tests.support.scheduling.builders import (
    MS,
    ONE,
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


def test_what_goes_before_others_is_not_refused_for_their_sake() -> None:
    scheduler = serving(spec_of([model("m:1", 1, TWO_LEVELS)]), ONE)
    assert step(scheduler, 0, *(prioritized(number, 2) for number in range(10))) == [dispatch(1, [0], FULL)]
    (refused,) = step(scheduler, 0, prioritized(10, 2, 5 * MS))
    assert isinstance(refused, RejectRequest)
    assert refused.outcome is Outcome.REJECTED_DEADLINE
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


def test_a_request_without_room_is_told_how_many_wait() -> None:
    bounded = TimeoutConfig(levels=PriorityLevels(policy=QueuePolicy(max_queue_size=1)))
    scheduler = serving(spec_of([model("m:1", 1, bounded)]), ONE)
    step(scheduler, 0, arrival(1, NEVER))
    assert step(scheduler, 0, arrival(2, NEVER)) == []
    full = RejectRequest(3, Outcome.REJECTED_QUEUE_FULL, "1 request waits for model m:1", 1_150_000)
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


def test_what_has_a_place_reserved_shares_no_batch_with_another_shape() -> None:
    pipelines = [single("m:1", keyed=True), single("m:1", Late.EVICT, name="hard:1", keyed=True)]
    waiting = TimeoutConfig((), 10 * S)
    scheduler = Scheduler(spec_of([model("m:1", 8, waiting)], pipelines))
    step(scheduler, 0, PartitionReady("cpu0", {"m:1": ONE}))
    soft = arrival(1, NEVER, key="x=8"), arrival(2, NEVER, key="x=8")
    assert step(scheduler, 0, *soft) == []
    decisions = step(scheduler, MS, arrival(3, 100 * MS, "hard:1", key="x=16"))
    assert [(each.rows, each.members) for each in decisions if isinstance(each, DispatchBatch)] == [
        (1, (Member(3, 0, 1),))
    ]
    decisions = step(scheduler, 2 * MS, completed(1, MS, 2 * MS), arrival(4, 100 * MS, "hard:1", key="x=8"))
    assert [each.rows for each in decisions if isinstance(each, DispatchBatch)] == [3]


def test_what_was_admitted_with_a_bound_of_cost_waits_on_without_its_place_although_the_queue_is_full() -> None:
    bounded = TimeoutConfig((), 10 * S, levels=PriorityLevels(policy=QueuePolicy(max_queue_size=1)))
    scheduler = Scheduler(spec_of([model("m:1", 8, bounded)]))
    step(scheduler, 0, PartitionReady("cpu0", {"m:1": ONE}), arrival(1, S, rows=8))
    placed = [RequestArrived(number, "m:1", 1, 4 * MS, max_cost=1.0) for number in (3, 4)]
    assert step(scheduler, MS // 2, *placed) == []
    assert step(scheduler, MS // 2, PartitionLost("cpu0", "killed")) == []
    assert scheduler.queue_depths() == {"m:1": 2}
