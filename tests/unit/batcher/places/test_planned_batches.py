"""Planned batches: 1, 1.1, 1.2 and 1.4 ms for 1, 2, 4 and 8 rows, on partitions free at 10 ms."""

import pytest

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.fleet.partition_group import planned_until_ns
from sluice.batcher.places.planned_batches import (
    Before,
    change_rows,
    end_of_grown_ns,
    end_of_new_ns,
    insert,
    join,
    keep_room,
    leave,
    length_ns,
    measure,
    measure_depth,
    merge,
    move,
    run_together,
    slack_ns,
    tail_ns,
    undo,
)
from sluice.batcher.state import ModelState, PartitionState, PlannedBatch
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import INFINITE_NS
from tests.support.scheduling.builders import GAINING, MS, US, S, model

FREE_NS = 10 * MS
SLOW = LatencyTable.from_ms({1: 2, 2: 2.2, 4: 2.4, 8: 2.8})


def estimate_of(table: LatencyTable = GAINING) -> LatencyEstimate:
    return LatencyEstimate(table, 8, 150 * US)


def model_of(key: str = "m:1") -> ModelState:
    """A model on two kinds of partitions, of which `slow` takes twice as long."""
    state = ModelState(model(key), True, False, lambda estimate: estimate.efficient_rows)
    state.estimates = {"fast": estimate_of(), "slow": estimate_of(SLOW)}
    return state


def partition_of(number: int = 0, kind: str = "fast") -> PartitionState:
    partition = PartitionState(number, f"cpu{number}", kind, 1.0, 0, 0, ready=True)
    partition.free_at_ns = FREE_NS
    return partition


def planned(
    partition: PartitionState,
    order_ns: int,
    rows: float = 1,
    *,
    of: ModelState | None = None,
    limit_ns: int | None = None,
    share: float = 1.0,
    key: str = "",
    depth: float = 1.0,
) -> PlannedBatch:
    """A planned batch with one member; it has to end by its order unless `limit_ns` is given."""
    state = of or model_of()
    batch = PlannedBatch(partition, state, (state.config.key, key), order_ns, 1.0, depth, full_rows=8)
    insert(batch)
    join(batch, rows, share, order_ns, order_ns if limit_ns is None else limit_ns, 0)
    return batch


# -- the length of a batch


@pytest.mark.parametrize(
    ("rows", "expected_us"),
    [(0.25, 250), (0.5, 500), (1, 1000), (1.2, 1020), (2, 1100), (4.01, 1202), (8, 1400), (9, 2400), (20, 4000)],
)
def test_an_expected_number_of_rows_takes_its_part_of_the_time_between_two_whole_numbers(
    rows: float, expected_us: int
) -> None:
    """More rows than the eight that a batch holds take several."""
    assert length_ns(estimate_of(), rows) == expected_us * US


def test_without_surprises_nothing_is_kept_for_a_long_batch() -> None:
    assert tail_ns(estimate_of(), 4, 0.0, 4, 1.0, 1.0) == 0


@pytest.mark.parametrize(("caution", "expected"), [(1.0, 49_500), (0.0, 0), (2.0, 99_000)])
def test_the_tail_of_a_size_is_kept_as_cautiously_as_asked_for(caution: float, expected: int) -> None:
    estimate = estimate_of()
    estimate.observe(1, 2 * MS)  # by 49.5 us the tail of all sizes, and only the median of a row
    assert tail_ns(estimate, 2, 0.0, 2, caution, 1.0) == pytest.approx(expected, abs=2)


def test_rows_that_may_come_are_kept_time_for_by_their_deviation() -> None:
    """Two rows are expected, with a variance of 4: time is kept for 2.4 more, as far as these can come.

    Four rows take 1.2 ms, five take 1.4 ms.
    """
    assert tail_ns(estimate_of(), 2, 4.0, 8, 1.0, 1.0) == pytest.approx(1_280 * US - 1_100 * US, abs=1)
    assert tail_ns(estimate_of(), 2, 4.0, 4, 1.0, 1.0) == 1_200 * US - 1_100 * US
    assert tail_ns(estimate_of(), 2, 4.0, 2, 1.0, 1.0) == 0


def test_rows_that_may_come_are_kept_time_for_alike_however_cautious_a_pipeline_is() -> None:
    """Those beyond can wait for another batch."""
    assert tail_ns(estimate_of(), 2, 4.0, 8, 0.0, 1.0) == pytest.approx(180 * US, abs=1)
    assert tail_ns(estimate_of(), 2, 4.0, 8, 2.0, 1.0) == pytest.approx(180 * US, abs=1)


def test_rows_that_may_come_beyond_a_full_batch_are_kept_time_for_as_further_batches() -> None:
    """Of batches of 2 rows at most, 2 + 1.2 * 2 may come: 5, which are 2 batches of 1.1 ms and one of 1 ms."""
    estimate = estimate_of()
    estimate.limit(2)
    assert tail_ns(estimate, 2, 4.0, 8, 1.0, 1.0) == 3_200 * US - 1_100 * US


def test_the_end_of_a_batch_varies_more_the_more_batches_are_before_it() -> None:
    """A slow batch takes 49.5 us more, and that twice with three before it; more rows vary independently."""
    estimate = estimate_of()
    estimate.observe(1, 2 * MS)
    assert tail_ns(estimate, 2, 0.0, 2, 1.0, 2.0) == pytest.approx(99_000, abs=2)
    assert tail_ns(estimate, 2, 1.0, 8, 1.0, 2.0) == pytest.approx(140_716, abs=2)


def test_a_batch_has_to_end_sooner_the_more_its_end_varies() -> None:
    state = model_of()
    state.estimates["fast"].observe(2, 2 * MS)
    batch = planned(partition_of(), 30 * MS, 4, of=state, depth=3.0)
    assert batch.latest_ns == pytest.approx(30 * MS - 3 * 54_450, abs=4)


# -- order


def test_the_earliest_deadline_is_planned_first_and_of_equals_the_one_that_came_first() -> None:
    partition = partition_of()
    late, soon, between, equal = (planned(partition, each * MS) for each in (40, 20, 30, 30))
    assert partition.planned == [soon, between, equal, late]
    assert [batch.serial for batch in partition.planned] == [2, 3, 4, 1]
    assert partition.planned_ns == 4 * MS
    assert planned_until_ns(partition, 0) == FREE_NS + 4 * MS


# -- batches of a queue that run as one


def test_a_queue_s_next_batch_runs_by_itself_unless_it_merges_with_the_one_behind_it() -> None:
    partition = partition_of()
    first, other, second, third = (
        planned(partition, order_ms * MS, 2, key=key) for order_ms, key in ((20, ""), (25, "x"), (30, ""), (40, ""))
    )
    assert run_together(partition, first.queue_key, 0) == [first]
    merge(first)
    assert run_together(partition, first.queue_key, 0) == [first, second]
    merge(second)
    assert run_together(partition, first.queue_key, 0) == [first, second, third]
    assert run_together(partition, other.queue_key, 0) == [other]
    assert run_together(partition, ("n:1", ""), 0) == []


def test_what_is_late_in_any_case_runs_with_the_next_batch_of_its_queue() -> None:
    partition = partition_of()
    late, other, first, second = (
        planned(partition, order_ms * MS, 2, key=key) for order_ms, key in ((20, ""), (25, "x"), (30, ""), (40, ""))
    )
    assert run_together(partition, late.queue_key, 20 * MS - 1) == [late]
    assert run_together(partition, late.queue_key, 20 * MS) == [late, first]
    assert run_together(partition, late.queue_key, 30 * MS) == [late, first, second]
    assert run_together(partition, other.queue_key, 30 * MS) == [other]


def test_batches_run_together_until_they_are_full() -> None:
    partition = partition_of()
    first, second, _ = (planned(partition, order_ms * MS, 4) for order_ms in (20, 30, 40))
    merge(first)
    merge(second)
    assert run_together(partition, first.queue_key, 0) == [first, second]


def test_what_runs_with_the_next_batch_takes_its_part_of_a_full_one() -> None:
    partition = partition_of()
    batch = planned(partition, 20 * MS, 2)
    planned(partition, 30 * MS, 4)
    assert batch.length_ns == 1_100 * US
    merge(batch)
    assert (batch.merges, batch.length_ns) == (True, 350 * US)
    assert partition.planned_ns == 350 * US + 1_200 * US


def test_what_has_no_batch_of_its_queue_behind_it_runs_by_itself() -> None:
    partition = partition_of()
    batch, _ = planned(partition, 20 * MS, 2), planned(partition, 30 * MS, 4, key="x")
    merge(batch)
    assert (batch.merges, batch.length_ns) == (False, 1_100 * US)


def test_the_end_of_a_batch_varies_with_the_batches_that_are_still_before_it() -> None:
    partition = partition_of()
    before, batch, _ = (planned(partition, order_ms * MS, depth=3.0) for order_ms in (20, 30, 40))
    measure_depth(batch)
    assert batch.depth == pytest.approx(2**0.5)
    leave(before, 1)
    measure_depth(batch)
    assert batch.depth == 1


# -- when a new batch would end


def test_a_new_batch_ends_behind_what_is_more_urgent_and_before_what_is_less() -> None:
    partition = partition_of()
    assert end_of_new_ns(partition, 30 * MS, 2 * MS, 0) == 12 * MS
    planned(partition, 20 * MS, 8)
    planned(partition, 40 * MS, 4)
    assert end_of_new_ns(partition, 30 * MS, 2 * MS, 0) == 13_400 * US
    assert end_of_new_ns(partition, 50 * MS, 2 * MS, 0) == 14_600 * US
    assert end_of_new_ns(partition, 10 * MS, 2 * MS, 0) == 12 * MS


def test_a_new_batch_makes_none_behind_it_late() -> None:
    partition = partition_of()
    planned(partition, 40 * MS, limit_ns=12 * MS)
    assert end_of_new_ns(partition, 30 * MS, MS, 0) == 11 * MS
    assert end_of_new_ns(partition, 30 * MS, MS + 1, 0) is None
    assert end_of_new_ns(partition, 40 * MS, MS + 1, 0) == 12 * MS + 1, "behind it is where nothing is in the way"


def test_what_is_late_in_any_case_is_in_nobodys_way() -> None:
    partition = partition_of()
    planned(partition, 40 * MS, limit_ns=9 * MS)
    assert end_of_new_ns(partition, 30 * MS, MS, 8 * MS) is None
    assert end_of_new_ns(partition, 30 * MS, MS, 9 * MS) == 11 * MS


def test_a_policy_lets_its_own_model_be_overtaken_and_no_other() -> None:
    mine, other = model_of(), model_of("n:1")
    partition = partition_of()
    planned(partition, 40 * MS, of=mine, limit_ns=11 * MS)
    assert end_of_new_ns(partition, 30 * MS, 2 * MS, 0, mine) == 12 * MS
    planned(partition, 41 * MS, of=other, limit_ns=13 * MS)
    assert end_of_new_ns(partition, 30 * MS, 2 * MS, 0, mine) is None


def test_a_batch_can_grow_as_far_as_those_behind_it_stay_in_time() -> None:
    partition = partition_of()
    first = planned(partition, 20 * MS)
    planned(partition, 30 * MS, limit_ns=12_200 * US)
    assert end_of_grown_ns(first, 200 * US, 0) == 11_200 * US
    assert end_of_grown_ns(first, 200 * US + 1, 0) is None
    planned(partition, 15 * MS)
    assert end_of_grown_ns(first, 0, 0) is None, "the second ends at 13 ms by now"


def test_what_is_planned_takes_longer_on_a_partition_that_is_throttled_now_and_then() -> None:
    partition = partition_of()
    planned(partition, 40 * MS)
    partition.slowdown = 3.0
    assert end_of_new_ns(partition, 50 * MS, MS, 0) == FREE_NS + 6 * MS


# -- slack


def test_the_slack_is_that_of_the_tightest_other_batch_and_of_the_tightest_of_another_queue() -> None:
    partition = partition_of()
    first = planned(partition, 20 * MS, limit_ns=11_100 * US)  # ends at 11 ms
    own = first.queue_key
    assert slack_ns(partition, own, [first], 0) == (INFINITE_NS, INFINITE_NS)
    same = planned(partition, 30 * MS, limit_ns=13 * MS)  # ends at 12 ms
    other = planned(partition, 40 * MS, key="x", limit_ns=16 * MS)  # at 13 ms
    assert slack_ns(partition, own, [first], 0) == (MS, 3 * MS)
    assert slack_ns(partition, own, [same], 0) == (100 * US, 3 * MS)
    assert slack_ns(partition, own, [first, same], 0) == (3 * MS, 3 * MS)
    assert slack_ns(partition, other.queue_key, [other], 0) == (100 * US, 100 * US)
    assert slack_ns(partition, own, [], 0) == (100 * US, 3 * MS)
    # Then the first one is late, and no longer counts.
    assert slack_ns(partition, own, [same], 11_100 * US) == (1_900 * US, 1_900 * US)


# -- members


def test_a_batch_that_was_to_run_with_the_next_runs_alone_without_it() -> None:
    partition = partition_of()
    state = model_of()
    small = planned(partition, 10 * MS, 1, of=state)
    behind = planned(partition, 30 * MS, 4, of=state)
    merge(small)
    assert small.length_ns == 175 * US, "an eighth of a full batch"
    leave(behind, 4)
    assert (small.merges, small.length_ns) == (False, MS)


def test_a_batch_knows_the_tightest_times_of_its_members() -> None:
    batch = planned(partition_of(), 30 * MS, limit_ns=29 * MS)
    join(batch, 3, 1.0, 20 * MS, 19 * MS, 5 * MS)
    join(batch, 1, 1.0, 40 * MS, 39 * MS, 4 * MS)
    assert (batch.rows, batch.members, batch.length_ns) == (5, 3, 1_400 * US)
    assert batch.from_ns == 20 * MS
    assert (batch.limit_ns, batch.latest_ns, batch.ready_ns) == (19 * MS, 19 * MS, 5 * MS)
    assert batch.order_ns == 30 * MS, "its order is that of the one that it was opened for"


def test_a_place_that_may_not_run_counts_as_its_share_and_keeps_time_for_all_of_its_rows() -> None:
    """Of 8 rows a quarter runs: 2 expected, with a variance of 1.5, so that 2 + 1.2 * 1.22 may come: 4."""
    batch = planned(partition_of(), 30 * MS, 2, share=0.25)
    assert (batch.rows, batch.variance, batch.most) == (2, 1.5, 8)
    assert batch.length_ns == 1_100 * US
    assert batch.latest_ns == 30 * MS - (1_200 * US - 1_100 * US)


@pytest.mark.parametrize("room", [2, 7])
@pytest.mark.parametrize("deadline_ns", [20 * MS, 40 * MS])
def test_what_joins_and_leaves_again_leaves_no_trace(deadline_ns: int, room: int) -> None:
    partition = partition_of()
    batch = planned(partition, 30 * MS, 2, share=0.5)
    keep_room(batch, room, 0, 0)
    before = (batch.rows, batch.room, batch.variance, batch.most, batch.members, batch.length_ns, partition.planned_ns)
    times = (batch.from_ns, batch.limit_ns, batch.ready_ns, batch.latest_ns)
    join(batch, 3, 0.5, deadline_ns, 19 * MS, 5 * MS)
    undo(batch, 3, Before(*before[1:4], *times))
    after = (batch.rows, batch.room, batch.variance, batch.most, batch.members, batch.length_ns, partition.planned_ns)
    assert after == pytest.approx(before)
    assert (batch.from_ns, batch.limit_ns, batch.ready_ns, batch.latest_ns) == times


def test_a_batch_goes_with_its_last_member() -> None:
    partition = partition_of()
    batch, other = planned(partition, 30 * MS, 2), planned(partition, 40 * MS)
    join(batch, 1, 1.0, 30 * MS, 30 * MS, 0)
    assert partition.planned_ns == 2_200 * US
    leave(batch, 1)
    assert (partition.planned, partition.planned_ns) == ([batch, other], 2_100 * US)
    leave(batch, 2)
    assert (partition.planned, partition.planned_ns) == ([other], MS)


def test_rows_that_are_known_replace_what_was_expected() -> None:
    batch = planned(partition_of(), 30 * MS, 2, share=0.5)
    change_rows(batch, 2)
    assert (batch.rows, batch.variance, batch.length_ns, batch.partition.planned_ns) == (4, 0, 1_200 * US, 1_200 * US)
    change_rows(batch, -3)
    assert batch.rows == 1


# -- room


def test_room_is_kept_for_rows_to_come_as_far_as_all_stays_in_time() -> None:
    partition = partition_of()
    batch = planned(partition, 30 * MS)
    keep_room(batch, 3, 0, 0)
    assert (batch.rows, batch.room, batch.length_ns) == (1, 3, 1_200 * US)
    planned(partition, 40 * MS, limit_ns=12_300 * US)
    keep_room(batch, 8, 0, 0)
    assert batch.room == 4, "with 1.4 ms the next one would end at 12.4 ms"
    join(batch, 2, 1.0, 30 * MS, 30 * MS, 0)
    assert (batch.rows, batch.room, batch.length_ns) == (3, 4, 1_200 * US), "the rows that come take the room"


def test_room_is_kept_for_no_more_than_a_full_batch() -> None:
    batch = planned(partition_of(), 30 * MS)
    keep_room(batch, 100, 0, 0)
    assert batch.room == 8


def test_what_leaves_takes_its_room_with_it() -> None:
    batch = planned(partition_of(), 30 * MS, 2)
    join(batch, 1, 1.0, 30 * MS, 30 * MS, 0)
    keep_room(batch, 6, 0, 0)
    leave(batch, 2)
    assert (batch.rows, batch.room, batch.length_ns) == (1, 4, 1_200 * US)


# -- partitions


def test_a_batch_that_moves_takes_the_time_of_its_new_kind() -> None:
    one, other = partition_of(0), partition_of(1, "slow")
    batch, last = planned(one, 30 * MS, 4), planned(other, 40 * MS)
    move(batch, other)
    assert (one.planned, one.planned_ns) == ([], 0)
    assert (other.planned, other.planned_ns) == ([batch, last], 2_400 * US + 2 * MS)
    assert batch.partition is other


def test_a_batch_that_moves_to_a_kind_without_estimates_keeps_its_time() -> None:
    one, other = partition_of(0), partition_of(1, "new")
    batch = planned(one, 30 * MS, 4)
    move(batch, other)
    assert (batch.length_ns, other.planned_ns) == (1_200 * US, 1_200 * US)


def test_a_batch_is_measured_again_by_the_estimates_of_the_moment() -> None:
    partition = partition_of()
    batch = planned(partition, S)
    estimate = batch.model.estimates["fast"]
    for _ in range(2):
        estimate.observe(1, 4 * MS)
    measure(batch)
    assert batch.length_ns == partition.planned_ns == pytest.approx(4 * MS, abs=1)


def test_what_is_ahead_is_reckoned_with_the_pauses_between_batches_and_with_the_slowness_of_a_partition() -> None:
    partition = partition_of()
    for order_ns in (40 * MS, 50 * MS):
        planned(partition, order_ns)
    assert end_of_new_ns(partition, 20 * MS, MS, 0) == FREE_NS + MS
    partition.between_ns = 100.0 * US
    assert end_of_new_ns(partition, 20 * MS, MS, 0) == FREE_NS + 1_100 * US
    partition.slowdown = 2.0
    assert end_of_new_ns(partition, 20 * MS, MS, 0) == FREE_NS + 2_200 * US
    assert end_of_new_ns(partition, 60 * MS, MS, 0) == FREE_NS + 6_600 * US
