import pytest

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.reservations.assignments import MAX_ASSIGNMENTS, Assignments
from sluice.batcher.reservations.reservations import Reservations, ReservedBatch
from sluice.batcher.reservations.search import ReservationRefusal
from sluice.batcher.reservations.timeline import Part, Reservation
from sluice.batcher.state import Precedence, QueueKey

SECOND = 1_000_000_000
A, B = ("a", ""), ("b", "")
SINGLE = Precedence(((),), (True,))
CHAIN = Precedence(((), (0,)), (True, True))

Interval = tuple[str, int, int, tuple[Part, ...]]


def one_partition(**lengths: tuple[int, ...]) -> Reservations:
    """A partition `p` that takes these times for batches of 1, 2, … rows."""
    reservations = Reservations([PartitionConfig("p", "gpu")])
    for model, lengths_ns in lengths.items():
        reservations.learn("gpu", model, lengths_ns)
    reservations.ready("p", lengths, 0)
    return reservations


def two_kinds() -> Reservations:
    """A slow and cheap partition, and one that is fast and dear."""
    reservations = Reservations([PartitionConfig("cpu", "cpu", price=1.0), PartitionConfig("gpu", "gpu", price=5.0)])
    reservations.learn("cpu", "a", (40, 80))
    reservations.learn("gpu", "a", (10, 11))
    reservations.ready("cpu", ["a"], 0)
    reservations.ready("gpu", ["a"], 0)
    return reservations


def slots(reservations: Reservations) -> list[Interval]:
    return [
        (name, slot.start_ns, slot.end_ns, tuple((held.request, stage) for held, stage in slot.members))
        for name, timeline in reservations.timelines.items()
        for slot in timeline.slots
    ]


def everything(request: int, stage: int) -> int:
    """One row of each waits."""
    return 1


# -- admission


def test_a_place_is_as_late_as_the_deadline_allows() -> None:
    reservations = one_partition(a=(10, 12))
    assert reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=100, now_ns=0) is None
    assert slots(reservations) == [("p", 90, 100, ((1, 0),))]


def test_requests_of_one_queue_share_a_slot() -> None:
    reservations = one_partition(a=(10, 12))
    reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=100, now_ns=0)
    reservations.reserve(2, SINGLE, (A,), 1, deadline_ns=110, now_ns=0)
    assert slots(reservations) == [("p", 88, 100, ((1, 0), (2, 0)))]


@pytest.mark.parametrize("other", [("a", "shape=3"), ("b", "")])
def test_requests_of_other_queues_do_not(other: QueueKey) -> None:
    reservations = one_partition(a=(10, 12), b=(10, 12))
    reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=100, now_ns=0)
    reservations.reserve(2, SINGLE, (other,), 1, deadline_ns=110, now_ns=0)
    assert slots(reservations) == [("p", 90, 100, ((1, 0),)), ("p", 100, 110, ((2, 0),))]


def test_slots_are_not_shared_when_apart_is_quicker() -> None:
    reservations = one_partition(a=(10, 25))
    reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=100, now_ns=0)
    reservations.reserve(2, SINGLE, (A,), 1, deadline_ns=100, now_ns=0)
    assert slots(reservations) == [("p", 80, 90, ((1, 0),)), ("p", 90, 100, ((2, 0),))]


def test_a_batch_of_fewer_rows_counts_as_no_slower() -> None:
    reservations = one_partition(a=(30, 10))
    reservations.reserve(1, SINGLE, (A,), 2, deadline_ns=100, now_ns=0)
    assert slots(reservations) == [("p", 70, 100, ((1, 0),))]


def test_others_are_moved_earlier_to_make_room() -> None:
    reservations = one_partition(a=(10,), b=(30,))
    reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=60, now_ns=0)
    assert reservations.reserve(2, SINGLE, (B,), 1, deadline_ns=62, now_ns=0) is None
    assert slots(reservations) == [("p", 22, 32, ((1, 0),)), ("p", 32, 62, ((2, 0),))]


def test_a_request_that_cannot_be_on_time_learns_the_soonest_end_and_changes_nothing() -> None:
    reservations = one_partition(a=(10,))
    reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=15, now_ns=0)
    before = slots(reservations)
    assert reservations.reserve(2, SINGLE, (A,), 1, deadline_ns=18, now_ns=0) == ReservationRefusal(
        25, 1.0 * 10 / SECOND
    )
    assert slots(reservations) == before
    assert 2 not in reservations


def test_what_runs_already_counts() -> None:
    reservations = one_partition(a=(10,))
    reservations.started("p", [(7, 0)], end_ns=50)
    assert reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=59, now_ns=0) == ReservationRefusal(
        60, 1.0 * 10 / SECOND
    )
    reservations.free("p", 49)
    assert reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=59, now_ns=0) is None


def test_without_a_partition_for_it_there_is_no_best() -> None:
    reservations = one_partition(a=(10,))
    assert reservations.reserve(1, SINGLE, (B,), 1, deadline_ns=100, now_ns=0) == ReservationRefusal(None, None)
    assert reservations.reserve(2, SINGLE, (A,), 2, deadline_ns=100, now_ns=0) == ReservationRefusal(None, None)


def test_stages_are_placed_backwards_from_the_deadline() -> None:
    reservations = one_partition(a=(10,), b=(30,))
    assert reservations.reserve(1, CHAIN, (A, B), 1, deadline_ns=100, now_ns=0) is None
    assert slots(reservations) == [("p", 60, 70, ((1, 0),)), ("p", 70, 100, ((1, 1),))]


def test_a_combiner_takes_no_time_and_passes_on_what_it_waits_for() -> None:
    precedence = Precedence(((), (), (0, 1), (2,)), (True, True, False, True))
    assert precedence.stages == (0, 1, 3)
    assert precedence.before == ((), (), (0, 1), (0, 1))
    assert precedence.after == ((3,), (3,), (), ())


def test_under_load_new_slots_have_room_for_those_that_will_come() -> None:
    reservations = one_partition(a=(10, 11, 12, 13))
    for request in range(3):
        reservations.reserve(request, SINGLE, (A,), 1, deadline_ns=1000, now_ns=2 * request)
        reservations.forget(request)
    reservations.reserve(3, SINGLE, (A,), 1, deadline_ns=1000, now_ns=6)
    assert slots(reservations) == [("p", 987, 1000, ((3, 0),))]


# -- cost


def test_the_cheapest_placement_that_makes_it_is_taken() -> None:
    reservations = two_kinds()
    reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=100, now_ns=0)
    reservations.reserve(2, SINGLE, (A,), 1, deadline_ns=50, now_ns=20)
    assert slots(reservations) == [("cpu", 60, 100, ((1, 0),)), ("gpu", 40, 50, ((2, 0),))]


def test_a_request_that_would_cost_more_than_its_limit_learns_the_least_cost() -> None:
    reservations = two_kinds()
    refusal = reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=30, now_ns=0, max_cost=49 / SECOND)
    assert refusal == ReservationRefusal(10, 5.0 * 10 / SECOND, hopeless=True)
    assert slots(reservations) == []
    assert reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=30, now_ns=0, max_cost=50 / SECOND) is None


def test_placements_are_bounded_and_keep_the_cheapest_and_the_quickest() -> None:
    kinds = ("x", "y", "z")
    reservations = Reservations(PartitionConfig(kind, kind, price=price) for price, kind in enumerate(kinds, start=1))
    for kind, length_ns in zip(kinds, (90, 40, 20), strict=True):
        reservations.learn(kind, "a", (length_ns,))
        reservations.ready(kind, ["a"], 0)
    precedence = Precedence(((), *((stage,) for stage in range(9))), (True,) * 10)
    reservation = Reservation(1, precedence, (A,) * 10, (None,) * 10, 1, 10_000)
    found = Assignments(reservations.timelines.values(), reservation)
    assert len(found.by_cost) <= MAX_ASSIGNMENTS
    assert found.by_cost[0].cost == pytest.approx(10 * 60 / SECOND)
    assert found.least_ns == 10 * 20


# -- dispatch


def test_a_slot_starts_as_soon_as_its_members_wait() -> None:
    reservations = one_partition(a=(10, 12))
    reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=100, now_ns=0)
    assert reservations.runnable("p", 0, lambda request, stage: 0) is None
    assert reservations.timelines["p"].due_ns() == 90
    assert reservations.runnable("p", 5, everything) == ReservedBatch(((1, 0),), 1, 100)
    reservations.started("p", [(1, 0)], end_ns=15)
    assert slots(reservations) == []


def test_what_would_take_the_time_of_the_first_slot_does_not_start() -> None:
    reservations = one_partition(a=(10,), b=(30,))
    reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=50, now_ns=0)
    reservations.reserve(2, SINGLE, (B,), 1, deadline_ns=100, now_ns=0)

    def waiting(request: int, stage: int) -> int:
        return int(request == 2)

    assert reservations.runnable("p", 10, waiting) == ReservedBatch(((2, 0),), 1, 40)
    assert reservations.runnable("p", 11, waiting) is None


def test_later_members_of_the_queue_fill_a_batch() -> None:
    reservations = one_partition(a=(10, 30, 31), b=(5,))
    for request, deadline_ns in enumerate((100, 110, 120)):
        reservations.reserve(request, SINGLE, (A,), 1, deadline_ns, now_ns=0)
    reservations.learn("gpu", "a", (10, 11, 12))
    assert reservations.runnable("p", 0, everything) == ReservedBatch(((0, 0), (1, 0), (2, 0)), 3, 100)
    assert reservations.runnable("p", 89, everything) == ReservedBatch(((0, 0), (1, 0)), 2, 100)


def test_members_that_leave_early_shorten_their_slot() -> None:
    reservations = one_partition(a=(10, 16))
    reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=100, now_ns=0)
    reservations.reserve(2, SINGLE, (A,), 1, deadline_ns=100, now_ns=0)
    assert reservations.timelines["p"].due_ns() == 84
    assert reservations.timelines["p"].due_ns({(1, 0)}) == 90
    assert reservations.timelines["p"].due_ns({(1, 0), (2, 0)}) is None
    reservations.forget(1)
    assert slots(reservations) == [("p", 90, 100, ((2, 0),))]


def test_a_partition_helps_one_that_is_equal() -> None:
    reservations = Reservations([PartitionConfig("p", "gpu"), PartitionConfig("q", "gpu"), PartitionConfig("r", "big")])
    for kind in ("gpu", "big"):
        reservations.learn(kind, "a", (10,))
    for name in ("p", "r"):
        reservations.ready(name, ["a"], 0)
    reservations.free("r", 1000)
    reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=100, now_ns=0)
    reservations.ready("q", ["a"], 0)
    assert slots(reservations) == [("p", 90, 100, ((1, 0),))]
    assert reservations.runnable("q", 0, everything) == ReservedBatch(((1, 0),), 1, 100)
    assert reservations.runnable("r", 1000, everything) is None


def test_a_stage_has_to_be_over_when_the_next_one_begins() -> None:
    reservations = one_partition(a=(10,), b=(30,))
    reservations.reserve(1, CHAIN, (A, B), 1, deadline_ns=100, now_ns=0)
    first, second = reservations.slot(1, 0), reservations.slot(1, 1)
    assert first is not None
    assert second is not None
    assert (first.limit_ns(), second.limit_ns()) == (70, 100)
    reservations.started("p", [(1, 0)], end_ns=10)
    reservations.settled(1, 0)
    reservations.settled(1, 1)
    assert slots(reservations) == []


# -- trouble


def test_a_slot_that_did_not_start_in_time_is_dropped_and_what_follows_kept() -> None:
    reservations = one_partition(a=(10,), b=(30,))
    reservations.reserve(1, CHAIN, (A, B), 1, deadline_ns=100, now_ns=0)
    assert reservations.expire("p", 60) == []
    assert reservations.expire("p", 61) == [(1, 0)]
    assert slots(reservations) == [("p", 70, 100, ((1, 1),))]


def test_slots_of_a_lost_partition_move_to_another_while_there_is_time() -> None:
    reservations = two_kinds()
    reservations.reserve(1, SINGLE, (A,), 1, deadline_ns=100, now_ns=0)
    assert reservations.lost("cpu", 10) == []
    assert slots(reservations) == [("gpu", 90, 100, ((1, 0),))]
    assert reservations.lost("gpu", 20) == [1]
    assert slots(reservations) == []
    assert 1 not in reservations


def test_a_stage_that_has_to_run_again_gets_a_new_place_or_none() -> None:
    reservations = one_partition(a=(10,), b=(30,))
    reservations.reserve(1, CHAIN, (A, B), 1, deadline_ns=100, now_ns=0)
    reservations.started("p", [(1, 0)], end_ns=10)
    reservations.free("p", 5)
    assert reservations.reopen(1, 0, now_ns=5)
    assert slots(reservations) == [("p", 60, 70, ((1, 0),)), ("p", 70, 100, ((1, 1),))]
    reservations.started("p", [(1, 0)], end_ns=70)
    assert not reservations.reopen(1, 0, now_ns=61)
    assert slots(reservations) == []
    assert not reservations.reopen(1, 0, now_ns=61)
