"""Runs planned batches in their turn, where some wait for batches of other partitions.

On such a partition the batch that is planned first runs as soon as all its rows are there. While it waits for some,
another one runs before it if nothing is made late by that (`sluice.batcher.places.timeline`).
"""

from itertools import islice
from typing import NamedTuple

from sluice.batcher.places.timeline import BatchStart, moved_ends
from sluice.batcher.queues.queue import Queue
from sluice.batcher.queues.queue_table import QueueTable
from sluice.batcher.state import Entry, ModelState, PartitionState, PlannedBatch

MOST_SEEN = 256
"""The first entries of a queue among which those of planned batches are found."""
TRIED = 4
"""The batches, first deadlines first, that are tried before their turn."""


class PlannedTurn(NamedTuple):
    """The entries of a planned batch that run now, and where."""

    partition: PartitionState
    entries: list[Entry]


def in_turn(
    queue: Queue, queues: QueueTable, model: ModelState, here: PartitionState, now_ns: int
) -> PlannedTurn | int | None:
    """The batch that a queue runs now on `here` or an equal, or the end of its wait (ns); None if the plan has neither.

    It has none for entries without places, nor once something is not there at its turn.
    """
    waiting = _by_batch(queue)
    if not waiting:
        return None
    complete = [(batch, entries) for batch, entries in waiting.items() if len(entries) == batch.members]
    for batch, entries in complete:
        host = batch.partition
        if host.planned[0] is batch and host.group is here.group and _is_open(host, now_ns):
            return PlannedTurn(host, entries)
    for batch, entries in islice(complete, TRIED):
        host = batch.partition if batch.partition.group is here.group and _is_open(batch.partition, now_ns) else here
        if _may_start(batch, entries, model, host, now_ns):
            return PlannedTurn(host, entries)
    batch, entries = next(iter(waiting.items()))
    until_ns = [_turn_ns(batch, now_ns, is_complete=len(entries) == batch.members)]
    if here.planned and here.planned[0] is not batch:
        first = here.planned[0]
        until_ns.append(_turn_ns(first, now_ns, is_complete=_is_complete(first, queues)))
    next_ns = min(until_ns)
    return next_ns if next_ns > now_ns else None


def _by_batch(queue: Queue) -> dict[PlannedBatch, list[Entry]]:
    """The waiting entries of a queue by their planned batches."""
    found: dict[PlannedBatch, list[Entry]] = {}
    for entry in islice(queue.following(0), MOST_SEEN):
        place = entry.place
        if place is not None:
            found.setdefault(place[0], []).append(entry)
    return found


def _may_start(batch: PlannedBatch, entries: list[Entry], model: ModelState, host: PartitionState, now_ns: int) -> bool:
    """True if a batch may start on a partition before its turn."""
    rows = sum([entry.rows for entry in entries])
    estimate = model.estimates[host.kind]
    if rows > estimate.max_rows:
        return False
    run_ns = estimate.expected_ns(rows)
    free_ns = host.start_ns(now_ns) + run_ns
    start = BatchStart(host, free_ns, (batch,), free_ns + host.way_ns(model, rows))
    return moved_ends((), now_ns, start) is not None


def _turn_ns(batch: PlannedBatch, now_ns: int, *, is_complete: bool) -> int:
    """When the turn of a batch is over, or until when rows that it lacks are waited for: a hand-off longer."""
    if not is_complete:
        return batch.begin_ns + batch.partition.hand_off_ns
    return batch.end_ns if batch.begin_ns <= now_ns else batch.begin_ns


def _is_complete(batch: PlannedBatch, queues: QueueTable) -> bool:
    """True if all entries of a planned batch wait."""
    queue = queues.find(batch.queue_key)
    if queue is None:
        return False
    there = sum([(place := entry.place) is not None and place[0] is batch for entry in queue.following(0)])
    return there == batch.members


def _is_open(partition: PartitionState, now_ns: int) -> bool:
    """True if a partition may be given a batch now."""
    if not partition.ready or partition.throttled or partition.overdue:
        return False
    return not partition.batches or partition.opening_ns <= now_ns
