"""Stragglers: what a batch that takes far too long holds runs elsewhere as well, and the first answer counts.

Backup tasks for stragglers are from MapReduce (OSDI '04, section 3.6). Here the deadline of a request decides whether
its rows run twice.
"""

from __future__ import annotations

from sluice.batcher.dispatch.copies import copied, goes_on, is_superseded, mark_copied
from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.state import Batch, Entry, ModelState, PartitionState
from sluice.models.units import NS_PER_MS

OVERDUE = 3
"""A batch is overdue only once it takes this many times as long as 99 of 100 are predicted to take."""
LEAST_NS = 20 * NS_PER_MS
"""A batch is not overdue before this time: the kernel may hold up a healthy worker for milliseconds."""
PATIENCE_NS = 100 * NS_PER_MS
"""A batch that is as slow as `OVERDUE` has this time, or until one of its requests would be late elsewhere."""
LOOKED_AT = 128
"""The most partitions that are looked at together: of a larger fleet, each part has its turn within `LEAST_NS`."""
SPARE = 2
"""Times of a batch that are kept for a run elsewhere: its own, and that of the batch that runs there."""


class Stragglers:
    """Finds overdue batches, and copies their entries.

    A partition is overdue while its running batch is. It is so only if another one can run the model of that batch: of
    the partitions that hold a model, one is always left that is not overdue.

    There is no timer for each batch: while batches run, partitions are looked at together at `next_ns`, all of them
    within `LEAST_NS`. While nothing runs, it is None. Then `is_idle` says that `watch` is to be called for the next
    batch that could run elsewhere; it is never so for a single partition.

    With a `factor` a batch is overdue once it takes that many times its median, whatever its deadlines are.
    """

    __slots__ = ("_factor", "_fleet", "_parts", "_since_ns", "_turn", "is_idle", "next_ns")

    def __init__(self, fleet: Fleet, factor: float) -> None:
        self._fleet = fleet
        self._factor = factor
        self._since_ns = 0
        partitions = list(fleet.partitions.values())
        self._parts = [partitions[first : first + LOOKED_AT] for first in range(0, len(partitions), LOOKED_AT)]
        self._turn = 0
        self.is_idle = len(fleet.partitions) > 1
        self.next_ns: int | None = None

    def watch(self, now_ns: int) -> int:
        """Begin to look, since a batch runs; returns when to look next."""
        self.is_idle = False
        self.next_ns = now_ns + LEAST_NS
        return self.next_ns

    def find(self, now_ns: int) -> list[PartitionState]:
        """The overdue ones of the partitions whose turn it is; O(`LOOKED_AT`), and O(those of its model) for each."""
        if self.next_ns is None or now_ns < self.next_ns:
            return []
        if now_ns - self.next_ns >= PATIENCE_NS:
            self._since_ns = now_ns  # the driver stood still, and perhaps the workers with it
        next_ns = now_ns + LEAST_NS // len(self._parts)
        part = self._parts[self._turn]
        self._turn = (self._turn + 1) % len(self._parts)
        found = []
        for partition in part:
            if not partition.batches:
                continue
            at_ns = self._overdue_ns(partition, now_ns)
            if at_ns > now_ns:
                if len(self._parts) == 1:
                    next_ns = min(next_ns, at_ns)
            elif partition.overdue or self._hosts(partition.batches[0], partition):
                partition.overdue = True
                found.append(partition)
        self.is_idle = not any(partition.batches for partition in self._fleet.partitions.values())
        self.next_ns = None if self.is_idle else next_ns
        return found

    def trust(self, partition: PartitionState) -> None:
        """Record that the running batch of a partition has ended."""
        partition.overdue = False

    def copies(self, batch: Batch, now_ns: int) -> list[Entry]:
        """Copies of the entries of a batch on an overdue partition, of those that are expected in time elsewhere.

        An entry with a copy that waits, or runs on a partition that is not overdue, has no other one. Nor has an entry
        whose worker was lost while it ran: if it is the cause, it would take the next worker along.
        """
        mark_copied(batch)
        entries = [
            entry
            for entry in batch.entries
            if not entry.request.settled and not is_superseded(entry) and not entry.lost_once and not goes_on(entry)
        ]
        hosts = self._hosts(batch, batch.partition)
        if not entries or not hosts:
            return []
        rows = sum([entry.rows for entry in entries])
        estimates = self._model(batch).estimates
        model = self._model(batch)
        done_ns = min(
            host.start_ns(now_ns) + host.hand_off_ns + host.way_ns(model, rows) + estimates[host.kind].expected_ns(rows)
            for host in hosts
        )
        return [copied(entry, now_ns) for entry in entries if done_ns <= entry.stage_deadline_ns]

    def _model(self, batch: Batch) -> ModelState:
        return self._fleet.models[batch.queue_key[0]]

    def _overdue_ns(self, partition: PartitionState, now_ns: int) -> int:
        """When the running batch of a partition is overdue; it may be an earlier time that has not come yet."""
        batch = partition.batches[0]
        estimate = self._model(batch).estimates.get(batch.kind)
        away_ns = 0 if partition.node is None else batch.way_ns + partition.hand_off_ns
        usual_ns = away_ns + (batch.expected_ns if estimate is None else estimate.service_ns(batch.rows))
        started_ns = max(batch.dispatched_ns, partition.idle_since_ns, self._since_ns)
        if self._factor:
            median_ns = away_ns + (batch.expected_ns if estimate is None else estimate.expected_ns(batch.rows))
            return started_ns + max(int(self._factor * median_ns), LEAST_NS)
        soonest_ns = started_ns + max(OVERDUE * usual_ns, LEAST_NS)
        if now_ns < soonest_ns:
            return soonest_ns
        kept_ns = partition.hand_off_ns + SPARE * usual_ns
        latest_ns = [entry.stage_deadline_ns - kept_ns for entry in batch.entries if not entry.request.settled]
        return min([max(soonest_ns, started_ns + PATIENCE_NS), *(each for each in latest_ns if each >= soonest_ns)])

    def _hosts(self, batch: Batch, partition: PartitionState) -> list[PartitionState]:
        """The partitions other than `partition` that can run a batch and are not overdue.

        None for a decoupled model: its batches take as long as their requests need, and send responses that must not be
        sent twice. None for sequences, whose states no other worker has.
        """
        config = self._model(batch).config
        if config.decoupled or config.sequences is not None:
            return []
        only = self._fleet.queues.only(batch.queue_key)
        return [
            host
            for group in self._model(batch).groups
            if only in (None, (group.kind, group.price))
            for host in group.partitions.values()
            if host is not partition and host.ready and not host.overdue
        ]
