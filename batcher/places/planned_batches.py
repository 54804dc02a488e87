"""Planned batches: what a partition is to run after its dispatched batches, in the order of deadlines.

All that writes `PlannedBatch` and the planned part of `PartitionState` is here. Times are the expected ones; what
is kept for batches that take longer is in `latest_ns`, the latest expected end of a batch.
"""

from collections.abc import Sequence
from math import ceil, hypot, sqrt
from typing import NamedTuple

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.fleet.member_table import note_change
from sluice.batcher.fleet.partition_group import planned_until_ns
from sluice.batcher.state import BatchLinks, ModelState, PartitionGroup, PartitionState, PlannedBatch, QueueKey
from sluice.models.units import INFINITE_NS

DEVIATIONS = 2.33
"""Standard deviations that 99 of 100 normal variables do not exceed."""
SPREAD = 1.2
"""Standard deviations of a batch's rows for which time is kept: what comes beyond can wait for another batch."""


class Before(NamedTuple):
    """A batch before a member joined it."""

    room: float
    variance: float
    most: float
    from_ns: int
    limit_ns: int
    ready_ns: int
    latest_ns: int


def length_ns(estimate: LatencyEstimate, rows: float) -> int:
    """The expected time of a batch; less than a row, which may not come to run, takes its share of the time of one.

    More rows than a batch holds take as long as several batches.
    """
    if rows < 1:
        return int(estimate.expected_ns(1) * rows)
    whole, most = ceil(rows), estimate.sizes[-1]
    if whole <= most:
        longest_ns = estimate.expected_ns(whole)
        if whole == rows:
            return longest_ns
        return longest_ns - int((whole - rows) * (longest_ns - estimate.expected_ns(whole - 1)))
    batches, rest = divmod(whole, most)
    return batches * estimate.expected_ns(most) + (estimate.expected_ns(rest) if rest else 0)


def length_on_ns(host: PartitionState | PartitionGroup, model: ModelState, rows: float) -> int:
    """The time that a batch is expected to take of a partition, which its way to another node may bound."""
    run_ns = length_ns(model.estimates[host.kind], rows)
    if host.link.distance:
        return host.occupied_ns(model, rows, run_ns)
    return run_ns


def batch_ns(batch: PlannedBatch, rows: float) -> int:
    """The expected time of a planned batch with that many rows.

    Rows that will run with those of the next batch take what they add to full batches.
    """
    if batch.merges:
        return int(rows * length_on_ns(batch.partition, batch.model, batch.full_rows) / batch.full_rows)
    return length_on_ns(batch.partition, batch.model, rows)


def return_ns(partition: PartitionState, model: ModelState, rows: float) -> int:
    """By how much later a batch is complete than it occupies its partition; 0 on the gateway's own machine."""
    if not partition.link.distance:
        return 0
    return partition.return_ns(model, rows, length_ns(model.estimates[partition.kind], rows))


def tail_ns(
    estimate: LatencyEstimate, rows: float, variance: float, most_rows: float, caution: float, depth: float
) -> int:
    """By how much a batch may end later than expected: those before it and it may be slow, and it may have more rows.

    All of these vary independently. `depth` is how many times as much the end varies as the time of the batch itself.
    """
    slow = depth * slow_ns(estimate, rows, caution)
    return int(hypot(slow, spread_ns(estimate, rows, variance, most_rows))) if variance else int(slow)


def slow_ns(estimate: LatencyEstimate, rows: float, caution: float) -> float:
    """By how much a batch may take longer than expected."""
    most = min(ceil(rows), estimate.sizes[-1]) or 1
    return caution * (estimate.service_ns(most) - estimate.expected_ns(most))


def spread_ns(estimate: LatencyEstimate, rows: float, variance: float, most_rows: float) -> int:
    """By how much a batch may take longer than expected since more rows may come to run."""
    most = min(rows + SPREAD * sqrt(variance), most_rows)
    return max(length_ns(estimate, max(most, 1)) - length_ns(estimate, rows), 0)


def end_of_new_ns(
    partition: PartitionState,
    order_ns: int,
    added_ns: int,
    now_ns: int,
    overtaken: ModelState | None = None,
) -> int | None:
    """When a new batch of that order would end; None if a batch behind it would be late. O(batches behind).

    Batches of the model `overtaken` may become late, since its policy lets the new one go first.
    """
    end_ns = planned_until_ns(partition, now_ns) + passed_ns(partition, added_ns)
    for behind in reversed(partition.planned):
        if behind.order_ns <= order_ns:
            break
        if end_ns > behind.latest_ns > now_ns and behind.model is not overtaken:
            return None
        end_ns -= passed_ns(partition, behind.length_ns)
    return end_ns


def passed_ns(partition: PartitionState, ns: int) -> int:
    """The part of `planned_until_ns` that one batch of a length has."""
    if partition.slowdown == 1.0 and not partition.between_ns:
        return ns
    return int((ns + partition.between_ns) * partition.slowdown)


def end_of_grown_ns(batch: PlannedBatch, added_ns: int, now_ns: int) -> int | None:
    """When a batch would end if it took longer; None if a batch behind it would be late. O(batches behind)."""
    end_ns = planned_until_ns(batch.partition, now_ns) + added_ns
    for behind in reversed(batch.partition.planned):
        if behind is batch:
            break
        if end_ns > behind.latest_ns > now_ns:
            return None
        end_ns -= passed_ns(batch.partition, behind.length_ns)
    return end_ns


def run_together(partition: PartitionState, queue_key: QueueKey, now_ns: int) -> list[PlannedBatch]:
    """The batches of a queue that a partition is to run as one: those that merge or are late, and the first other."""
    together: list[PlannedBatch] = []
    rows = 0.0
    for batch in partition.planned:
        if batch.queue_key == queue_key:
            together.append(batch)
            rows += batch.rows
            if rows >= batch.full_rows or not (batch.merges or batch.latest_ns <= now_ns):
                break
    return together


def slack_ns(
    partition: PartitionState, queue_key: QueueKey, without: Sequence[PlannedBatch], now_ns: int
) -> tuple[int, int]:
    """By how much planned batches may come later, so that none becomes late: all, and those of other queues.

    The batches in `without` do not count.
    """
    end_ns = planned_until_ns(partition, now_ns)
    least_ns = least_of_others_ns = INFINITE_NS
    for behind in reversed(partition.planned):
        if behind not in without and behind.latest_ns > now_ns:
            left_ns = behind.latest_ns - end_ns
            least_ns = min(least_ns, left_ns)
            if behind.queue_key != queue_key:
                least_of_others_ns = min(least_of_others_ns, left_ns)
        end_ns -= passed_ns(partition, behind.length_ns)
    return least_ns, least_of_others_ns


def insert(batch: PlannedBatch) -> None:
    """Plan an empty batch for its partition."""
    batch.partition.last_serial += 1
    batch.serial = batch.partition.last_serial
    planned = batch.partition.planned
    index = len(planned)
    while index and planned[index - 1].order_ns > batch.order_ns:
        index -= 1
    planned.insert(index, batch)
    if batch.links is not None:
        batch.partition.linked += 1
    note_change(batch.partition)


def link(source: PlannedBatch, later: PlannedBatch, count: int = 1) -> None:
    """Record that stages of `count` more requests (less, if negative) in a batch wait for a source's end."""
    before, after = _links(source).before, _links(later).after
    before[later] = after[source] = before.get(later, 0) + count
    if not before[later]:
        del before[later], after[source]


def feed(batch: PlannedBatch, at_ns: int) -> None:
    """Record that a batch waits for something that has started, and ends at `at_ns`."""
    links = _links(batch)
    if at_ns > links.fed_ns:
        links.fed_ns = at_ns


def _links(batch: PlannedBatch) -> BatchLinks:
    if batch.links is None:
        batch.links = BatchLinks()
        batch.partition.linked += 1
    return batch.links


def join(
    batch: PlannedBatch,
    rows: float,
    share: float,
    from_ns: int,
    limit_ns: int,
    ready_ns: int,
    known: tuple[int, int] | None = None,
) -> None:
    """Add the rows of a stage that is ready at `ready_ns` and has to end by `limit_ns`; `share` of them come to run.

    `from_ns` is the deadline of the stage, of which `limit_ns` keeps a part. `known` are the time that the batch then
    takes, and what is kept before `limit_ns`, where they have been estimated.
    """
    batch.rows += rows
    batch.variance += rows * (1 - share)
    batch.most += rows / share
    batch.members += 1
    if from_ns < batch.from_ns:
        batch.from_ns = from_ns
    if limit_ns < batch.limit_ns:
        batch.limit_ns = limit_ns
    if ready_ns > batch.ready_ns:
        batch.ready_ns = ready_ns
    if batch.rows > batch.room:
        batch.room = batch.rows
    if known is None:
        estimate = batch.model.estimates[batch.partition.kind]
        known = batch_ns(batch, batch.room) + batch.gap_ns, _tail_of(batch, estimate, batch.room)
    took_ns, tail_ns = known
    batch.latest_ns = batch.limit_ns - tail_ns
    _take(batch, took_ns)


def grow(batch: PlannedBatch, rows: int, from_ns: int, limit_ns: int, took_ns: int, tail_ns: int, depth: float) -> None:
    """As `join`, for rows that are all certain to run, where it is known what the batch then takes and its tail."""
    grown = batch.rows + rows
    batch.depth = depth
    batch.rows = grown
    batch.most += rows
    batch.members += 1
    if from_ns < batch.from_ns:
        batch.from_ns = from_ns
    if limit_ns < batch.limit_ns:
        batch.limit_ns = limit_ns
    if grown > batch.room:
        batch.room = grown
    batch.latest_ns = batch.limit_ns - tail_ns
    if took_ns != batch.length_ns:
        _take(batch, took_ns)


def keep_room(batch: PlannedBatch, rows: float, left_ns: int, now_ns: int) -> None:
    """Keep time for as many as `rows` rows, as far as everything stays in time and `left_ns` is left to others."""
    estimate = batch.model.estimates[batch.partition.kind]
    rows = min(rows, batch.model.full_rows(estimate))
    while rows > batch.room:
        took_ns = batch_ns(batch, rows) + batch.gap_ns
        end_ns = end_of_grown_ns(batch, took_ns - batch.length_ns, now_ns)
        latest_ns = batch.limit_ns - _tail_of(batch, estimate, rows)
        if end_ns is not None and max(end_ns, batch.ready_ns + took_ns) <= latest_ns - left_ns:
            batch.room, batch.latest_ns = rows, latest_ns
            _take(batch, took_ns)
            return
        rows -= 1


def close(batch: PlannedBatch) -> None:
    """Keep no time for rows that could still join a batch."""
    if batch.room > batch.rows:
        batch.room = batch.rows
        measure(batch)


def merge(batch: PlannedBatch) -> None:
    """Let what is left of a batch run with the next one of its queue on its partition, if there is one."""
    planned = batch.partition.planned
    behind = planned[planned.index(batch) + 1 :]
    if not batch.merges and any(each.queue_key == batch.queue_key for each in behind):
        batch.merges = True
        measure(batch)


def leave(batch: PlannedBatch, rows: float, members: int = 1) -> None:
    """Remove the rows of stages that start, or do not run; the last one takes the batch with it."""
    batch.members -= members
    if not batch.members:
        batch.rows = 0.0
        _remove(batch)
        return
    batch.variance *= max(1 - rows / batch.rows, 0.0)
    batch.most *= 1 - rows / batch.rows
    batch.rows -= rows
    batch.room = max(batch.rows, batch.room - rows)
    measure(batch)


def change_rows(batch: PlannedBatch, added: float) -> None:
    """Record that the rows of a member are known, which are `added` more than expected."""
    batch.variance *= 1 - 1 / batch.members
    batch.rows += added
    batch.room = max(batch.rows, batch.room)
    measure(batch)


def undo(batch: PlannedBatch, rows: float, before: Before) -> None:
    """Remove the last member of a batch, which is as it was before that joined."""
    leave(batch, rows)
    batch.room, batch.variance, batch.most = before.room, before.variance, before.most
    batch.from_ns, batch.ready_ns = before.from_ns, before.ready_ns
    batch.limit_ns, batch.latest_ns = before.limit_ns, before.latest_ns
    if batch.members:
        measure(batch)


def forget_limit(batch: PlannedBatch) -> None:
    """Let those that join a batch set its limit: it is late in any case."""
    batch.limit_ns = batch.latest_ns = INFINITE_NS


def tighten(batch: PlannedBatch, latest_ns: int) -> None:
    """Let a batch end by `latest_ns`, if it may end later."""
    if latest_ns < batch.latest_ns:
        batch.limit_ns -= batch.latest_ns - latest_ns
        batch.latest_ns = latest_ns


def move(batch: PlannedBatch, partition: PartitionState) -> None:
    """Plan a batch for another partition."""
    length = batch.length_ns
    _remove(batch)
    batch.partition = partition
    insert(batch)
    estimate = batch.model.estimates.get(partition.kind)
    if estimate is None:
        _take(batch, length)
    else:
        batch.latest_ns = batch.limit_ns - _tail_of(batch, estimate, batch.room)
        _take(batch, batch_ns(batch, batch.room) + batch.gap_ns)


def _remove(batch: PlannedBatch) -> None:
    """Remove a batch from its partition; one of its queue that was to run with it runs alone if none is left behind."""
    planned = batch.partition.planned
    _take(batch, 0)
    index = planned.index(batch)
    del planned[index]
    if batch.links is not None:
        batch.partition.linked -= 1
    note_change(batch.partition)
    if any(each.queue_key == batch.queue_key for each in planned[index:]):
        return
    for before in reversed(planned[:index]):
        if before.queue_key == batch.queue_key:
            if before.merges:
                before.merges = False
                measure(before)
            return


def _tail_of(batch: PlannedBatch, estimate: LatencyEstimate, rows: float) -> int:
    """The time that is kept before the limit of a batch: it may take longer, and there is its way back."""
    tail = tail_ns(estimate, rows, batch.variance, max(batch.most, rows), batch.caution, batch.depth)
    return tail + return_ns(batch.partition, batch.model, rows)


def measure(batch: PlannedBatch) -> None:
    """Estimate the time of a batch again."""
    estimate = batch.model.estimates.get(batch.partition.kind)
    if estimate is not None:
        _take(batch, batch_ns(batch, batch.room) + batch.gap_ns)


def measure_depth(batch: PlannedBatch) -> None:
    """Record how many batches are planned before one, of which some have run since it was opened. O(batches behind)."""
    planned = batch.partition.planned
    before = len(planned)
    for behind in reversed(planned):
        before -= 1
        if behind is batch:
            break
    batch.depth = sqrt(1 + before)


def _take(batch: PlannedBatch, ns: int) -> None:
    batch.partition.planned_ns += ns - batch.length_ns
    batch.length_ns = ns
    note_change(batch.partition)
