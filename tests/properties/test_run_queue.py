"""A group of partitions and its run queue behave as plain lists that are searched from end to end."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.batcher.fleet.partition_group import (
    came_up,
    depart,
    first_available,
    first_idle,
    join,
    partition_changed,
    start_ns,
    throttle,
    went_down,
)
from sluice.batcher.fleet.run_queue import RunQueue
from sluice.batcher.queues.queue import Queue
from sluice.batcher.state import RESTART_NS, Entry, PartitionGroup, PartitionState
from tests.support.scheduling.records import batch, request

WITHOUT_PLACES = request()
PARTITIONS = st.integers(0, 3)
TIMES = st.integers(1, 20)


class PartitionGroupMachine(RuleBasedStateMachine):
    """Partitions get and lose batches, come and go; the heaps agree with a look at all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 100
        self.group = PartitionGroup(0, "cpu1", frozenset({"m:1"}), 1.0)
        self.all = [PartitionState(number, f"p{number}", "cpu1", 1.0, 2, 2, ready=True) for number in range(4)]
        for partition in self.all[:2]:
            self.group.partitions[partition.number] = partition
            partition.group = self.group
            join(self.group, partition)

    @rule(number=PARTITIONS, took_ns=TIMES)
    def start(self, number: int, took_ns: int) -> None:
        partition = self.all[number]
        if number in self.group.partitions and partition.ready and len(partition.batches) < 2:
            partition.free_at_ns = partition.start_ns(self.now_ns) + took_ns
            partition.batches.append(batch(partition))
            partition_changed(self.group, partition)

    @rule(number=PARTITIONS)
    def end(self, number: int) -> None:
        partition = self.all[number]
        if number in self.group.partitions and partition.batches:
            partition.batches.pop()
            partition.free_at_ns = self.now_ns + 5 * len(partition.batches)
            partition_changed(self.group, partition)

    @rule(number=PARTITIONS)
    def join_or_leave(self, number: int) -> None:
        partition = self.all[number]
        if number not in self.group.partitions:
            self.group.partitions[number] = partition
            partition.group = self.group
            join(self.group, partition)
        elif len(self.group.partitions) > 1:
            del self.group.partitions[number]
            depart(self.group, partition, was_up=partition.ready)
            partition.group = None

    @rule(number=PARTITIONS)
    def lose_or_come_back(self, number: int) -> None:
        partition = self.all[number]
        if number in self.group.partitions:
            partition.ready = not partition.ready
            partition.lost_ns = None if partition.ready else self.now_ns
            if partition.ready:
                came_up(self.group)
            else:
                went_down(self.group, partition)
            partition_changed(self.group, partition)

    @rule(number=PARTITIONS)
    def throttle_or_not(self, number: int) -> None:
        partition = self.all[number]
        if number in self.group.partitions:
            partition.throttled = not partition.throttled
            if partition.throttled:
                throttle(self.group, partition)
            else:
                partition_changed(self.group, partition)

    @rule(passed_ns=TIMES)
    def pass_time(self, passed_ns: int) -> None:
        self.now_ns += passed_ns

    @invariant()
    def the_counts_are_right(self) -> None:
        members = list(self.group.partitions.values())
        assert self.group.ready_count == sum(each.ready for each in members)
        assert (self.group.only is None) == (len(members) > 1)

    @invariant()
    def the_first_idle_partition_is_found(self) -> None:
        idle = [each for each in self.group.partitions.values() if each.ready and not each.batches]
        open_idle = [each.number for each in idle if not each.throttled]
        found = first_idle(self.group)
        assert (None if found is None else found.number) == min(open_idle, default=None)

    @invariant()
    def what_is_available_is_found(self) -> None:
        found = first_available(self.group, self.now_ns)
        able = [
            each
            for each in self.group.partitions.values()
            if each.ready
            and not each.throttled
            and (not each.batches or (len(each.batches) == 1 and each.free_at_ns - each.hand_off_ns <= self.now_ns))
        ]
        assert (found is None) == (not able)
        assert found is None or found in able

    @invariant()
    def the_next_start_is_that_of_the_partition_that_is_free_first(self) -> None:
        if any(each.throttled for each in self.group.partitions.values()):
            return
        starts_ns = [
            max(each.free_at_ns, self.now_ns) if each.ready else (each.lost_ns or 0) + RESTART_NS
            for each in self.group.partitions.values()
            if each.ready or not self.group.ready_count
        ]
        assert start_ns(self.group, self.now_ns) == min(starts_ns)


class RunQueueMachine(RuleBasedStateMachine):
    """Queues become ready and are deferred; the run queue agrees with a search of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.sequence = 0
        self.run_queue = RunQueue(PartitionGroup(0, "cpu1", frozenset({"m:1"}), 1.0))
        self.queues = [Queue("m:1", f"k{number}") for number in range(3)]
        self.ready: set[Queue] = set()
        self.deferred: dict[Queue, int] = {}

    @rule(number=st.integers(0, 2), deadline_ns=TIMES)
    def push(self, number: int, deadline_ns: int) -> None:
        queue = self.queues[number]
        self.sequence += 1
        entry = Entry(WITHOUT_PLACES, 0, 1, None, queue.key, deadline_ns, 0, self.sequence)
        if queue.push(entry, deadline_ns):
            self.run_queue.deferred.pop(queue, None)
            self.deferred.pop(queue, None)
            self.run_queue.notify(queue)
            self.ready.add(queue)

    @precondition(lambda self: self.ready)
    @rule(after_ns=TIMES, defers=st.booleans())
    def take(self, after_ns: int, defers: bool) -> None:
        queue = self.run_queue.most_urgent()
        waiting = [each for each in self.ready if each.live]
        if not waiting:
            assert queue is None
            self.ready.clear()
            return
        assert queue is not None
        assert queue.head().stage_deadline_ns == min(each.head().stage_deadline_ns for each in waiting)
        self.ready.discard(queue)
        if defers:
            self.deferred[queue] = self.now_ns + after_ns
            self.run_queue.defer(queue, self.now_ns + after_ns)
        else:
            queue.take(1)
            if queue.live:
                self.run_queue.notify(queue)
                self.ready.add(queue)

    @rule(passed_ns=TIMES)
    def pass_time(self, passed_ns: int) -> None:
        self.now_ns += passed_ns
        self.run_queue.fire_timers(self.now_ns)
        for queue in [each for each, until_ns in self.deferred.items() if until_ns <= self.now_ns]:
            del self.deferred[queue]
            if queue.live:
                self.ready.add(queue)

    @rule()
    def end_deferrals(self) -> None:
        self.run_queue.end_deferrals()
        self.ready.update(each for each in self.deferred if each.live)
        self.deferred.clear()

    @invariant()
    def the_next_timer_is_the_first(self) -> None:
        assert self.run_queue.deferred == self.deferred
        assert self.run_queue.next_ns() == min(self.deferred.values(), default=None)


TestPartitionGroup = PartitionGroupMachine.TestCase
TestPartitionGroup.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRunQueue = RunQueueMachine.TestCase
TestRunQueue.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
