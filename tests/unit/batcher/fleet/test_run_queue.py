"""Run queues: which queue comes next, and when deferred queues come back; times are a few nanoseconds."""

from sluice.batcher.fleet.run_queue import RunQueue, WakeupQueue
from sluice.batcher.queues.queue import NO_WAITERS, Queue
from sluice.batcher.state import Entry, PartitionGroup, PartitionState, PlannedBatch, Request
from tests.support.scheduling.records import model_state, request

REQUEST = request()
"""A request without places."""


def group_of(*idle_since_ns: int) -> PartitionGroup:
    """A group of idle partitions."""
    group = PartitionGroup(0, "cpu1", frozenset({"m:1"}), 1.0)
    for number, since_ns in enumerate(idle_since_ns):
        partition = PartitionState(number, f"cpu{number}", "cpu1", 1.0, 0, 0, ready=True, idle_since_ns=since_ns)
        partition.group = group
        group.partitions[number] = partition
    return group


def queue_of(deadline_ns: int, *, key: str = "", rows: int = 1) -> Queue:
    """A queue with one entry."""
    queue = Queue("m:1", key)
    queue.push(Entry(REQUEST, 0, rows, None, queue.key, deadline_ns, 0, deadline_ns), deadline_ns)
    return queue


def test_the_queue_with_the_most_urgent_head_comes_first_and_each_only_once() -> None:
    run_queue = RunQueue(group_of(0))
    later, sooner = queue_of(20), queue_of(10, key="x")
    for queue in (later, sooner, later):
        run_queue.notify(queue)
    assert [run_queue.most_urgent(), run_queue.most_urgent(), run_queue.most_urgent()] == [sooner, later, None]


def placed(order_ns: int, serial: int = 0) -> Request:
    """A request with places in a planned batch of that order, for both of its stages."""
    partition = PartitionState(0, "cpu0", "cpu1", 1.0, 0, 0)
    batch = PlannedBatch(partition, model_state(), ("m:1", ""), order_ns, 1.0, 1.0, serial=serial)
    placed = request(2)
    placed.places = [(batch, 1.0), (batch, 1.0)]
    return placed


def test_a_head_with_a_place_is_as_urgent_as_the_batch_that_it_is_in() -> None:
    run_queue = RunQueue(group_of(0))
    sooner, later = Queue("m:1", "x"), queue_of(20)
    sooner.push(Entry(placed(25), 0, 1, None, sooner.key, 10, 0, 10), 10)
    for queue in (sooner, later):
        run_queue.notify(queue)
    assert [run_queue.most_urgent(), run_queue.most_urgent()] == [later, sooner]


def test_of_equally_urgent_heads_those_without_a_place_come_first_and_the_others_as_they_were_planned() -> None:
    run_queue = RunQueue(group_of(0))
    second, first, unplaced = Queue("m:1", "x"), Queue("m:1", "y"), queue_of(25)
    # The one that was planned later is further in its pipeline, which counts only between equals.
    second.push(Entry(placed(25, 2), 1, 1, None, second.key, 25, 0, 25), 25)
    first.push(Entry(placed(25, 1), 0, 1, None, first.key, 25, 0, 25), 25)
    for queue in (second, first, unplaced):
        run_queue.notify(queue)
    assert [run_queue.most_urgent() for _ in range(4)] == [unplaced, first, second, None]


def test_a_queue_for_other_partitions_is_not_taken() -> None:
    run_queue = RunQueue(group_of(0))
    mine, dearer, another = queue_of(10), queue_of(10, key="x"), queue_of(10, key="y")
    mine.only, dearer.only, another.only = ("cpu1", 1.0), ("cpu1", 2.0), ("gpu", 1.0)
    for queue in (another, dearer, mine):
        run_queue.notify(queue)
    assert [run_queue.most_urgent(), run_queue.most_urgent()] == [mine, None]


def test_a_queue_whose_head_has_gone_falls_back_to_its_next_one() -> None:
    run_queue = RunQueue(group_of(0))
    first, other = queue_of(10), queue_of(20, key="x")
    first.push(Entry(REQUEST, 0, 1, None, first.key, 30, 0, 30), 30)
    for queue in (first, other):
        run_queue.notify(queue)
    first.take(1)
    assert [run_queue.most_urgent(), run_queue.most_urgent()] == [other, first]


def test_entries_that_are_retried_come_before_all_others() -> None:
    run_queue = RunQueue(group_of(0))
    urgent, retried = queue_of(1), queue_of(50, key="x")
    retried.retry(retried.take(1))
    for queue in (urgent, retried):
        run_queue.notify(queue)
    assert run_queue.most_urgent() is retried


def test_a_deferred_queue_comes_back_at_its_time_and_asks_for_the_fewest_rows() -> None:
    run_queue = RunQueue(group_of(0))
    queue = queue_of(10)
    assert queue.wanted_rows == NO_WAITERS
    run_queue.defer(queue, 5, 8)
    run_queue.defer(queue, 7, 16)
    assert (queue.wanted_rows, run_queue.next_ns()) == (8, 7)
    run_queue.fire_timers(6)
    assert run_queue.most_urgent() is None
    run_queue.fire_timers(7)
    assert run_queue.most_urgent() is queue


def test_a_queue_that_waits_for_idleness_comes_back_when_a_partition_has_been_idle_for_long_enough() -> None:
    group = group_of(100)
    run_queue = RunQueue(group)
    queue = queue_of(1_000)
    run_queue.defer(queue, 900)
    run_queue.wait_for_idle(queue, 30)
    run_queue.partition_changed(group.partitions[0])
    assert run_queue.next_ns() == 130
    run_queue.fire_timers(129)
    assert run_queue.most_urgent() is None
    run_queue.fire_timers(130)
    assert run_queue.most_urgent() is queue


def test_queues_of_models_that_the_group_no_longer_holds_are_forgotten() -> None:
    run_queue = RunQueue(group_of(0))
    ready, deferred = queue_of(10), queue_of(20, key="x")
    run_queue.notify(ready)
    run_queue.defer(deferred, 5)
    run_queue.forget(frozenset({"m:1"}))
    run_queue.fire_timers(5)
    assert run_queue.most_urgent() is None


def test_a_group_is_woken_at_the_earliest_time_that_was_asked_for() -> None:
    wakeups = WakeupQueue()
    group = group_of(0)
    wakeups.add(group)
    for at_ns in (30, 10, 20):
        wakeups.wake(group, at_ns)
    assert wakeups.next_ns == 10
    assert wakeups.due(9) == []
    assert wakeups.due(10) == [wakeups.run_queues[group]]
    assert wakeups.next_ns is None


def test_a_check_counts_as_a_wake_up() -> None:
    wakeups = WakeupQueue()
    wakeups.add(group := group_of(0))
    wakeups.wake(group, 30)
    wakeups.check_ns = 20
    assert wakeups.next_ns == 20
