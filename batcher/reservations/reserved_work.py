"""Stages with a reserved time slot wait here, outside the queues, until the slot starts.

Keeps the reservations in step with the fleet. Batches of queues use the time that reservations leave: they run only
where they are over by `due_ns`.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.fleet.partition_group import start_after_backlog_ns, start_ns
from sluice.batcher.fleet.speed import HAND_OFF_WEIGHT, MAX_HAND_OFF_NS
from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.queues.fair_queue import Queue
from sluice.batcher.queues.flow import leave_slot, wait_for_slot
from sluice.batcher.queues.progress import request_batch_key
from sluice.batcher.reservations.reservations import Reservations
from sluice.batcher.reservations.search import ReservationRefusal
from sluice.batcher.reservations.timeline import Part, Slot
from sluice.batcher.state import (
    Batch,
    Entry,
    ModelState,
    PartitionGroup,
    PartitionState,
    PipelineState,
    QueueKey,
)
from sluice.models.units import INFINITE_NS

DRIFT = 0.05
"""Relative change of an estimate that changes the lengths of slots; a steady machine varies by less."""
WAY_DRIFT = 1.5
"""The same as a factor for the hand-off time, which varies more."""
OUTLIER = 8
"""A hand-off counts as at most this many times the usual one, since a machine may stall once."""

Chosen = tuple[PartitionState, Queue, list[Entry], ReleaseReason]
"""A batch to close: (partition, queue, entries, release reason)."""


class ReservedWork:
    """Entries with a reserved slot, by (request, stage) in `waiting`, and the `timelines` that hold the slots.

    Nothing is reserved until `begin`, which makes it `active`; before that all calls do nothing. `release` queues an
    entry that has lost its slot. A slot is missed only one hand-off after its start: its length includes that time,
    since drivers may wake up late and hand-offs may take longer.
    """

    def __init__(self, fleet: Fleet, release: Callable[[Entry, int], None]) -> None:
        self.active = False
        self._hand_off_ns = self._least_ns = fleet.hand_off_ns
        self._seen_ns: float = self._hand_off_ns
        self._fleet = fleet
        self._wakeups = fleet.wakeups
        self._release = release
        self._reservations = Reservations(())
        self._services: dict[tuple[str, str], list[int]] = {}
        self.timelines = self._reservations.timelines
        self.waiting: dict[Part, Entry] = {}

    def begin(self, partitions: Sequence[PartitionConfig], now_ns: int) -> None:
        """Reserve slots from now on, on these partitions; running batches occupy their time."""
        self._reservations = Reservations(partitions)
        self.timelines = self._reservations.timelines
        self.active = True
        self.learn(model for model in self._fleet.models.values() if model.estimates)
        self.sync(now_ns)
        for partition in self._fleet.partitions.values():
            if partition.batches:
                self.ended(partition.batches[0], now_ns, was_running=True)

    # -- requests

    def reserve(self, event: RequestArrived, pipeline: PipelineState, now_ns: int) -> ReservationRefusal | None:
        """Reserve a slot for every stage of a request, by its deadline and cost."""
        for partition in self._fleet.partitions.values():
            self._expire(partition, now_ns)
        refusal = self._reservations.reserve(
            event.request,
            pipeline.precedence,
            _queues(event, pipeline),
            event.rows,
            event.deadline_ns,
            now_ns,
            event.max_cost,
        )
        if refusal is None:
            self._wake_in_time(now_ns)
        return refusal

    def slot(self, request: int, stage: int) -> Slot | None:
        """The slot of a stage, while it has one."""
        return self._reservations.slot(request, stage)

    def settled(self, request: int, stage: int) -> None:
        """Give up the slot of a stage that is over, or was skipped."""
        self._reservations.settled(request, stage)

    def forget(self, request: int) -> None:
        """Give up all slots of a request that has its outcome."""
        self._reservations.forget(request)

    # -- entries

    def park(self, entry: Entry, now_ns: int) -> None:
        """Hold an entry until its slot, or until it can run sooner in unreserved time."""
        self.waiting[entry.request.identity, entry.stage] = entry
        for group in self._fleet.models[entry.queue_key[0]].groups:
            self._wakeups.wake_when_open(group, now_ns)

    def drop(self, entry: Entry) -> bool:
        """Remove an entry; False if it does not wait here."""
        return self.waiting.pop((entry.request.identity, entry.stage), None) is not None

    def passed_ns(self, entry: Entry) -> int | None:
        """When an entry that waits here has missed its slot; None for any other entry."""
        if (entry.request.identity, entry.stage) not in self.waiting:
            return None
        slot = self._reservations.slot(entry.request.identity, entry.stage)
        assert slot is not None, "an entry that waits here has a slot"
        return slot.start_ns + self._hand_off_ns + 1

    def reopen(self, entries: Iterable[Entry], now_ns: int) -> list[Entry]:
        """Find other slots for entries whose batch never started; returns those for which there is none."""
        if not self.active:
            return list(entries)
        unplaced = []
        for entry in entries:
            if self._reservations.reopen(entry.request.identity, entry.stage, now_ns):
                wait_for_slot(entry)
                self.park(entry, now_ns)
            else:
                unplaced.append(entry)
        self._release_lapsed(now_ns)
        self._wake_in_time(now_ns)
        return unplaced

    def _expire(self, partition: PartitionState, now_ns: int) -> None:
        """Queue the entries that have missed their slots on a partition."""
        timeline = self.timelines[partition.name]
        if timeline.slots and timeline.slots[0].start_ns < max(now_ns, timeline.free_ns):
            for part in self._reservations.expire(partition.name, self.begin_ns(partition, now_ns)):
                if (entry := self.waiting.pop(part, None)) is not None:
                    self._release(entry, now_ns)

    def _release_lapsed(self, now_ns: int) -> None:
        for part, entry in list(self.waiting.items()):
            if self._reservations.slot(*part) is None:
                del self.waiting[part]
                self._release(entry, now_ns)

    # -- partitions

    def sync(self, now_ns: int) -> None:
        """Follow the fleet: record which partitions are up with which models, and replace the slots of lost ones."""
        if not self.active:
            return
        reservations = self._reservations
        for partition in self._fleet.partitions.values():
            timeline = self.timelines[partition.name]
            models = partition.models if partition.ready else frozenset[str]()
            if models == timeline.models:
                continue
            if not models:
                reservations.lost(partition.name, now_ns)
                continue
            self.learn(self._fleet.models[key] for key in sorted(models))
            free_ns = timeline.free_ns if partition.batches else now_ns
            reservations.ready(partition.name, models, now_ns)
            reservations.free(partition.name, free_ns)
            gone = [slot for slot in timeline.slots if slot.queue[0] not in models]
            members = [(slot, held, stage) for slot in gone for held, stage in slot.members]
            for slot, held, stage in members:
                if reservations.slot(held.request, stage) is slot:
                    reservations.reopen(held.request, stage, now_ns)
        for kind, key in [known for known in self._services if known[1] not in self._fleet.models]:
            del self._services[kind, key]
            reservations.unlearn(kind, key)
        self._release_lapsed(now_ns)
        self._wake_in_time(now_ns)

    def resized(self, partition: PartitionState, now_ns: int) -> None:
        """Find new slots for the reservations on a partition whose kind has changed; `sync` must follow."""
        if not self.active:
            return
        self.learn(self._fleet.models[key] for key in sorted(partition.models))
        self._reservations.resized(partition.name, partition.kind, partition.price, now_ns)

    def learn(self, models: Iterable[ModelState]) -> None:
        """Adopt the estimates of models where they have changed by `DRIFT`."""
        if not self.active:
            return
        for model in models:
            for kind, estimate in model.estimates.items():
                services_ns = [estimate.service_ns(rows) for rows in range(1, model.config.max_batch + 1)]
                known = self._services.get((kind, model.config.key), ())
                if not known or any(map(_moved, known, services_ns)):
                    self._services[kind, model.config.key] = services_ns
                    lengths_ns = [service_ns + self._hand_off_ns for service_ns in services_ns]
                    self._reservations.learn(kind, model.config.key, lengths_ns)

    def ended(self, batch: Batch, now_ns: int, *, was_running: bool) -> None:
        """Record the end of a batch; the partition's other batch starts now if this one `was_running`."""
        partition = batch.partition
        if was_running or not partition.batches:
            free_ns = now_ns + sum(self._length_ns(each) for each in partition.batches)
        else:
            free_ns = self.timelines[partition.name].free_ns - self._length_ns(batch)
        self._reservations.free(partition.name, free_ns)

    def observed(self, model: ModelState, kind: str, rows: int) -> None:
        """Record that an estimate was corrected by a batch of `rows` rows."""
        if _moved(self._services[kind, model.config.key][rows - 1], model.estimates[kind].service_ns(rows)):
            self.learn((model,))

    def handed_off(self, took_ns: int) -> None:
        """Learn the time that a batch took to its worker and back."""
        seen_ns = self._seen_ns + HAND_OFF_WEIGHT * (min(took_ns, OUTLIER * self._seen_ns) - self._seen_ns)
        self._see(min(seen_ns, MAX_HAND_OFF_NS))

    def forgive(self) -> None:
        """Let the observed hand-off time decay: while it causes refusals, it is not observed any more."""
        self._see(self._seen_ns / 2)

    def _see(self, seen_ns: float) -> None:
        self._seen_ns = max(seen_ns, self._least_ns)
        if not self._hand_off_ns <= WAY_DRIFT * self._seen_ns <= WAY_DRIFT**2 * self._hand_off_ns:
            self._hand_off_ns = round(self._seen_ns)
            for (kind, key), services_ns in self._services.items():
                self._reservations.learn(kind, key, [each_ns + self._hand_off_ns for each_ns in services_ns])

    def started(self, partition: PartitionState, model: str, entries: Iterable[Entry], rows: int, now_ns: int) -> None:
        """Record that a batch is dispatched to a partition."""
        begin_ns = max(self.timelines[partition.name].free_ns, now_ns)
        end_ns = begin_ns + self.timelines[partition.name].lengths[model][rows - 1]
        self._reservations.started(partition.name, [(each.request.identity, each.stage) for each in entries], end_ns)

    def _length_ns(self, batch: Batch) -> int:
        if (batch.kind, batch.queue_key[0]) not in self._services:
            # The batch was running when reservations began, and the kind of its partition has changed since.
            return batch.median_ns + self._hand_off_ns
        return self._reservations.length_ns(batch.kind, batch.queue_key[0], batch.rows)

    # -- dispatch

    def begin_ns(self, partition: PartitionState, now_ns: int) -> int:
        """When a batch that is dispatched now begins at the latest; up to a hand-off late, it begins with its slot."""
        timeline = self.timelines[partition.name]
        begin_ns = max(timeline.free_ns, now_ns)
        due_ns = timeline.due_ns()
        return due_ns if due_ns is not None and due_ns < begin_ns <= due_ns + self._hand_off_ns else begin_ns

    def form_in(self, group: PartitionGroup, ahead: bool, before_ns: int, now_ns: int) -> Iterator[tuple[Chosen, int]]:
        """The batches of reserved work to close on the partitions of a group; close each before taking the next.

        Each comes with the number of its rows that were parked here. Work whose slot has not started is included only
        if it must end before `before_ns`.
        """
        for partition in group.partitions.values():
            self._expire(partition, now_ns)
            while _is_open(partition, ahead, now_ns):
                chosen = self._choose(partition, before_ns, now_ns)
                if chosen is None:
                    break
                yield chosen

    def _choose(self, partition: PartitionState, before_ns: int, now_ns: int) -> tuple[Chosen, int] | None:
        begin_ns = self.begin_ns(partition, now_ns)
        run = self._reservations.runnable(partition.name, begin_ns, self._rows)
        if run is None:
            return None
        first = self.waiting[run.members[0]]
        model = self._fleet.models[first.queue_key[0]]
        timeline = self.timelines[partition.name]
        due_ns = timeline.due_ns()
        is_due = due_ns is not None and begin_ns >= due_ns
        waits = partition.throttled or first.stage_deadline_ns > before_ns
        if not is_due and (waits or model.config.policy.defers):
            return None
        queue = self._fleet.queues.get(first.queue_key)
        entries = [self.waiting.pop(part) for part in run.members]
        for entry in entries:
            leave_slot(entry)
        # Queued entries may join if they delay no reserved work, except entries of pipelines that evict.
        estimate = model.estimates[partition.kind]
        room = min(bisect_right(timeline.lengths[model.config.key], run.until_ns - begin_ns), estimate.max_rows)
        entries += _take(queue, room - run.rows, 0, soft=True, like=entries[0])
        reason = ReleaseReason.DEADLINE if is_due else ReleaseReason.IDLE
        rows = sum(entry.rows for entry in entries)
        if rows >= estimate.efficient_rows:
            reason = ReleaseReason.FULL
        return (partition, queue, entries, reason), run.rows

    def _rows(self, request: int, stage: int) -> int:
        entry = self.waiting.get((request, stage))
        return 0 if entry is None else entry.rows

    def is_promised(self, partition: str, model: str) -> bool:
        """True if a slot for a model is reserved on a partition."""
        return self.active and any(slot.queue[0] == model for slot in self.timelines[partition].slots)

    def soonest_ns(self, group: PartitionGroup, order_ns: int, now_ns: int) -> int:
        """When an entry of that order could start in a group, before later slots."""
        later_ns = sum([self.timelines[partition.name].after_ns(order_ns) for partition in group.partitions.values()])
        soonest_ns = start_after_backlog_ns(group, now_ns) - later_ns // (group.ready_count or len(group.partitions))
        return max(soonest_ns, start_ns(group, now_ns))

    def most_free(self, group: PartitionGroup, ahead: bool, now_ns: int) -> PartitionState | None:
        """Of the partitions of a group that are idle (`ahead`: about to be), the one whose first slot begins last."""
        best: PartitionState | None = None
        best_ns = -1
        for partition in group.partitions.values():
            if _is_open(partition, ahead, now_ns) and not partition.throttled:
                due_ns = self.timelines[partition.name].due_ns()
                room_ns = INFINITE_NS if due_ns is None else due_ns - now_ns
                if best is None or room_ns > best_ns:
                    best, best_ns = partition, room_ns
        return best

    def room(self, partition: PartitionState, model: ModelState, now_ns: int) -> int:
        """The rows of a model that a partition can run, from now on, before its first slot."""
        timeline = self.timelines[partition.name]
        due_ns = timeline.due_ns()
        if due_ns is None:
            return model.config.max_batch
        return bisect_right(timeline.lengths[model.config.key], due_ns - self.begin_ns(partition, now_ns))

    def take(
        self, queue: Queue, hosts: Iterable[PartitionState], rows: int, from_ns: int, now_ns: int
    ) -> tuple[PartitionState, Queue, list[Entry]] | None:
        """As `Queue.take`, on the first of `hosts` with time for an entry; the batch ends before its next slot."""
        model = self._fleet.models[queue.model]
        for host in hosts:
            room = self.room(host, model, now_ns)
            entries = (
                queue.take(rows, from_ns)
                if room == model.config.max_batch
                else _take(queue, min(rows, room), from_ns, soft=False)
            )
            if entries:
                return host, queue, entries
        return None

    def has_room(self, partition: PartitionState, queue: Queue, now_ns: int) -> bool:
        """True if the first retried batch of a queue would end before the first slot of a partition."""
        rows = sum(entry.rows for entry in queue.retries[0])
        return rows <= self.room(partition, self._fleet.models[queue.model], now_ns)

    def defer(self, queue: Queue, group: PartitionGroup, now_ns: int) -> None:
        """Defer a queue without time before the first slot of a group until that slot is due."""
        run_queue = self._wakeups.run_queues[group]
        run_queue.defer(queue, max(self.next_ns(group, now_ns) or 0, now_ns + 1))
        run_queue.wait_for_idle(queue, 0)

    def next_ns(self, group: PartitionGroup, now_ns: int) -> int | None:
        """When to reconsider a group for its reserved slots; None until the next event."""
        looks = []
        for partition in group.partitions.values():
            if partition.ready:
                due_ns = self.timelines[partition.name].due_ns()
                if due_ns is not None:
                    looks.append(due_ns if due_ns > now_ns else due_ns + self._hand_off_ns + 1)
                if self.waiting and len(partition.batches) == 1 and partition.opening_ns > now_ns:
                    looks.append(partition.opening_ns)
        return min(looks, default=None)

    def _wake_in_time(self, now_ns: int) -> None:
        """Reconsider each group when the first slots of its partitions begin, since slots may have moved."""
        for partition in self._fleet.partitions.values():
            due_ns = self.timelines[partition.name].due_ns()
            if due_ns is not None and partition.group is not None:
                self._wakeups.wake(partition.group, max(due_ns, now_ns))


def _queues(event: RequestArrived, pipeline: PipelineState) -> tuple[QueueKey | None, ...]:
    """The queue key of each stage; a unique key where the batch key is not known yet."""
    queues: list[QueueKey | None] = []
    for stage in pipeline.stages:
        if stage.model is None:
            queues.append(None)
        elif stage.config.source_keyed:
            queues.append((stage.model.config.key, f"#{event.request}"))
        else:
            queues.append((stage.model.config.key, request_batch_key(event, stage.config)))
    return tuple(queues)


def _take(queue: Queue, max_rows: int, from_ns: int, *, soft: bool, like: Entry | None = None) -> list[Entry]:
    """Remove the first entries, of at most `max_rows` rows; with `soft`, only entries that may be answered late.

    All of them may share a batch with each other and with `like`.
    """
    taken: list[Entry] = []
    rows = 0
    for entry in queue.companions(like):
        if rows + entry.rows > max_rows:
            break
        if (entry.late or entry.stage_deadline_ns >= from_ns) and not (soft and entry.request.pipeline.evicts):
            taken.append(entry)
            rows += entry.rows
    queue.remove(taken)
    return taken


def _is_open(partition: PartitionState, ahead: bool, now_ns: int) -> bool:
    batches = len(partition.batches)
    if not ahead or not batches:
        return partition.ready and not ahead and not batches
    return partition.ready and batches == 1 and partition.opening_ns <= now_ns


def _moved(known_ns: int, now_ns: int) -> bool:
    return abs(now_ns - known_ns) > DRIFT * known_ns
