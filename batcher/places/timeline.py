"""Timelines: when planned batches begin and end, where some wait for batches of other partitions.

A partition runs its planned batches in their order, and is idle until one is ready. So a batch that ends later moves
those behind it and, on other partitions, those that wait for its rows. What is planned is feasible if none of them then
ends after its latest end. An arrival that would make it infeasible is refused, and a batch that would do so is not
started before its turn; as long as batches take the expected time, all then end in time.

What ends earlier moves nothing at once: ends are upper bounds until the partition is looked at again.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sluice.batcher.places.planned_batches import passed_ns, return_ns
from sluice.batcher.state import ModelState, PartitionState, PlannedBatch

MOST_MOVED = 1000
"""The most batches whose ends are computed for one change; one that moves more is refused."""
NOTHING: Mapping[PlannedBatch, int] = {}


class BatchStart(NamedTuple):
    """A batch that starts now on a partition, which is free again at `free_ns`.

    The planned batches that it runs whole end at `back_ns`.
    """

    partition: PartitionState
    free_ns: int
    whole: tuple[PlannedBatch, ...]
    back_ns: int


def rows_ready_ns(batch: PlannedBatch, ends_ns: Mapping[PlannedBatch, int] = NOTHING) -> int:
    """When all has ended that a batch waits for; `ends_ns` are those that differ from the plan."""
    links = batch.links
    if links is None:
        return 0
    at_ns = links.fed_ns
    for source in links.after:
        end_ns = ends_ns.get(source, source.end_ns) + return_ns(source.partition, source.model, source.room)
        if end_ns > at_ns:
            at_ns = end_ns
    return at_ns


def moved_ends(
    changed: Iterable[PartitionState], now_ns: int, start: BatchStart | None = None, *, is_late_allowed: bool = False
) -> dict[PlannedBatch, int] | None:
    """The ends that differ from the plan, once partitions have changed or a batch starts; None if one is late by that.

    A batch that was late already may be so, but no later. O(batches on the partitions that change, and on those that
    wait for these).
    """
    moves = _Moves(changed, now_ns, is_late_allowed=is_late_allowed)
    whole: tuple[PlannedBatch, ...] = ()
    if start is not None:
        whole = start.whole
        moves.waiting[start.partition] = None
        for batch in whole:
            end_ns = start.back_ns - return_ns(batch.partition, batch.model, batch.room)
            if end_ns > batch.end_ns and not moves.move(batch, end_ns):
                return None
    while moves.waiting:
        partition, _ = moves.waiting.popitem()
        at_ns = partition.start_ns(now_ns) if start is None or start.partition is not partition else start.free_ns
        for batch in partition.planned:
            if batch not in whole:
                at_ns = max(at_ns, rows_ready_ns(batch, moves.ends_ns)) + passed_ns(partition, batch.length_ns)
                if not moves.move(batch, at_ns):
                    return moves.ends_ns if is_late_allowed else None
    return moves.ends_ns


class _Moves:
    """The ends of batches that differ from the plan, and the partitions that are `waiting` to be looked at by that."""

    __slots__ = ("_is_late_allowed", "_left", "_now_ns", "ends_ns", "waiting")

    def __init__(self, changed: Iterable[PartitionState], now_ns: int, *, is_late_allowed: bool) -> None:
        self.ends_ns: dict[PlannedBatch, int] = {}
        self.waiting = dict.fromkeys(changed)
        self._now_ns = now_ns
        self._is_late_allowed = is_late_allowed
        self._left = MOST_MOVED

    def move(self, batch: PlannedBatch, end_ns: int) -> bool:
        """Move the end of a batch; False if it is late by that, or if too many have moved."""
        before_ns = self.ends_ns.get(batch, batch.end_ns)
        if end_ns == before_ns:
            return True
        self._left -= 1
        if not self._left:
            return False
        if not self._is_late_allowed and end_ns > batch.latest_ns > self._now_ns and end_ns > batch.end_ns:
            return False
        self.ends_ns[batch] = end_ns
        if end_ns > before_ns and batch.links is not None:
            for later in batch.links.before:
                self.waiting[later.partition] = None
        return True


def plan(ends_ns: Mapping[PlannedBatch, int]) -> None:
    """Make ends those of the plan."""
    for batch, end_ns in ends_ns.items():
        batch.end_ns = end_ns


def update(changed: Iterable[PartitionState], now_ns: int, start: BatchStart | None = None) -> None:
    """Bring the ends on partitions up to date that have changed, or on which a batch starts, in time or not."""
    ends_ns = moved_ends(changed, now_ns, start, is_late_allowed=True)
    if ends_ns:
        plan(ends_ns)


def spot_of_new(
    partition: PartitionState,
    order_ns: int,
    ready_at_ns: int,
    length_ns: int,
    now_ns: int,
    overtaken: ModelState | None,
    *,
    may_overtake: bool,
) -> tuple[int, int]:
    """The end and the order of a new batch, by its order or, with `may_overtake`, in a gap before others.

    If one of that order would make another late, it comes into the first gap behind, or behind all. A gap is the time
    that a partition is idle until a batch is ready. O(planned batches).
    """
    planned, took_ns = partition.planned, passed_ns(partition, length_ns)
    at_ns = partition.start_ns(now_ns)
    is_passed = False
    for index, batch in enumerate(planned):
        begin_ns, end_ns = max(at_ns, rows_ready_ns(batch)), max(at_ns, ready_at_ns) + took_ns
        if not is_passed and batch.order_ns > order_ns:
            if end_ns <= begin_ns or _fits(partition, index, end_ns, now_ns, overtaken):
                return end_ns, order_ns
            is_passed = True
        if may_overtake and end_ns <= begin_ns and (not index or planned[index - 1].order_ns < batch.order_ns):
            return end_ns, batch.order_ns - 1
        at_ns = begin_ns + passed_ns(partition, batch.length_ns)
    last_ns = planned[-1].order_ns if planned else order_ns
    return max(at_ns, ready_at_ns) + took_ns, max(order_ns, last_ns)


def _fits(partition: PartitionState, behind: int, at_ns: int, now_ns: int, overtaken: ModelState | None) -> bool:
    """True if no batch from the one at `behind` on is made late by a partition that is free for it at `at_ns`."""
    for batch in partition.planned[behind:]:
        at_ns = max(at_ns, rows_ready_ns(batch)) + passed_ns(partition, batch.length_ns)
        if at_ns > batch.latest_ns > now_ns and batch.model is not overtaken:
            return False
    return True


def end_of_joined_ns(batch: PlannedBatch, added_ns: int, ready_at_ns: int, now_ns: int) -> int | None:
    """When a batch would end with rows that are ready at a time; None if one behind it is made late. O(planned)."""
    partition = batch.partition
    at_ns, end_ns = partition.start_ns(now_ns), None
    for each in partition.planned:
        length_ns, from_ns = each.length_ns, rows_ready_ns(each)
        if each is batch:
            length_ns, from_ns = length_ns + added_ns, max(from_ns, ready_at_ns)
        at_ns = max(at_ns, from_ns) + passed_ns(partition, length_ns)
        if each is batch:
            end_ns = at_ns
        elif end_ns is not None and at_ns > each.latest_ns > now_ns:
            return None
    return end_ns
