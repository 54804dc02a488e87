"""Second batches: what waits behind a worker's running batch stays revocable until it begins.

A worker is given its second batch just before the first one should end. If that takes longer, the second batch is
bound to the wrong partition, or keeps what is more urgent waiting. Commitment as late as possible is from Llama (SoCC
2021, section 4.3); there, too, work that a backend has not begun may go to another one.
"""

from __future__ import annotations

from collections.abc import Collection

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.fleet.member_table import first_free, is_idle
from sluice.batcher.fleet.partition_group import first_available, first_idle
from sluice.batcher.state import IN_FLIGHT, Batch, Entry, ModelState, PartitionState

LOOKED_AT = 64
"""The most second batches that are looked at together: those that wait the longest."""
WAYS = 2
"""Hand-offs that a revocation takes: the order, and its answer."""


class SecondBatches:
    """Says which second batches to revoke; `moved` and `overtaken` count them.

    A batch is moved to an idle partition once the batch before it takes longer than 99 of 100 of its size, by as much
    as the move costs: what is late by some time is likely to be late by as much again. A move to a dearer partition has
    to save one of its requests from being late. A batch is overtaken if a stage with an earlier deadline that is
    planned for its partition would be late behind it, would be in time before it, and leaves the batch itself in time.

    Nothing is revoked twice, so that batches do not wander: what has been is bound to the partition that it gets next.
    While no partition is idle, there is no timer. Batches of sequences stay where their states are, those with an
    instance policy where that has them run, and what runs again or competes where it was sent.

    `next_ns` is when to look next; None until something changes.
    """

    __slots__ = ("_behind", "_fleet", "_pressing", "moved", "next_ns", "overtaken")

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._behind: dict[Batch, int] = {}
        self._pressing: list[Entry] = []
        self.next_ns: int | None = None
        self.moved = self.overtaken = 0

    def queued(self, batch: Batch) -> None:
        """Record a batch that waits behind the running one of its partition."""
        model, partition = self._model(batch), batch.partition
        if not model.by_deadline or model.config.sequences is not None or partition.slowdown != 1.0:
            return
        if any(entry.was_revoked or entry.copies is not None for entry in batch.entries):
            return
        first = partition.batches[0]
        estimate = self._model(first).estimates.get(first.kind)
        tail_ns = 0 if estimate is None else estimate.service_ns(first.rows) - first.expected_ns
        ends_ns = partition.free_at_ns - batch.expected_ns
        late_ns = self._behind[batch] = ends_ns + max(tail_ns, 0) + first.way_ns + WAYS * partition.hand_off_ns
        if any(first_idle(group) is not None for group in model.groups):
            self._look_at(late_ns)

    def left(self, batch: Batch) -> None:
        """Record that a batch has begun, or ended."""
        self._behind.pop(batch, None)

    @property
    def waiting(self) -> Collection[Batch]:
        """The batches that may be revoked."""
        return self._behind.keys()

    def idle(self, now_ns: int) -> bool:
        """Record that a partition has nothing to run; True if `due` is to be asked."""
        if self._behind:
            self._look_at(now_ns)
        return bool(self._behind)

    def came(self, entry: Entry, now_ns: int) -> bool:
        """Take note of an entry that is the first of its queue; True if it may overtake a batch (ask `due`).

        O(1).
        """
        if not self._behind or (place := entry.place) is None:
            return False
        partition = place[0].partition
        if len(partition.batches) < IN_FLIGHT or (batch := partition.batches[1]) not in self._behind:
            return False
        free_ns = max(partition.free_at_ns, now_ns + batch.expected_ns)
        if free_ns + place[0].length_ns + partition.hand_off_ns <= entry.stage_deadline_ns:
            return False
        self._pressing.append(entry)
        self._look_at(now_ns)
        return True

    def due(self, now_ns: int) -> list[Batch]:
        """The batches to revoke now."""
        if self.next_ns is None or now_ns < self.next_ns:
            return []
        self.next_ns = None
        found = [batch for entry in self._pressing if (batch := self._overtaken_by(entry, now_ns)) is not None]
        self._pressing.clear()
        self.overtaken += len(found)
        for batch in found:
            self._behind.pop(batch, None)
        taken: list[PartitionState] = []
        for batch, late_ns in list(self._behind.items())[:LOOKED_AT]:
            if late_ns > now_ns:
                if any(first_idle(group) is not None for group in self._model(batch).groups):
                    self._look_at(late_ns)
                continue
            host = self._better_host(batch, now_ns) if _is_usual(batch.partition) else None
            if host is not None and host not in taken:  # one batch for each idle partition
                taken.append(host)
                found.append(batch)
                self.moved += 1
                del self._behind[batch]
        return found

    def _look_at(self, at_ns: int) -> None:
        if self.next_ns is None or at_ns < self.next_ns:
            self.next_ns = at_ns

    def _better_host(self, batch: Batch, now_ns: int) -> PartitionState | None:
        """The idle partition on which a batch is expected to end the soonest, if that is worth a move.

        If it is not yet, it is looked at again when it would be.
        """
        model, here = self._model(batch), batch.partition
        only = self._fleet.queues.only(batch.queue_key)
        known = model.estimates.get(here.kind)  # none if its worker has another size since, without the model
        stays_ns = batch.expected_ns if known is None else known.expected_ns(batch.rows)
        is_late_ns = here.free_at_ns - batch.expected_ns  # when the batch before it should have ended
        due_ns = min([entry.stage_deadline_ns for entry in batch.entries if not entry.request.settled], default=0)
        best: tuple[int, float, int, PartitionState] | None = None
        for group in model.groups:
            estimate = model.estimates[group.kind]
            if batch.rows > estimate.max_rows or only not in (None, (group.kind, group.price)):
                continue
            host = first_free(group, now_ns, is_idle)
            if host is None or host.closed:
                continue
            took_ns = estimate.expected_ns(batch.rows)
            move_ns = WAYS * here.hand_off_ns + here.round_trip_ns + host.hand_off_ns + host.way_ns(model, batch.rows)
            worth_ns = is_late_ns + move_ns + max(took_ns - stays_ns, 0)
            if worth_ns > now_ns:
                self._look_at(worth_ns)
                continue
            is_dearer = host.price * took_ns > here.price * stays_ns
            until_ns = 2 * now_ns - is_late_ns + stays_ns
            if is_dearer and not now_ns + move_ns + took_ns <= due_ns < until_ns:
                continue
            if best is None or (took_ns + move_ns, host.price, host.number) < best[:3]:
                best = took_ns + move_ns, host.price, host.number, host
        return None if best is None else best[3]

    def _overtaken_by(self, entry: Entry, now_ns: int) -> Batch | None:
        """The batch on whose partition an entry is planned, if the entry should run before it."""
        place = entry.place
        if not entry.queued or place is None:
            return None
        here, model = place[0].partition, self._fleet.models[entry.queue_key[0]]
        if len(here.batches) < IN_FLIGHT or not _is_usual(here) or (batch := here.batches[1]) not in self._behind:
            return None
        if any(first_available(group, now_ns) is not None for group in model.groups):
            return None
        begins_ns = max(here.free_at_ns - batch.expected_ns, now_ns)
        if begins_ns < now_ns + WAYS * here.hand_off_ns + here.round_trip_ns and begins_ns > now_ns:
            return None  # it will have begun before it could be revoked
        rows = place[0].rows if place[0].rows > entry.rows else entry.rows
        took_ns = model.estimates[here.kind].expected_ns(min(int(rows), model.estimates[here.kind].max_rows))
        away_ns = here.hand_off_ns + here.way_ns(model, rows)
        before_ns = begins_ns + took_ns + away_ns
        if before_ns > entry.stage_deadline_ns or before_ns + batch.expected_ns <= entry.stage_deadline_ns:
            return None
        alive = [each.stage_deadline_ns for each in batch.entries if not each.request.settled]
        if not alive or min(alive) < max(before_ns + batch.expected_ns, entry.stage_deadline_ns + 1):
            return None
        return batch

    def _model(self, batch: Batch) -> ModelState:
        return self._fleet.models[batch.queue_key[0]]


def _is_usual(partition: PartitionState) -> bool:
    return partition.ready and not partition.overdue and not partition.throttled
