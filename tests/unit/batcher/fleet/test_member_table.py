"""Searches in groups of many partitions find what a look at each of them finds."""

import random
from collections.abc import Callable

import pytest

from sluice.batcher.fleet import member_table
from sluice.batcher.fleet.member_table import (
    SMALL,
    Times,
    first_free,
    most_planned_ns,
    note_change,
    soonest,
    soonest_start_ns,
)
from sluice.batcher.fleet.partition_group import depart, join, partition_changed, went_down
from sluice.batcher.places.planned_batches import end_of_new_ns
from sluice.batcher.state import ModelState, PartitionGroup, PartitionState, PlannedBatch
from sluice.models.units import INFINITE_NS
from tests.support.scheduling.builders import MS, ONE, S, model, serving, spec_of

MANY = 10 * SMALL
LENGTH_NS = 5 * MS


def group_of(partitions: int) -> PartitionGroup:
    """Partitions that are up and idle."""
    group = PartitionGroup(0, "cpu1", frozenset({"m:1"}), 1.0)
    for number in range(partitions):
        enter(group, PartitionState(number, f"p{number}", "cpu1", 1.0, 0, 0, ready=True))
    return group


def enter(group: PartitionGroup, partition: PartitionState) -> None:
    group.partitions[partition.number] = partition
    partition.group = group
    join(group, partition)


def plan(partition: PartitionState, served: ModelState, orders_ns: list[int]) -> None:
    """Plan batches of these orders for a partition, and nothing else."""
    partition.planned = [
        PlannedBatch(partition, served, ("m:1", ""), each, 1.0, 1.0, length_ns=LENGTH_NS, latest_ns=each + S)
        for each in sorted(orders_ns)
    ]
    partition.planned_ns = LENGTH_NS * len(orders_ns)
    note_change(partition)


def keep_busy(group: PartitionGroup, partition: PartitionState, until_ns: int) -> None:
    partition.free_at_ns = until_ns
    partition_changed(group, partition)


def times_at(order_ns: int, now_ns: int, floor_ns: int = 0) -> Callable[[PartitionState], Times]:
    """The times of a batch of 2 ms, as the search for places has them."""

    def times_on(partition: PartitionState) -> Times:
        end_ns = end_of_new_ns(partition, order_ns, 2 * MS, now_ns)
        if end_ns is None:
            end_ns = partition.start_ns(now_ns) + partition.planned_ns + 2 * MS
        return max(end_ns, floor_ns), order_ns, 2 * MS, False

    return times_on


def by_a_look_at_each(
    group: PartitionGroup, times_on: Callable[[PartitionState], Times]
) -> tuple[PartitionState, Times]:
    up = [each for each in group.partitions.values() if each.ready] or list(group.partitions.values())
    return min(((each, times_on(each)) for each in up), key=lambda found: found[1][0])


@pytest.fixture(scope="module")
def served() -> ModelState:
    return serving(spec_of([model("m:1")]), ONE).dispatcher.models["m:1"]


@pytest.mark.parametrize("seed", range(20))
def test_the_soonest_end_is_that_which_a_look_at_each_finds(seed: int, served: ModelState) -> None:
    draw = random.Random(seed)
    group = group_of(MANY)
    now_ns = 100 * MS
    left: list[PartitionState] = []
    for _ in range(300):
        now_ns += draw.randrange(2) * MS
        partition = draw.choice(list(group.partitions.values()))
        change = draw.random()
        if change < 0.4:
            keep_busy(group, partition, now_ns + draw.randrange(20) * MS)
        elif change < 0.8:
            plan(partition, served, [now_ns + draw.randrange(50) * MS for _ in range(draw.randrange(4))])
        elif change < 0.9 and partition.ready and group.ready_count > 1:
            partition.ready = False
            partition.lost_ns = now_ns
            went_down(group, partition)
        elif change < 0.95 and len(group.partitions) > SMALL + 1:
            del group.partitions[partition.number]
            depart(group, partition, was_up=partition.ready)
            partition.group = None
            left.append(partition)
        elif left:
            enter(group, left.pop(0))
        order_ns, floor_ns = now_ns + draw.randrange(50) * MS, now_ns + draw.randrange(6) * MS
        times_on = times_at(order_ns, now_ns, floor_ns)
        found = soonest(group, times_on, INFINITE_NS, order_ns, 2 * MS, floor_ns, now_ns)
        assert found == by_a_look_at_each(group, times_on)
        assert soonest(group, times_on, found[1][0], order_ns, 2 * MS, floor_ns, now_ns) is None
        up = [each for each in group.partitions.values() if each.ready]
        free = [each for each in up if not each.planned and each.free_at_ns <= now_ns]
        assert first_free(group, now_ns) is (free[0] if free else None)
        assert soonest_start_ns(group, now_ns) == min(each.start_ns(now_ns) for each in up)
        assert most_planned_ns(group) == max(each.planned_ns for each in group.partitions.values())


def test_a_search_looks_at_few_of_many_busy_partitions(served: ModelState) -> None:
    group, now_ns = group_of(MANY), 100 * MS
    for number, partition in group.partitions.items():
        keep_busy(group, partition, now_ns + (number * 7 % MANY) * MS // 10)
        plan(partition, served, [now_ns + 20 * MS] * (number % 3))
    looks: list[PartitionState] = []
    times_on = times_at(now_ns + 50 * MS, now_ns)

    def counted(partition: PartitionState) -> Times:
        looks.append(partition)
        return times_on(partition)

    found = soonest(group, counted, INFINITE_NS, now_ns + 50 * MS, 2 * MS, 0, now_ns)
    assert found == by_a_look_at_each(group, times_on)
    assert len(looks) <= 5


def test_of_equal_ends_that_of_the_partition_counts_which_joined_first() -> None:
    group, now_ns = group_of(MANY), 100 * MS
    first = group.partitions.pop(0)
    depart(group, first, was_up=True)
    enter(group, first)
    found = soonest(group, times_at(S, now_ns), INFINITE_NS, S, 2 * MS, 0, now_ns)
    assert found is not None
    assert found[0] is group.partitions[1]
    assert first_free(group, now_ns) is group.partitions[1]


def test_with_no_partition_up_one_that_is_lost_is_found() -> None:
    group, now_ns = group_of(MANY), 100 * MS
    for partition in group.partitions.values():
        partition.ready = False
        partition.lost_ns = now_ns - partition.number * MS
        went_down(group, partition)
    found = soonest(group, times_at(S, now_ns), 2 * INFINITE_NS, S, 2 * MS, 0, now_ns)
    assert found is not None
    assert found[0] is group.partitions[MANY - 1]
    assert first_free(group, now_ns) is None


def test_a_table_of_partitions_that_come_and_go_stays_small() -> None:
    group, now_ns = group_of(MANY), 100 * MS
    for turn in range(20 * MANY):
        partition = group.partitions.pop(turn % MANY)
        depart(group, partition, was_up=True)
        enter(group, partition)
        first_free(group, now_ns)
    assert group.table is not None
    assert len(group.table.members) <= (member_table.VACANT + 1) * MANY
