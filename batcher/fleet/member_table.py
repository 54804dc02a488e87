"""Tables of large groups: finds the partition that ends a batch first, without a look at each.

A search asks every partition of a group when a new batch would end there. In a group of hundreds nearly all of them
cannot be the first, which a bound on their work tells. The bounds of a block of partitions tell it of all of them, so a
search looks at the blocks, and at a few partitions. It finds what a look at each would find, ties included.

Writers of what a bound is made of call `note_change`; a table is brought up to date when it is next asked.
"""

from collections.abc import Callable

from sluice.batcher.state import MemberTable, PartitionGroup, PartitionState
from sluice.models.units import INFINITE_NS

SMALL = 12
"""Groups of at most this many partitions have no table: a look at each takes less time."""
BLOCK = 16
"""Slots of a block: about the square root of a large group."""
VACANT = 4
"""A table is made again when this many times as many positions are vacant as are in use."""

Times = tuple[int, int, int, bool]
"""A new batch on a partition: its end (ns), and what the search keeps of it."""
Found = tuple[PartitionState, Times]


def note_change(partition: PartitionState) -> None:
    """Record that what is planned on a partition, its batches or its readiness have changed."""
    if not partition.is_stale and (group := partition.group) is not None:
        partition.is_stale = True
        group.stale.append(partition)


def enter(group: PartitionGroup, partition: PartitionState) -> None:
    """Record that a partition has joined its group, the last one in its order."""
    partition.position = -1
    partition.is_stale = True
    group.stale.append(partition)


def leave(group: PartitionGroup, partition: PartitionState) -> None:
    """Record that a partition is to leave its group."""
    if partition.is_stale:
        group.stale.remove(partition)
        partition.is_stale = False
    table = group.table
    if table is not None and partition.position >= 0:
        position = partition.position
        table.members[position] = None
        _set(table, position, INFINITE_NS, INFINITE_NS, -1, 0)
        _bound(table, position // BLOCK)
    partition.position = -1


def soonest(
    group: PartitionGroup,
    times_on: Callable[[PartitionState], Times],
    before_ns: int,
    order_ns: int,
    least_ns: int,
    floor_ns: int,
    now_ns: int,
) -> Found | None:
    """The partition on which a new batch ends first, and its times there; None if it ends at `before_ns` or later.

    `times_on` gives the times on a partition. The batch has at least the order `order_ns`, takes `least_ns` at least
    and does not end before `floor_ns`. Of equal ends, that of the partition which joined first counts. Partitions that
    are not up do not count while others are.
    """
    found: Found | None = None
    if len(group.partitions) <= SMALL or not group.ready_count:
        all_down = not group.ready_count
        for partition in group.partitions.values():
            if partition.ready or all_down:
                times = times_on(partition)
                if times[0] < before_ns:
                    before_ns, found = times[0], (partition, times)
        return found
    table = _fresh(group)
    least_until_ns, least_free_ns, most_order_ns = table.least_until_ns, table.least_free_ns, table.most_order_ns
    ends_ns = [
        max((until if last <= order_ns else free), now_ns) + least_ns
        for until, free, last in zip(least_until_ns, least_free_ns, most_order_ns, strict=True)
    ]
    first = ends_ns.index(min(ends_ns))
    best = -1  # position of the best one
    for turn, block in enumerate((first, *range(len(ends_ns)))):
        if turn and block == first:
            continue
        end_ns = max(ends_ns[block], floor_ns)
        begin = block * BLOCK
        if end_ns > before_ns or (end_ns == before_ns and begin > best):
            continue
        for position in range(begin, min(begin + BLOCK, len(table.members))):
            work_ns = table.until_ns[position] if table.order_ns[position] <= order_ns else table.free_ns[position]
            end_ns = max(max(work_ns, now_ns) + least_ns, floor_ns)
            if end_ns > before_ns or (end_ns == before_ns and position >= best):
                continue
            member = table.members[position]
            if member is None or not member.ready:
                continue
            times = times_on(member)
            if times[0] < before_ns or (times[0] == before_ns and position < best):
                before_ns, best, found = times[0], position, (member, times)
    return found


def first_free(
    group: PartitionGroup, now_ns: int, suits: Callable[[PartitionState, int], bool] | None = None
) -> PartitionState | None:
    """Of the partitions that are free, and suit at `now_ns`, the one that joined first."""
    suits = suits or is_free
    if len(group.partitions) <= SMALL:
        for partition in group.partitions.values():
            if suits(partition, now_ns):
                return partition
        return None
    table = _fresh(group)
    for block, until_ns in enumerate(table.least_until_ns):
        if until_ns <= now_ns:
            for position in range(block * BLOCK, min((block + 1) * BLOCK, len(table.members))):
                member = table.members[position]
                if table.until_ns[position] <= now_ns and member is not None and suits(member, now_ns):
                    return member
    return None


def soonest_start_ns(group: PartitionGroup, now_ns: int) -> int:
    """When the first partition could start a batch after its own ones, without what is planned.

    Partitions that are not up do not count while others are.
    """
    if not group.ready_count:
        return min([partition.start_ns(now_ns) for partition in group.partitions.values()])
    if len(group.partitions) <= SMALL:
        least_ns = min([partition.free_at_ns for partition in group.partitions.values() if partition.ready])
    else:
        least_ns = min(_fresh(group).least_free_ns)
    return max(least_ns, now_ns)


def most_planned_ns(group: PartitionGroup) -> int:
    """The planned work of the partition with the most (ns)."""
    if len(group.partitions) <= SMALL:
        return max([partition.planned_ns for partition in group.partitions.values()], default=0)
    return max(_fresh(group).most_planned_ns)


def is_free(partition: PartitionState, now_ns: int) -> bool:
    """True if a batch is predicted to start on a partition at once, and nothing is planned for it.

    It may have a batch that takes longer than predicted.
    """
    has_time = partition.ready and not partition.planned and partition.free_at_ns <= now_ns
    return has_time and partition.slowdown == 1.0


def is_idle(partition: PartitionState, now_ns: int) -> bool:
    """True if a partition may be given a batch that starts at once, and nothing is planned for it."""
    return not partition.batches and not partition.throttled and is_free(partition, now_ns)


def _fresh(group: PartitionGroup) -> MemberTable:
    """The table of a group, brought up to date; O(changed partitions)."""
    table = group.table
    if table is None or len(table.members) > VACANT * len(group.partitions):
        table = _make(group)
    stale = group.stale
    if not stale:
        return table
    members = table.members
    blocks: dict[int, None] = {}
    for partition in stale:
        partition.is_stale = False
        position = partition.position
        if position < 0:
            position = partition.position = len(members)
            members.append(partition)
            for column in (table.until_ns, table.free_ns, table.order_ns, table.planned_ns):
                column.append(0)
            if position % BLOCK == 0:
                bounds = (table.least_until_ns, table.least_free_ns, table.most_order_ns, table.most_planned_ns)
                for column in bounds:
                    column.append(0)
        planned = partition.planned
        order_ns = planned[-1].order_ns if planned else -1
        free_ns, planned_ns = partition.free_at_ns, partition.planned_ns
        if partition.ready:
            _set(table, position, free_ns + planned_ns, free_ns, order_ns, planned_ns)
        else:
            _set(table, position, INFINITE_NS, INFINITE_NS, order_ns, planned_ns)
        blocks[position // BLOCK] = None
    stale.clear()
    for block in blocks:
        _bound(table, block)
    return table


def _make(group: PartitionGroup) -> MemberTable:
    """A new table with all partitions of a group, which are all to be looked at."""
    group.table = table = MemberTable()
    group.stale.clear()
    for partition in group.partitions.values():
        enter(group, partition)
    return table


def _set(table: MemberTable, position: int, until_ns: int, free_ns: int, order_ns: int, planned_ns: int) -> None:
    table.until_ns[position], table.free_ns[position] = until_ns, free_ns
    table.order_ns[position], table.planned_ns[position] = order_ns, planned_ns


def _bound(table: MemberTable, block: int) -> None:
    """Bound a block of positions."""
    begin, end = block * BLOCK, (block + 1) * BLOCK
    table.least_until_ns[block] = min(table.until_ns[begin:end])
    table.least_free_ns[block] = min(table.free_ns[begin:end])
    table.most_order_ns[block] = max(table.order_ns[begin:end])
    table.most_planned_ns[block] = max(table.planned_ns[begin:end])
