"""Triton's dynamic batcher, row by row: preferred sizes [2, 6], 10 s of delay and at most 8 rows unless noted."""

from collections.abc import Sequence

import pytest

from sluice.batcher.interface.config import Limits, PriorityLevels
from sluice.batcher.interface.decisions import CompleteRequest, DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.base import Choice
from sluice.batcher.policies.timeout import TimeoutConfig, TimeoutPolicy
from sluice.batcher.queues.queue import NO_WAITERS
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.dynamic_batching import QueuePolicy
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
from tests.unit.batcher.policies.views import Waiting, WaitingQueue, idle

NEVER = 3600 * S
FULL, IDLE, DELAY = ReleaseReason.FULL, ReleaseReason.IDLE, ReleaseReason.DELAY


def scheduler_with(preferred: tuple[int, ...] = (2, 6), delay_ns: int = 10 * S, max_batch: int = 8) -> Scheduler:
    policy = TimeoutConfig(preferred, delay_ns)
    return serving(spec_of([model("m:1", max_batch, policy)], [single("m:1", keyed=True)]), ONE)


def batches(scheduler: Scheduler, until_ns: int) -> list[tuple[int, int]]:
    """Run on, each batch taking 1 ms: (when it was closed in whole seconds, rows) of every batch."""
    closed: list[tuple[int, int]] = []
    running: list[tuple[int, int]] = []
    while True:
        due_ns = scheduler.next_wakeup_ns()
        ends_ns = running[0][0] if running else None
        if ends_ns is not None and (due_ns is None or ends_ns <= due_ns):
            now_ns, batch = running.pop(0)
            decisions = step(scheduler, now_ns, completed(batch, now_ns - MS, now_ns))
        elif due_ns is not None and due_ns <= until_ns:
            now_ns = due_ns
            decisions = step(scheduler, now_ns)
        else:
            return closed
        for decision in decisions:
            if isinstance(decision, DispatchBatch):
                free_ns = max(now_ns, running[-1][0] if running else 0)
                running.append((free_ns + MS, decision.batch))
                closed.append((now_ns // S, decision.rows))


def queue(scheduler: Scheduler, rows: Sequence[int], key: str = "") -> None:
    """Requests with these numbers of rows at the instant 0, all seen by one scan of the queue."""
    for number, count in enumerate(rows, start=len(scheduler.requests)):
        assert scheduler.handle(arrival(number, NEVER, rows=count, key=key), 0) == []


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([2], [(0, 2)], id="static_batch_preferred, 2"),
        pytest.param([6], [(0, 6)], id="static_batch_preferred, 6"),
        pytest.param([1], [(10, 1)], id="static_batch_lt_any_preferred"),
        pytest.param([3], [(10, 3)], id="static_batch_not_preferred"),
        pytest.param([7], [(0, 7)], id="static_batch_gt_max_preferred"),
        pytest.param([1, 3], [(10, 4)], id="multi_batch_not_preferred"),
        pytest.param([3, 7], [(0, 3), (0, 7)], id="multi_batch_gt_max_preferred"),
        pytest.param([3, 4], [(0, 3), (10, 4)], id="multi_batch_sum_gt_max_preferred"),
        pytest.param([1, 1], [(0, 2)], id="multi_same_output"),
        pytest.param([1] * 6, [(0, 6)], id="multi_batch_use_biggest_preferred"),
        pytest.param([1, 1, 1], [(0, 2), (10, 1)], id="multi_batch_use_best_preferred"),
    ],
)
def test_preferred_sizes_with_a_delay(rows: list[int], expected: list[tuple[int, int]]) -> None:
    scheduler = scheduler_with()
    queue(scheduler, rows)
    assert batches(scheduler, 20 * S) == expected


def test_multi_batch_delayed_use_max_batch() -> None:
    scheduler = scheduler_with()
    assert step(scheduler, 0, arrival(1, NEVER, rows=2)) == [dispatch(1, [Member(1, 0, 2)], FULL)]
    assert step(scheduler, 0, arrival(2, NEVER, rows=2)) == []
    assert step(scheduler, MS - 1) == [dispatch(2, [Member(2, 0, 2)], FULL)]
    assert step(scheduler, MS, arrival(3, NEVER, rows=3), arrival(4, NEVER, rows=4)) == []
    assert step(scheduler, 11 * S, arrival(5, NEVER)) == [], "two batches are in flight"
    assert step(scheduler, 12 * S, completed(1, 0, 12 * S), completed(2, 12 * S, 12 * S)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        CompleteRequest(2, Outcome.COMPLETED),
        dispatch(3, [Member(3, 0, 3), Member(4, 0, 4), 5], FULL),
    ]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(4, [(0, 4)], id="preferred_batch_only_aligned"),
        pytest.param(5, [(0, 4), (0, 1)], id="preferred_batch_only_unaligned"),
        pytest.param(7, [(0, 6), (0, 1)], id="preferred_batch_only_use_biggest_preferred"),
        pytest.param(3, [(0, 3)], id="preferred_batch_only_use_no_preferred_size"),
    ],
)
def test_preferred_sizes_without_delay(rows: int, expected: list[tuple[int, int]]) -> None:
    scheduler = scheduler_with(preferred=(4, 6), delay_ns=0)
    queue(scheduler, [1] * rows)
    assert batches(scheduler, 20 * S) == expected


def test_max_queue_delay_only() -> None:
    scheduler = scheduler_with(preferred=())
    queue(scheduler, [1] * 12)
    assert batches(scheduler, 20 * S) == [(0, 8), (10, 4)]


def test_without_preferred_sizes_and_delay_whatever_is_queued_is_queue() -> None:
    scheduler = scheduler_with(preferred=(), delay_ns=0)
    queue(scheduler, [1] * 3)
    assert batches(scheduler, 20 * S) == [(0, 3)]


def test_multi_batch_preserve_ordering() -> None:
    scheduler = scheduler_with(preferred=(), max_batch=4)
    assert step(scheduler, 0, *(arrival(number, NEVER - number) for number in range(12))) == [
        dispatch(1, [0, 1, 2, 3], FULL)
    ]
    assert step(scheduler, 850_000) == [dispatch(2, [4, 5, 6, 7], FULL)]
    assert step(scheduler, MS, completed(1, 0, MS)) == [
        CompleteRequest(number, Outcome.COMPLETED) for number in (0, 1, 2, 3)
    ]
    assert step(scheduler, 1_850_000) == [dispatch(3, [8, 9, 10, 11], FULL)]


def test_different_shapes_never_share_a_batch() -> None:
    scheduler = scheduler_with()
    queue(scheduler, [1], key="x=16")
    queue(scheduler, [1], key="x=8")
    assert batches(scheduler, 20 * S) == [(0, 1), (10, 1)]


def test_a_request_that_arrives_later_completes_a_preferred_size_at_once() -> None:
    scheduler = scheduler_with()
    assert step(scheduler, 0, arrival(1, NEVER)) == []
    assert scheduler.next_wakeup_ns() == 10 * S
    assert step(scheduler, 4 * S, arrival(2, NEVER)) == [dispatch(1, [1, 2], FULL)]


def test_with_bounded_queues_a_batch_waits_for_the_end_of_the_one_of_its_queue() -> None:
    policy = TimeoutPolicy(TimeoutConfig(levels=PriorityLevels(policy=QueuePolicy(max_queue_size=1))), Limits())
    queue, running = WaitingQueue(Waiting()), idle(ONE)._replace(is_busy=True, runs_own=True)
    until_its_end = Choice(0, IDLE, 900_000, NO_WAITERS, after_idle_ns=0)
    assert policy.choose(queue, running._replace(now_ns=100_000, start_ns=900_000)) == until_its_end
    # It has not ended when it was expected to: 1 ms more.
    overrun = running._replace(now_ns=2 * MS, start_ns=2 * MS)
    assert policy.choose(queue, overrun) == Choice(0, IDLE, 3 * MS, NO_WAITERS, after_idle_ns=0)
    assert policy.choose(queue, overrun._replace(runs_own=False)) == Choice(1, IDLE)
