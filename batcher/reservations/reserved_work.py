"""Booked work: what has a place reserved waits here, outside the queues, until a partition runs it in its place.

Keeps the reservations in step with the fleet. Everything else uses the time that they leave: a batch of a queue runs
only where it is over by `due_ns`.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.planner_protocol import FAR_NS
from sluice.batcher.queues.fair_queue import Queue
from sluice.batcher.queues.progress import request_batch_key
from sluice.batcher.reservations.reservations import Reservations
from sluice.batcher.reservations.search import ReservationRefusal
from sluice.batcher.reservations.slots import QueueKey, Slot
from sluice.batcher.reservations.timeline import Part
from sluice.batcher.state.model import HAND_OFF_WEIGHT, MAX_HAND_OFF_NS, ModelState, PartitionState
from sluice.batcher.state.pipeline import PipelineState
from sluice.batcher.state.pool import PartitionGroup
from sluice.batcher.state.request import Batch, Entry

DRIFT = 0.05
"""Relative change of an estimate that reservations take note of: below it, the estimates of a steady machine waver."""
WAY_DRIFT = 1.5
"""The factor by which the time of a hand-off has to move for that: it wavers more."""
OUTLIER = 8
"""No hand-off counts as more than so many times the usual one: a machine may halt for once."""

Chosen = tuple[PartitionState, Queue, list[Entry], ReleaseReason]
"""(partition, queue, entries taken, why now) of a batch that is to be closed."""


class ReservedWork:
    """Entries with a reserved place, by (request, stage) in `waiting`, and the `ledgers` that hold their places.

    `wake` has a pool looked at, at a time; `release` has an entry queued that lost its place. A place counts as kept
    for the time of a hand-off, which its length includes: drivers wake up late, and may be seen to take longer.
    """

    def __init__(
        self,
        spec: SchedulerSpec,
        fleet: Fleet,
        wake: Callable[[PartitionGroup, int], None],
        release: Callable[[Entry, int], None],
    ) -> None:
        self._hand_off_ns = self._least_ns = spec.limits.hand_off_ns
        self._seen_ns: float = self._hand_off_ns
        self._fleet = fleet
        self._wake = wake
        self._release = release
        self._reservations = Reservations(spec.partitions)
        self._services: dict[tuple[str, str], list[int]] = {}
        self.ledgers = self._reservations.ledgers
        self.waiting: dict[Part, Entry] = {}

    # -- requests

    def reserve(self, event: RequestArrived, pipeline: PipelineState, now_ns: int) -> ReservationRefusal | None:
        """Reserve a place for every stage of a request, by its deadline and cost."""
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
        """The place of a stage, while it has one."""
        return self._reservations.slot(request, stage)

    def settled(self, request: int, stage: int) -> None:
        """A stage is over, or was skipped."""
        self._reservations.settled(request, stage)

    def forget(self, request: int) -> None:
        """A request has its outcome."""
        self._reservations.forget(request)

    # -- entries

    def hold(self, entry: Entry, now_ns: int) -> None:
        """Have an entry run that has a place: there, or sooner wherever that takes nobody's time."""
        self.waiting[entry.request.identity, entry.stage] = entry
        for pool in self._fleet.models[entry.queue.model].pools:
            if pool.idle() is not None:
                self._wake(pool, now_ns)
            elif (partition := pool.opening()) is not None:
                self._wake(pool, max(partition.opening_ns, now_ns))

    def drop(self, entry: Entry) -> bool:
        """Take an entry out; False when it does not wait here."""
        return self.waiting.pop((entry.request.identity, entry.stage), None) is not None

    def passed_ns(self, entry: Entry) -> int | None:
        """From when on an entry that waits here has missed its place."""
        if (entry.request.identity, entry.stage) not in self.waiting:
            return None
        slot = self._reservations.slot(entry.request.identity, entry.stage)
        assert slot is not None, "what waits here has a place"
        return slot.start_ns + self._hand_off_ns + 1

    def reopen(self, entries: Iterable[Entry], now_ns: int) -> list[Entry]:
        """Find other places for entries whose batch never started; those that there is none for are returned."""
        homeless = []
        for entry in entries:
            if self._reservations.reopen(entry.request.identity, entry.stage, now_ns):
                entry.queued = True
                self.hold(entry, now_ns)
            else:
                homeless.append(entry)
        self._release_lapsed(now_ns)
        self._wake_in_time(now_ns)
        return homeless

    def _expire(self, partition: PartitionState, now_ns: int) -> None:
        """What has missed its place on a partition is up to its queue."""
        ledger = self.ledgers[partition.name]
        if ledger.slots and ledger.slots[0].start_ns < max(now_ns, ledger.free_ns):
            for part in self._reservations.expire(partition.name, self.begin_ns(partition, now_ns)):
                if (entry := self.waiting.pop(part, None)) is not None:
                    self._release(entry, now_ns)

    def _release_lapsed(self, now_ns: int) -> None:
        for part, entry in list(self.waiting.items()):
            if self._reservations.slot(*part) is None:
                del self.waiting[part]
                self._release(entry, now_ns)

    # -- partitions

    def begin(self, now_ns: int) -> None:
        """Take in how all is; what runs already counts from now on."""
        self.learn(model for model in self._fleet.models.values() if model.estimates)
        self.sync(now_ns)
        for partition in self._fleet.partitions.values():
            if partition.batches:
                self.ended(partition.batches[0], now_ns, was_running=True)

    def sync(self, now_ns: int) -> None:
        """Take in which partitions are up and what they hold; places that are gone are sought elsewhere."""
        reservations = self._reservations
        for partition in self._fleet.partitions.values():
            ledger = self.ledgers[partition.name]
            models = partition.models if partition.ready else frozenset[str]()
            if models == ledger.models:
                continue
            if not models:
                reservations.lost(partition.name, now_ns)
                continue
            self.learn(self._fleet.models[key] for key in models)
            free_ns = ledger.free_ns if partition.batches else now_ns
            reservations.ready(partition.name, models, now_ns)
            reservations.free(partition.name, free_ns)
            gone = [slot for slot in ledger.slots if slot.queue[0] not in models]
            for place, held, stage in [(slot, held, stage) for slot in gone for held, stage in slot.members]:
                if reservations.slot(held.request, stage) is place:
                    reservations.reopen(held.request, stage, now_ns)
        for kind, key in [known for known in self._services if known[1] not in self._fleet.models]:
            del self._services[kind, key]
            reservations.unlearn(kind, key)
        self._release_lapsed(now_ns)
        self._wake_in_time(now_ns)

    def resized(self, partition: PartitionState, now_ns: int) -> None:
        """A partition is of another kind: places there are sought anew. `sync` is to follow."""
        self.learn(self._fleet.models[key] for key in partition.models)
        self._reservations.resized(partition.name, partition.kind, partition.price, now_ns)

    def learn(self, models: Iterable[ModelState]) -> None:
        """Take in the estimates of models, where they have moved."""
        for model in models:
            for kind, estimate in model.estimates.items():
                services_ns = [estimate.service_ns(rows) for rows in range(1, model.config.max_batch + 1)]
                known = self._services.get((kind, model.config.key), ())
                if not known or any(map(_moved, known, services_ns)):
                    self._services[kind, model.config.key] = services_ns
                    lengths_ns = [service_ns + self._hand_off_ns for service_ns in services_ns]
                    self._reservations.learn(kind, model.config.key, lengths_ns)

    def ended(self, batch: Batch, now_ns: int, *, was_running: bool) -> None:
        """A batch is off its partition; its other batch, if any, runs from now on, or ran before already."""
        partition = batch.partition
        if was_running or not partition.batches:
            free_ns = now_ns + sum(self._length_ns(each) for each in partition.batches)
        else:
            free_ns = self.ledgers[partition.name].free_ns - self._length_ns(batch)
        self._reservations.free(partition.name, free_ns)

    def observed(self, model: ModelState, kind: str, rows: int) -> None:
        """An estimate was corrected by a batch of as many rows."""
        if _moved(self._services[kind, model.config.key][rows - 1], model.estimates[kind].service_ns(rows)):
            self.learn((model,))

    def handed_off(self, took_ns: int) -> None:
        """A batch was under way for so long, there and back, beside the time that it ran."""
        seen_ns = self._seen_ns + HAND_OFF_WEIGHT * (min(took_ns, OUTLIER * self._seen_ns) - self._seen_ns)
        self._see(min(seen_ns, MAX_HAND_OFF_NS))

    def forgive(self) -> None:
        """Let what hand-offs are seen to take decay: when nothing is admitted for that, none is seen any more."""
        self._see(self._seen_ns / 2)

    def _see(self, seen_ns: float) -> None:
        self._seen_ns = max(seen_ns, self._least_ns)
        if not self._hand_off_ns <= WAY_DRIFT * self._seen_ns <= WAY_DRIFT**2 * self._hand_off_ns:
            self._hand_off_ns = round(self._seen_ns)
            for (kind, key), services_ns in self._services.items():
                self._reservations.learn(kind, key, [each_ns + self._hand_off_ns for each_ns in services_ns])

    def started(self, partition: PartitionState, model: str, entries: Iterable[Entry], rows: int, now_ns: int) -> None:
        """A batch is given to a partition."""
        begin_ns = max(self.ledgers[partition.name].free_ns, now_ns)
        end_ns = begin_ns + self.ledgers[partition.name].lengths[model][rows - 1]
        self._reservations.started(partition.name, [(each.request.identity, each.stage) for each in entries], end_ns)

    def _length_ns(self, batch: Batch) -> int:
        if (batch.kind, batch.queue.model) not in self._services:
            # It was running when reservations began, on a partition that is of another kind since.
            return batch.median_ns + self._hand_off_ns
        return self._reservations.length_ns(batch.kind, batch.queue.model, batch.rows)

    # -- dispatch

    def begin_ns(self, partition: PartitionState, now_ns: int) -> int:
        """When a batch that is given to a partition now begins, at the latest; within the grace, when it was due."""
        ledger = self.ledgers[partition.name]
        begin_ns = max(ledger.free_ns, now_ns)
        due_ns = ledger.due_ns()
        return due_ns if due_ns is not None and due_ns < begin_ns <= due_ns + self._hand_off_ns else begin_ns

    def form_in(self, pool: PartitionGroup, ahead: bool, before_ns: int, now_ns: int) -> Iterator[Chosen]:
        """The batches of reserved work to be closed on the partitions of a pool; each has to be before the next.

        What is not due yet counts only if it has to be over before `before_ns`.
        """
        for partition in pool.partitions.values():
            self._expire(partition, now_ns)
            while _is_open(partition, ahead, now_ns):
                chosen = self._choose(partition, before_ns, now_ns)
                if chosen is None:
                    break
                yield chosen

    def _choose(self, partition: PartitionState, before_ns: int, now_ns: int) -> Chosen | None:
        begin_ns = self.begin_ns(partition, now_ns)
        run = self._reservations.runnable(partition.name, begin_ns, self._rows)
        if run is None:
            return None
        first = self.waiting[run.members[0]]
        model = self._fleet.models[first.queue.model]
        ledger = self.ledgers[partition.name]
        due_ns = ledger.due_ns()
        is_due = due_ns is not None and begin_ns >= due_ns
        waits = partition.held or first.stage_deadline_ns > before_ns
        if not is_due and (waits or model.config.policy.defers):
            return None
        queue = model.queues.get(first.queue.batch_key, first.queue)
        entries = [self.waiting.pop(part) for part in run.members]
        for entry in entries:
            entry.queued = False
            entry.queue = queue
        model.outstanding += run.rows
        # Others may come along where nobody has to wait for that; those that give up rather than be late may have to.
        estimate = model.estimates[partition.kind]
        room = min(bisect_right(ledger.lengths[model.config.key], run.until_ns - begin_ns), estimate.max_rows)
        entries += _take(queue, room - run.rows, 0, soft=True, like=entries[0])
        reason = ReleaseReason.DEADLINE if is_due else ReleaseReason.IDLE
        rows = sum(entry.rows for entry in entries)
        if rows >= estimate.efficient_rows:
            reason = ReleaseReason.FULL
        return partition, queue, entries, reason

    def _rows(self, request: int, stage: int) -> int:
        entry = self.waiting.get((request, stage))
        return 0 if entry is None else entry.rows

    def soonest_ns(self, pool: PartitionGroup, order_ns: int, now_ns: int) -> int:
        """When an entry of that order could start in a pool, which goes before all that has its place later."""
        later_ns = sum([self.ledgers[partition.name].after_ns(order_ns) for partition in pool.partitions.values()])
        start_ns = pool.start_after_backlog_ns(now_ns) - later_ns // (pool.ready_count or len(pool.partitions))
        return max(start_ns, pool.start_ns(now_ns))

    def roomiest(self, pool: PartitionGroup, ahead: bool, now_ns: int) -> PartitionState | None:
        """Of the partitions of a pool that are idle (`ahead`: about to be), the one with the furthest first place."""
        best: PartitionState | None = None
        best_ns = -1
        for partition in pool.partitions.values():
            if _is_open(partition, ahead, now_ns) and not partition.held:
                due_ns = self.ledgers[partition.name].due_ns()
                room_ns = FAR_NS if due_ns is None else due_ns - now_ns
                if best is None or room_ns > best_ns:
                    best, best_ns = partition, room_ns
        return best

    def room(self, partition: PartitionState, model: ModelState, now_ns: int) -> int:
        """How many rows of a model a partition can run, from now on, before what is reserved."""
        ledger = self.ledgers[partition.name]
        due_ns = ledger.due_ns()
        if due_ns is None:
            return model.config.max_batch
        return bisect_right(ledger.lengths[model.config.key], due_ns - self.begin_ns(partition, now_ns))

    def take(
        self, queue: Queue, hosts: Iterable[PartitionState], rows: int, from_ns: int, now_ns: int
    ) -> tuple[PartitionState, Queue, list[Entry]] | None:
        """What `Queue.take` takes, as far as it is over in time on the first of `hosts` where something is."""
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
        """Whether the first batch of a queue that is to be repeated is over in time on a partition."""
        rows = sum(entry.rows for entry in queue.retries[0])
        return rows <= self.room(partition, self._fleet.models[queue.model], now_ns)

    def put_off(self, queue: Queue, pool: PartitionGroup, now_ns: int) -> None:
        """Have a queue that nothing fits in for looked at again when the first place of a pool is due."""
        pool.put_off(queue, max(self.next_ns(pool, now_ns) or 0, now_ns + 1))
        pool.park(queue, 0)

    def next_ns(self, pool: PartitionGroup, now_ns: int) -> int | None:
        """When a pool is to be looked at for the sake of what is reserved, unless something happens before."""
        looks = []
        for partition in pool.partitions.values():
            if partition.ready:
                due_ns = self.ledgers[partition.name].due_ns()
                if due_ns is not None:
                    looks.append(due_ns if due_ns > now_ns else due_ns + self._hand_off_ns + 1)
                if self.waiting and len(partition.batches) == 1 and partition.opening_ns > now_ns:
                    looks.append(partition.opening_ns)
        return min(looks, default=None)

    def _wake_in_time(self, now_ns: int) -> None:
        """Places were found or moved: each partition has to be looked at by the first of its own."""
        for partition in self._fleet.partitions.values():
            due_ns = self.ledgers[partition.name].due_ns()
            if due_ns is not None and partition.pool is not None:
                self._wake(partition.pool, max(due_ns, now_ns))


def _queues(event: RequestArrived, pipeline: PipelineState) -> tuple[QueueKey | None, ...]:
    """The queue of each stage; where the key is not known yet, one that no other request has."""
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
    """Remove the first entries that have `max_rows` rows at most; `soft` ones only, which may be answered late.

    They may share a batch, with `like` as well.
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
