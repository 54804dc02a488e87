"""Pipelines share a queue, and late entries leave it."""

from typing import cast

import pytest

from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.decisions import CompleteRequest, DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.queues.fair_queue import Queue
from sluice.batcher.state import Entry, Request
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

NOBODY = cast("Request", None)


class Shared(Queue):
    """A queue whose entries have numbers in the order in which they were pushed."""

    def __init__(self) -> None:
        super().__init__("m:1", "")
        self.pushed = 0

    def add(
        self, flow: int, order_ns: int, *, rows: int = 1, stage: int = 0, weight: float = 1.0, times: int = 1
    ) -> None:
        for _ in range(times):
            entry = Entry(NOBODY, stage, rows, None, self.key, order_ns, 0, self.pushed, flow)
            self.push(entry, order_ns, weight)
            self.pushed += 1

    def taken(self, max_rows: int, from_ns: int = 0) -> list[int]:
        return [entry.sequence for entry in self.take(max_rows, from_ns)]

    def rows_of(self, batches: int, max_rows: int = 8) -> dict[int, int]:
        """The rows of each flow in the next `batches` batches."""
        rows: dict[int, int] = {}
        for _ in range(batches):
            for entry in self.take(max_rows):
                rows[entry.flow] = rows.get(entry.flow, 0) + entry.rows
        return rows


# -- shares


def test_while_little_waits_the_earliest_deadline_of_all_comes_first() -> None:
    queue = Shared()
    for number, order_ns in enumerate((30, 10, 20, 40)):
        queue.add(number % 2, order_ns)
    assert queue.taken(3) == [1, 2, 0]
    assert queue.taken(3) == [3]


def test_of_two_with_one_deadline_the_deeper_stage_comes_first_and_then_the_one_that_came_first() -> None:
    queue = Shared()
    queue.add(0, 10)
    queue.add(1, 10, stage=2)
    queue.add(1, 10)
    assert queue.taken(3) == [1, 0, 2]


@pytest.mark.parametrize(("first_ns", "second_ns"), [(10, 10), (10, 1_000), (1_000, 10)])
def test_when_much_waits_pipelines_get_rows_by_weight_whatever_their_deadlines(first_ns: int, second_ns: int) -> None:
    queue = Shared()
    queue.add(0, first_ns, weight=1, times=400)
    queue.add(1, second_ns, weight=3, times=400)
    rows = queue.rows_of(40)
    assert rows[0] + rows[1] == 320
    assert abs(rows[0] - 80) <= 2


def test_rows_count_and_not_requests() -> None:
    queue = Shared()
    queue.add(0, 10, rows=4, times=100)
    queue.add(1, 10, rows=1, times=400)
    rows = queue.rows_of(40)
    assert abs(rows[0] - rows[1]) <= 4


def test_many_pipelines_with_tight_deadlines_do_not_starve_one_with_far_ones() -> None:
    queue = Shared()
    for flow in range(9):
        queue.add(flow, 10, times=100)
    queue.add(9, 1_000_000, times=100)
    assert queue.rows_of(50)[9] == 40


def test_a_pipeline_that_was_away_has_not_saved_up_a_right_to_more() -> None:
    queue = Shared()
    queue.add(0, 10, times=1_000)
    queue.add(1, 10, times=8)
    queue.rows_of(2)  # by order: flow 0 is served alone for the rest of the time
    while queue._flows[1].live:
        queue.take(8)
    queue.rows_of(50)
    queue.add(1, 10, times=300)
    rows = queue.rows_of(20)
    assert abs(rows[0] - rows[1]) <= 2


def test_what_a_pipeline_leaves_is_for_the_others() -> None:
    queue = Shared()
    queue.add(0, 10, weight=1, times=100)
    queue.add(1, 10, weight=9, times=4)
    assert queue.rows_of(5) == {0: 36, 1: 4}


def test_within_a_pipeline_the_earliest_deadline_comes_first_also_when_much_waits() -> None:
    queue = Shared()
    for order_ns in range(100, 0, -1):
        queue.add(0, order_ns)
        queue.add(1, order_ns)
    taken = queue.take(8)
    for flow in (0, 1):
        assert [entry.stage_deadline_ns for entry in taken if entry.flow == flow] == [1, 2, 3, 4]


@pytest.mark.parametrize("flows", [1, 2, 3])
def test_no_batch_has_more_rows_than_it_may_unless_one_request_has(flows: int) -> None:
    queue = Shared()
    for number in range(90):
        queue.add(number % flows, number, rows=1 + number * 7 % 5)
    queue.expire(20)
    sizes = []
    while queue:
        taken = queue.take(4)
        sizes.append(sum(entry.rows for entry in taken))
        assert sizes[-1] <= 4 or len(taken) == 1
    assert sum(sizes) == sum(1 + number * 7 % 5 for number in range(90))


# -- late entries


def test_late_entries_yield_to_those_that_can_be_in_time() -> None:
    queue = Shared()
    queue.add(0, 10)
    queue.add(0, 20)
    queue.add(0, 30)
    assert queue.expire(15)
    assert not queue.expire(15)
    assert queue.late == 1
    assert queue.head().sequence == 1
    assert queue.taken(2) == [1, 2]
    assert queue.head().sequence == 0
    assert queue.taken(2) == [0]


def test_late_entries_get_the_rows_that_are_left() -> None:
    queue = Shared()
    queue.add(0, 10, times=4)
    queue.add(0, 30, times=2)
    queue.expire(15)
    assert queue.taken(4) == [4, 5, 0, 1]


def test_late_entries_get_an_eighth_of_the_rows_while_others_want_them() -> None:
    queue = Shared()
    queue.add(0, 10, times=20)
    queue.add(0, 30, times=200)
    queue.expire(15)
    late = [sum(number < 20 for number in queue.taken(4)) for _ in range(20)]
    assert late == [0, 1] * 10


def test_late_entries_come_in_the_order_of_their_deadlines_whatever_their_pipeline() -> None:
    queue = Shared()
    for order_ns in range(10, 18):
        queue.add(order_ns % 2, order_ns)
    queue.expire(20)
    assert queue.taken(3) == [0, 1, 2]
    assert queue.taken(8) == [3, 4, 5, 6, 7]


def test_a_pipeline_with_many_late_entries_does_not_keep_back_those_of_another() -> None:
    queue = Shared()
    queue.add(0, 10, times=100)
    queue.add(1, 9)
    queue.add(0, 500, times=200)
    queue.expire(20)
    assert 100 in [number for _ in range(2) for number in queue.taken(4)]


def test_a_late_entry_that_is_larger_than_the_batches_has_its_turn() -> None:
    """Of 16 rows in batches of two an eighth are for it, which has eight: it waits for 32 batches."""
    queue = Shared()
    queue.add(0, 10, rows=8)
    queue.add(0, 500, times=200)
    queue.expire(20)
    batches = [queue.taken(2) for _ in range(33)]
    assert batches.index([0]) == 31


def test_a_late_entry_that_goes_by_its_share_leaves_no_room_for_one_that_does_not_fit() -> None:
    queue = Shared()
    queue.add(0, 10, times=2)
    queue.add(0, 500, rows=4, times=20)
    queue.expire(20)
    assert [queue.taken(4) for _ in range(4)] == [[2], [0, 1], [3], [4]]


def test_an_entry_that_comes_when_only_late_ones_wait_is_the_first() -> None:
    queue = Shared()
    queue.add(0, 10)
    queue.expire(20)
    entry = Entry(NOBODY, 0, 1, None, queue.key, 30, 0, 7)
    assert queue.push(entry, 30)
    assert queue.head() is entry


def test_a_late_entry_can_be_discarded() -> None:
    queue = Shared()
    queue.add(0, 10)
    queue.add(0, 30)
    queue.expire(20)
    late = next(entry for entry in queue.entries() if entry.late)
    queue.discard(late)
    assert (queue.live, queue.rows, queue.late) == (1, 1, 0)
    assert queue.taken(4) == [1]
    assert not queue


def test_entries_from_a_deadline_on_leave_earlier_ones_where_they_are() -> None:
    queue = Shared()
    for order_ns in (10, 20, 30):
        queue.add(0, order_ns)
    assert queue.taken(1, from_ns=15) == [1]
    assert queue.head().sequence == 0
    queue.add(1, 25)
    assert queue.taken(2, from_ns=22) == [3, 2]
    assert queue.taken(2) == [0]


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


def test_pipelines_on_one_model_share_its_batches_by_weight() -> None:
    heavy = single("m:1", name="heavy:1", weight=3)
    scheduler = serving(spec_of([model("m:1", 8)], [single("m:1"), heavy]), ONE)
    step(scheduler, 0, *(arrival(number, 10 * S + number, ("m:1", "heavy:1")[number % 2]) for number in range(400)))
    now_ns, rows = 0, [0, 0]
    for batch in range(1, 21):
        now_ns += MS
        decisions = step(scheduler, now_ns, completed(batch, now_ns - MS, now_ns))
        for decision in decisions:
            if isinstance(decision, DispatchBatch):
                for member in decision.members:
                    rows[member.request % 2] += 1
    assert sum(rows) == 160
    assert abs(rows[1] - 120) <= 2


def test_a_request_of_several_rows_stays_together() -> None:
    scheduler = serving(spec_of([model("m:1", 4)], [single("m:1"), single("m:1", name="other:1")]), ONE)
    assert step(scheduler, 0, arrival(1, 10 * MS, rows=3), arrival(2, 20 * MS, "other:1", rows=2)) == [
        dispatch(1, [Member(1, 0, 3)], ReleaseReason.FULL)
    ]
