"""A queue is in the order of deadlines, with late entries last."""

from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.decisions import CompleteRequest, Member, ReleaseReason
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.queues.ordered_entries import requeue
from sluice.batcher.queues.queue import Queue
from sluice.batcher.state import Entry
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
from tests.support.scheduling.records import request

NOBODY = request()


class Numbered:
    """A queue whose entries have numbers in the order in which they were pushed."""

    def __init__(self) -> None:
        self.queue = Queue("m:1", "")
        self.pushed = 0

    def add(self, order_ns: int, *, rows: int = 1, stage: int = 0, times: int = 1) -> None:
        for _ in range(times):
            self.queue.push(Entry(NOBODY, stage, rows, None, self.queue.key, order_ns, 0, self.pushed), order_ns)
            self.pushed += 1

    def taken(self, max_rows: int, from_ns: int = 0) -> list[int]:
        return [entry.sequence for entry in self.queue.take(max_rows, from_ns)]


# -- order


def test_the_earliest_deadline_comes_first() -> None:
    numbered = Numbered()
    for order_ns in (30, 10, 20, 40):
        numbered.add(order_ns)
    assert numbered.taken(3) == [1, 2, 0]
    assert numbered.taken(3) == [3]


def test_of_two_with_one_deadline_the_deeper_stage_comes_first_and_then_the_one_that_came_first() -> None:
    numbered = Numbered()
    numbered.add(10)
    numbered.add(10, stage=2)
    numbered.add(10)
    assert numbered.taken(3) == [1, 0, 2]


def test_no_batch_has_more_rows_than_it_may_unless_one_request_has() -> None:
    numbered = Numbered()
    queue = numbered.queue
    for number in range(90):
        numbered.add(number, rows=1 + number * 7 % 5)
    queue.expire(20)
    sizes = []
    while queue:
        taken = queue.take(4)
        sizes.append(sum(entry.rows for entry in taken))
        assert sizes[-1] <= 4 or len(taken) == 1
    assert sum(sizes) == sum(1 + number * 7 % 5 for number in range(90))


# -- late entries


def test_late_entries_yield_to_those_that_can_be_in_time() -> None:
    numbered = Numbered()
    queue = numbered.queue
    numbered.add(10)
    numbered.add(20)
    numbered.add(30)
    assert queue.expire(15)
    assert not queue.expire(15)
    assert queue.late == 1
    assert queue.head().sequence == 1
    assert numbered.taken(2) == [1, 2]
    assert queue.head().sequence == 0
    assert numbered.taken(2) == [0]


def test_late_entries_get_the_rows_that_are_left() -> None:
    numbered = Numbered()
    queue = numbered.queue
    numbered.add(10, times=4)
    numbered.add(30, times=2)
    queue.expire(15)
    assert numbered.taken(4) == [4, 5, 0, 1]


def test_late_entries_get_an_eighth_of_the_rows_while_others_want_them() -> None:
    numbered = Numbered()
    queue = numbered.queue
    numbered.add(10, times=20)
    numbered.add(30, times=200)
    queue.expire(15)
    late = [sum(number < 20 for number in numbered.taken(4)) for _ in range(20)]
    assert late == [0, 1] * 10


def test_late_entries_come_in_the_order_of_their_deadlines() -> None:
    numbered = Numbered()
    queue = numbered.queue
    for order_ns in range(10, 18):
        numbered.add(order_ns)
    queue.expire(20)
    assert numbered.taken(3) == [0, 1, 2]
    assert numbered.taken(8) == [3, 4, 5, 6, 7]


def test_a_late_entry_that_is_larger_than_the_batches_has_its_turn() -> None:
    """Of 16 rows in batches of two an eighth are for it, which has eight: it waits for 32 batches."""
    numbered = Numbered()
    queue = numbered.queue
    numbered.add(10, rows=8)
    numbered.add(500, times=200)
    queue.expire(20)
    batches = [numbered.taken(2) for _ in range(33)]
    assert batches.index([0]) == 31


def test_a_late_entry_that_goes_by_its_share_leaves_no_room_for_one_that_does_not_fit() -> None:
    numbered = Numbered()
    queue = numbered.queue
    numbered.add(10, times=2)
    numbered.add(500, rows=4, times=20)
    queue.expire(20)
    assert [numbered.taken(4) for _ in range(4)] == [[2], [0, 1], [3], [4]]


def test_an_entry_that_comes_when_only_late_ones_wait_is_the_first() -> None:
    numbered = Numbered()
    queue = numbered.queue
    numbered.add(10)
    queue.expire(20)
    entry = Entry(NOBODY, 0, 1, None, queue.key, 30, 0, 7)
    assert queue.push(entry, 30)
    assert queue.head() is entry


def test_a_late_entry_can_be_discarded() -> None:
    numbered = Numbered()
    queue = numbered.queue
    numbered.add(10)
    numbered.add(30)
    queue.expire(20)
    late = next(entry for entry in queue.entries() if entry.late)
    queue.discard(late)
    assert (queue.live, queue.rows, queue.late) == (1, 1, 0)
    assert numbered.taken(4) == [1]
    assert not queue


def test_entries_that_ran_out_of_turn_may_wait_again_and_are_there_once() -> None:
    numbered = Numbered()
    queue = numbered.queue
    for order_ns in (10, 20, 30, 40):
        numbered.add(order_ns, rows=2)
    queue.expire(20)
    _, second, _, late = queue.entries()
    queue.remove([second, late])
    assert [entry.sequence for entry in queue.entries()] == [1, 3]
    for entry, order_ns in ((second, 30), (late, 10)):
        requeue(entry, queue.key)
        queue.push(entry, order_ns)
    assert [entry.sequence for entry in queue.entries()] == [0, 1, 2, 3]
    assert (queue.live, queue.late, queue.rows) == (4, 0, 8)


def test_the_first_entry_is_taken_whether_it_is_late_or_not_and_whatever_its_rows_are() -> None:
    numbered = Numbered()
    queue = numbered.queue
    for order_ns in (30, 10, 20):
        numbered.add(order_ns, rows=3)
    queue.expire(15)
    assert [queue.take_first().sequence for _ in range(2)] == [2, 0]
    assert (queue.live, queue.rows, queue.late) == (1, 3, 1)
    assert queue.take_first().sequence == 1
    assert (queue.live, queue.rows, queue.late) == (0, 0, 0)


def test_a_late_entry_can_be_moved_to_another_queue_and_be_discarded_there() -> None:
    before, after = Numbered(), Numbered()
    before.add(10)
    before.queue.expire(15)
    entry = before.queue.take_first()
    requeue(entry, after.queue.key)
    after.queue.push(entry, 10)
    assert (after.queue.head(), after.queue.late) == (entry, 0)
    after.queue.discard(entry)
    assert (after.queue.live, after.queue.rows, after.queue.late) == (0, 0, 0)


def test_entries_from_a_deadline_on_leave_earlier_ones_where_they_are() -> None:
    numbered = Numbered()
    queue = numbered.queue
    for order_ns in (10, 20, 30):
        numbered.add(order_ns)
    assert numbered.taken(1, from_ns=15) == [1]
    assert queue.head().sequence == 0
    numbered.add(25)
    assert numbered.taken(2, from_ns=22) == [3, 2]
    assert numbered.taken(2) == [0]


# -- in the scheduler


def test_what_is_late_is_served_last_and_does_not_make_others_late() -> None:
    """One row a batch of 1 ms. Request 2 cannot make it any more when the partition is free."""
    scheduler = serving(spec_of([model("m:1", 1)], limits=Limits(hand_off_ns=0)), ONE)
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1], ReleaseReason.FULL)]
    step(scheduler, 100 * US, arrival(2, 2_500 * US), arrival(3, 5_000 * US))
    assert step(scheduler, 3 * MS, completed(1, 0, 3 * MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(2, [3], ReleaseReason.FULL),
    ]
    assert step(scheduler, 4 * MS, completed(2, 3 * MS, 4 * MS)) == [
        CompleteRequest(3, Outcome.COMPLETED),
        dispatch(3, [2], ReleaseReason.FULL),
    ]


def test_a_request_of_several_rows_stays_together() -> None:
    scheduler = serving(spec_of([model("m:1", 4)], [single("m:1"), single("m:1", name="other:1")]), ONE)
    assert step(scheduler, 0, arrival(1, 10 * MS, rows=3), arrival(2, 20 * MS, "other:1", rows=2)) == [
        dispatch(1, [Member(1, 0, 3)], ReleaseReason.FULL)
    ]
