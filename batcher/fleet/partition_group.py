"""Groups of equal partitions: finds the partition that is idle, opens or is free first, without a scan of all.

A partition opens when its only batch is about to end, so that the next batch is there in time.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from sluice.batcher.fleet.member_table import enter, leave, note_change, soonest
from sluice.batcher.interface.plan_data import kind_over
from sluice.batcher.state import PartitionGroup, PartitionState
from sluice.models.units import INFINITE_NS

COMPACT_ABOVE = 64
COMPACT_FACTOR = 8
"""Outdated items are dropped from a heap with more than this many items, and this many per partition."""


def are_of_kinds(groups: Sequence[PartitionGroup]) -> bool:
    """True if groups are of several kinds, and not equal partitions that hold other models."""
    kind, price = groups[0].kind, groups[0].price
    return any(group.kind != kind or group.price != price for group in groups)


def planned_kind(group: PartitionGroup) -> str:
    """The name of a group's kind in plans."""
    return kind_over(group.kind, group.link.text) if group.link.distance else group.kind


def partition_changed(group: PartitionGroup, partition: PartitionState) -> None:
    """Update the heaps: a partition of the group became ready, or got or lost a batch."""
    note_change(partition)
    if not partition.ready:
        return
    batches = len(partition.batches)
    opens = batches == 1 and not partition.throttled and not partition.overdue
    partition.opening_ns = partition.free_at_ns - partition.hand_off_ns if opens else INFINITE_NS
    if not batches:
        if not partition.is_listed_idle and not partition.throttled:
            partition.is_listed_idle = True
            heappush(group.idle, partition.number)
        return
    if group.only is None:
        heappush(group.busy, (partition.free_at_ns, partition.number, partition))
    if opens:
        heappush(group.opening, (partition.opening_ns, partition.number, partition))
    if len(group.busy) + len(group.opening) > COMPACT_ABOVE + COMPACT_FACTOR * len(group.partitions):
        _compact(group)


def throttle(group: PartitionGroup, partition: PartitionState) -> None:
    """Exclude a throttled partition until `partition_changed` is called after the throttling."""
    partition.opening_ns = INFINITE_NS
    if partition.is_listed_idle:
        partition.is_listed_idle = False
        group.idle = sorted(each for each in group.idle if each != partition.number)


def came_up(group: PartitionGroup) -> None:
    """Record that a partition of the group is up; `partition_changed` is called after it."""
    group.ready_count += 1


def went_down(group: PartitionGroup, partition: PartitionState) -> None:
    """Record that a partition of the group, which was up, is lost."""
    group.ready_count -= 1
    partition.opening_ns = INFINITE_NS
    note_change(partition)


def join(group: PartitionGroup, partition: PartitionState) -> None:
    """Record that a partition is the newest one of the group."""
    before = group.only
    group.ready_count += partition.ready
    group.only = partition if len(group.partitions) == 1 else None
    partition.is_listed_idle = False
    enter(group, partition)
    if before is not None:
        partition_changed(group, before)  # a single partition is not in `busy`
    partition_changed(group, partition)


def depart(group: PartitionGroup, partition: PartitionState, *, was_up: bool) -> None:
    """Record that a partition is no longer one of the group; it `was_up` when the group last heard of it."""
    group.ready_count -= was_up
    partition.opening_ns = INFINITE_NS
    group.only = next(iter(group.partitions.values())) if len(group.partitions) == 1 else None
    leave(group, partition)


def _compact(group: PartitionGroup) -> None:
    """Rebuild the heaps without outdated items."""
    busy = [partition for partition in group.partitions.values() if partition.ready and partition.batches]
    group.busy = sorted((each.free_at_ns, each.number, each) for each in busy)
    opens = [each for each in busy if len(each.batches) == 1 and not each.throttled and not each.overdue]
    group.opening = sorted((each.opening_ns, each.number, each) for each in opens)


def first_idle(group: PartitionGroup) -> PartitionState | None:
    """The idle partition with the least number."""
    idle = group.idle
    while idle:
        partition = group.partitions.get(idle[0])
        if partition is not None:
            if partition.ready and not partition.batches:
                return partition
            partition.is_listed_idle = False
        heappop(idle)
    return None


def first_opening(group: PartitionGroup) -> PartitionState | None:
    """Of the partitions with one batch, the one that opens first (at its `opening_ns`)."""
    opening = group.opening
    while opening:
        at_ns, _, partition = opening[0]
        if partition.opening_ns == at_ns and partition.group is group:
            return partition
        heappop(opening)
    return None


def first_opened(group: PartitionGroup, now_ns: int) -> PartitionState | None:
    """The partition with one batch that opened first and may be given the next batch now."""
    opening = group.opening
    while opening and opening[0][0] <= now_ns:
        at_ns, _, partition = opening[0]
        if partition.opening_ns == at_ns and partition.group is group:
            return partition
        heappop(opening)
    return None


def first_available(group: PartitionGroup, now_ns: int) -> PartitionState | None:
    """The partition that may be given a batch now and is free first; None if there is none."""
    if group.idle and (partition := first_idle(group)) is not None:
        return partition
    return first_opened(group, now_ns)


def start_ns(group: PartitionGroup, now_ns: int) -> int:
    """When the next batch could start, after the dispatched batches."""
    if group.only is not None:
        return group.only.start_ns(now_ns)
    if group.partitions:
        if first_idle(group) is not None:
            return now_ns
        busy = group.busy
        while busy:
            at_ns, _, partition = busy[0]
            is_there = partition.ready and partition.group is group
            if partition.free_at_ns == at_ns and partition.batches and is_there:
                return max(at_ns, now_ns)
            heappop(busy)
    return min(partition.start_ns(now_ns) for partition in group.partitions.values())


def start_after_backlog_ns(group: PartitionGroup, now_ns: int) -> int:
    """When work that arrives now could start, after all that is planned."""
    if (only := group.only) is not None:
        return planned_until_ns(only, now_ns)

    def times_on(partition: PartitionState) -> tuple[int, int, int, bool]:
        return planned_until_ns(partition, now_ns), 0, 0, False

    found = soonest(group, times_on, 2 * INFINITE_NS, INFINITE_NS, 0, 0, now_ns)
    assert found is not None, "a group has partitions"
    return found[1][0]


def planned_until_ns(partition: PartitionState, now_ns: int) -> int:
    """When a partition has run its batches and all that is planned for it."""
    planned_ns = partition.planned_ns + int(partition.between_ns * len(partition.planned))
    if partition.slowdown == 1.0:
        return partition.start_ns(now_ns) + planned_ns
    return partition.start_ns(now_ns) + int(planned_ns * partition.slowdown)
