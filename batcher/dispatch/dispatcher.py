"""Dispatch: which queue's batch goes to which partition, and when to look again."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from sluice.batcher.dispatch.choose_partition import PartitionChooser
from sluice.batcher.dispatch.timeouts import RequestTimeouts
from sluice.batcher.fleet.agenda import WakeupQueue
from sluice.batcher.fleet.fair_sharing import sharing
from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch, ReleaseReason
from sluice.batcher.interface.events import PartitionReady, PartitionResized
from sluice.batcher.interface.planner_protocol import Planner
from sluice.batcher.prediction.entering import enter
from sluice.batcher.queues.fair_queue import NOBODY, Queue
from sluice.batcher.queues.priority_queue import PriorityQueue
from sluice.batcher.queues.progress import batch_key_for
from sluice.batcher.queues.response_order import FinishedEntries
from sluice.batcher.reservations.reserved_work import ReservedWork
from sluice.batcher.state.model import RESTART_NS, ModelState, PartitionState
from sluice.batcher.state.pipeline import StageState
from sluice.batcher.state.pool import NEVER_NS, PartitionGroup
from sluice.batcher.state.request import Batch, Entry, Request, StageRun

if TYPE_CHECKING:
    from sluice.batcher.residency.on_demand import OnDemandLoader

_rows = attrgetter("rows")
REFRESH_BATCHES = 16
"""Predictions of a model's pipelines are renewed after this many of its batches."""


class Dispatcher:
    """Owns queues and batches; forms batches when asked to, for the partitions of its `fleet`.

    `planner` ranks where and how big, where there is a choice. `evict` is called for requests whose deadline a batch
    would miss, `resume` for entries whose answers were held back. `reserved` is there when some pipeline evicts: what of
    it was admitted waits there for its places.
    """

    def __init__(
        self,
        spec: SchedulerSpec,
        planner: Planner | None,
        evict: Callable[[Request, list[AnyDecision]], None],
        resume: Callable[[FinishedEntries, int, list[AnyDecision]], None],
    ) -> None:
        self.hand_off_ns = spec.limits.hand_off_ns
        self._locator = PartitionChooser(planner, self.hand_off_ns)
        self.fleet = Fleet(spec)
        self.models = self.fleet.models
        self.batches: dict[int, Batch] = {}
        self.agenda = WakeupQueue()
        self._sharing = sharing(spec.partitions, self.fleet.partitions, self.agenda)
        self._evict = evict
        self._resume = resume
        self._disturbed: dict[PriorityQueue, None] = {}
        self._formed_ns = 0
        self.reserved: ReservedWork | None = None
        self.evictions = RequestTimeouts(self.models, self.hand_off_ns)
        self._next_batch = 1
        self._next_sequence = 1

    def reserve(self, spec: SchedulerSpec, now_ns: int) -> ReservedWork:
        """Reserve places from now on, as is needed once some pipeline evicts."""
        reserved = self.reserved = self.evictions.reserved = ReservedWork(
            spec, self.fleet, self.agenda.wake, self._release
        )
        reserved.begin(now_ns)
        return reserved

    # -- entries

    def enqueue(self, request: Request, stage: StageState, run: StageRun | None, now_ns: int) -> Entry:
        """Queue the rows of a request for a stage, and wake up when a partition could take them.

        Raises RefusedError when it may not wait there.
        """
        model = stage.model
        assert model is not None, "a combiner is not queued"
        queue = stage.queue
        slot = None
        if self.reserved is not None:
            slot = self.reserved.slot(request.identity, stage.index)
            if slot is not None and slot.queue[0] != model.config.key:
                model, queue = self.models[slot.queue[0]], None  # another variant was reserved
        if queue is None:
            queue = model.queue_of(batch_key_for(request, stage))
        stage_deadline_ns = request.deadline_ns - stage.remaining_path_ns
        self._next_sequence += 1
        rows, row_index = request.rows, None
        if run is not None:
            rows, row_index = run.rows, run.row_index
        flow, sequence = request.pipeline.number, self._next_sequence
        entry = Entry(request, stage.index, rows, row_index, queue, stage_deadline_ns, now_ns, sequence, flow)
        request.entries.append(entry)
        if slot is None:
            self._push(entry, queue, model, now_ns)
        elif self.reserved is not None:
            self.reserved.hold(entry, now_ns)
        return entry

    def _push(self, entry: Entry, queue: Queue, model: ModelState, now_ns: int) -> None:
        if model.by_deadline:
            order_ns = entry.stage_deadline_ns
        else:
            order_ns = entry.enqueued_ns
            if isinstance(queue, PriorityQueue):
                self.evictions.limit(entry, *queue.admit(entry, now_ns), now_ns)
        model.outstanding = outstanding = model.outstanding + entry.rows
        if outstanding > model.peak:
            model.peak = outstanding
        first = queue.push(entry, order_ns, entry.request.pipeline.config.weight)
        if first or queue.rows >= queue.wanted_rows:
            queue.wanted_rows = NOBODY
            for group in model.groups:
                # With entries before this one, it is known already when a partition opens.
                if first or queue in group.aside:
                    self.agenda.notify(queue, group, now_ns)
            if first and not model.served:
                self.strand(model, now_ns)

    def strand(self, model: ModelState, now_ns: int) -> None:
        """Something waits for a model that no partition that is up holds."""
        self.fleet.stranded[model] = None
        self.agenda.check_ns = now_ns

    def _release(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry that has lost its place."""
        model = self.models[entry.queue.model]
        entry.queue = model.queues.setdefault(entry.queue.batch_key, entry.queue)
        self._push(entry, entry.queue, model, now_ns)

    def withdraw(self, entry: Entry) -> None:
        """Take an entry that waits out again."""
        queue = entry.queue
        model = self.models[queue.model]
        if self.reserved is not None and self.reserved.drop(entry):
            self._forget_if_empty(model.queues.get(queue.batch_key, queue), model)
            return
        queue.discard(entry)
        model.outstanding -= entry.rows
        self._forget_if_empty(queue, model)
        self.disturb(queue)

    def disturb(self, queue: Queue) -> None:
        """Entries of a queue moved or were settled: those after them may have waited for that."""
        if isinstance(queue, PriorityQueue):
            self._disturbed[queue] = None
            self.agenda.check_ns = self._formed_ns + 1

    def _calm(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Look again at the queues that were disturbed."""
        while self._disturbed:
            queue, _ = self._disturbed.popitem()
            for done in queue.response_order.release() if queue.response_order is not None else ():
                self._resume(done, now_ns, decisions)
            if queue:
                for group in self.models[queue.model].groups:
                    self.agenda.notify(queue, group, now_ns)
        self.agenda.check_ns = None

    @staticmethod
    def _forget_if_empty(queue: Queue, model: ModelState) -> None:
        if queue.batch_key and not queue:
            # Keys come from requests' shapes: keeping a queue for every one ever seen would grow without bound.
            model.queues.pop(queue.batch_key, None)

    # -- partitions

    def ready(self, event: PartitionReady, now_ns: int) -> None:
        """A partition's worker is up with these models."""
        self.fleet.ready(event, now_ns)
        self.reconsider(event.partition, now_ns)

    def reconsider(self, name: str, now_ns: int) -> None:
        """A partition is gone or holds other models: look at what it could run, here and where it was left to it."""
        mine = self.fleet.partitions[name].group
        for group in self.fleet.groups:
            if group.aside or group is mine:
                group.recall()
                self.agenda.wake(group, now_ns)
        if self.reserved is not None:
            self.reserved.sync(now_ns)

    def resized(self, event: PartitionResized, now_ns: int) -> None:
        """A partition's worker is another one, on another share of the machine."""
        self.fleet.resized(event)
        if self._sharing is not None:
            self._sharing.resized(self.fleet.partitions[event.partition], event.device, now_ns)
        if self.reserved is not None:
            self.reserved.resized(self.fleet.partitions[event.partition], now_ns)
        self.reconsider(event.partition, now_ns)

    def lost(self, name: str, now_ns: int) -> None:
        """A partition's worker is gone; its batches fail one by one in events of their own."""
        self.fleet.lost(name, now_ns)
        self.reconsider(name, now_ns)
        self.agenda.check_ns = now_ns

    # -- batches

    def end(self, identity: int, now_ns: int) -> Batch:
        """Take a batch off its partition."""
        batch = self.batches.pop(identity)
        partition = batch.partition
        was_running = partition.batches[0] is batch
        partition.batches.remove(batch)
        if not partition.batches:
            partition.free_at_ns = partition.idle_since_ns = now_ns
        elif was_running:
            partition.free_at_ns = now_ns + sum(waiting.median_ns for waiting in partition.batches)
        else:
            partition.free_at_ns -= batch.median_ns
        model = self.models[batch.queue.model]
        model.outstanding -= batch.rows
        if model.batches % REFRESH_BATCHES == 0:
            for pipeline in model.pipelines:
                pipeline.stale = True
            if model.batch_limits and model.limits_held(now_ns) and self.reserved is not None:
                self.reserved.learn((model,))
        group = partition.group
        assert group is not None, "a partition that had a batch has a group"
        group.changed(partition)
        if partition.account is not None and self._sharing is not None:
            self._sharing.ended(partition.account, batch, now_ns)
        if self.reserved is not None:
            self.reserved.ended(batch, now_ns, was_running=was_running)
        if (group.waiting or self.reserved is not None) and partition.ready:
            self.agenda.wake(group, now_ns)
        elif group.gathered_ns is not None:
            self.agenda.wake(group, group.gathered_ns)
        return batch

    def form(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Close every batch whose time has come; idle partitions choose before those that have a batch running."""
        self._formed_ns = now_ns
        agenda, reserved = self.agenda, self.reserved
        if agenda.check_ns is not None and agenda.check_ns <= now_ns:
            self._calm(now_ns, decisions)
        items = agenda.items
        while items and items[0][0] <= now_ns:
            due = agenda.due(now_ns)
            if self._sharing is not None:
                due = self._sharing.order(due, now_ns)
            for ahead in (False, True):
                for group in due:
                    if reserved is not None:
                        self._form_reserved(reserved, group, ahead, now_ns, decisions)
                    elif group.waiting:
                        self._form_in(group, ahead, now_ns, decisions)
            for group in due:
                if (next_ns := group.next_ns()) is not None:
                    agenda.wake(group, max(next_ns, now_ns + 1))
                if reserved is not None and (next_ns := reserved.next_ns(group, now_ns)) is not None:
                    agenda.wake(group, max(next_ns, now_ns + 1))
            if self._sharing is not None:
                decisions.extend(self._sharing.revocations())
                self._sharing.remind(due, now_ns)

    def _form_reserved(
        self, reserved: ReservedWork, group: PartitionGroup, ahead: bool, now_ns: int, decisions: list[AnyDecision]
    ) -> None:
        """As `_form_in`, of reserved work as well: what of it is not due yet comes in the order of deadlines."""
        for before_ns in (group.waiting[0][0], NEVER_NS) if group.waiting else (NEVER_NS,):
            batches = reserved.form_in(group, ahead, before_ns, now_ns)
            decisions.extend(self._close(*self._chosen(*batch, now_ns), now_ns) for batch in batches)
            if before_ns < NEVER_NS:
                self._form_in(group, ahead, now_ns, decisions)

    def _form_in(self, group: PartitionGroup, ahead: bool, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Close batches for the idle partitions of a group, or for those about to become so."""
        while group.waiting:
            partition = group.opened(now_ns) if ahead else group.idle()
            if self.reserved is not None:
                partition = self.reserved.most_free(group, ahead, now_ns)
            if partition is None:
                return
            chosen = self._choose(group, partition, now_ns)
            if chosen is None:
                return
            partition, queue, entries, reason = chosen
            if self.reserved is not None and reason is not ReleaseReason.RETRY:
                entries = self._on_time(partition, queue, entries, now_ns, decisions)
            if entries:
                decisions.append(self._close(partition, queue, entries, reason, now_ns))

    def _choose(
        self, group: PartitionGroup, partition: PartitionState, now_ns: int
    ) -> tuple[PartitionState, Queue, list[Entry], ReleaseReason] | None:
        """What should run now, here or on a better partition: of all queues, the most urgent one to be served."""
        while (queue := group.most_urgent()) is not None:
            model = self.models[queue.model]
            if model.batch_limits and model.is_left(queue, group.kind):
                group.put_off(queue, now_ns + RESTART_NS)
                continue
            if queue.retries:
                if self.reserved is not None and not self.reserved.has_room(partition, queue, now_ns):
                    self.reserved.put_off(queue, group, now_ns)
                    continue
                return self._chosen(partition, queue, queue.take_retry(), ReleaseReason.RETRY, now_ns)
            head = queue.head()
            reachable_ns = now_ns + self.hand_off_ns + model.quickest_ns
            if head.stage_deadline_ns < reachable_ns and model.by_deadline and queue.expire(reachable_ns):
                group.notify(queue)  # there may be another head now, which is less urgent
                continue
            choice = model.policy.choose(queue, model, partition, model.estimates[partition.kind], now_ns)
            if choice.rows:
                placement = self._locator.place(queue, head, model, choice, partition, now_ns)
                if placement is None:
                    group.put_off(queue, max(head.stage_deadline_ns, now_ns + 1))
                elif (taken := self._take(group, partition, queue, placement, now_ns)) is not None:
                    return self._chosen(*taken, choice.reason, now_ns)
            else:
                group.put_off(queue, max(choice.until_ns, now_ns + 1), choice.wanted_rows)
                if choice.after_idle_ns is not None:
                    group.park(queue, choice.after_idle_ns)
        return None

    def _take(
        self,
        group: PartitionGroup,
        partition: PartitionState,
        queue: Queue,
        place: tuple[PartitionState, int, int],
        now_ns: int,
    ) -> tuple[PartitionState, Queue, list[Entry]] | None:
        """What runs of a queue in a place, or on `partition` when that has no time for it between reserved places."""
        host, rows, from_ns = place
        if self.reserved is None:
            return host, queue, queue.take(rows, from_ns)
        taken = self.reserved.take(queue, (host, partition), rows, from_ns, now_ns)
        if taken is None:
            self.reserved.put_off(queue, group, now_ns)
        return taken

    def _chosen(
        self, host: PartitionState, queue: Queue, entries: list[Entry], reason: ReleaseReason, now_ns: int
    ) -> tuple[PartitionState, Queue, list[Entry], ReleaseReason]:
        """What was taken is to run; what is left of the queue may be for somebody else."""
        if queue.live or queue.retries:
            model = self.models[queue.model]
            for group in model.groups:
                if (queue in group.listed and model.by_deadline) or (queue.wanted_rows and queue in group.aside):
                    continue
                self.agenda.notify(queue, group, now_ns)
        return host, queue, entries, reason

    def _on_time(
        self, partition: PartitionState, queue: Queue, entries: list[Entry], now_ns: int, decisions: list[AnyDecision]
    ) -> list[Entry]:
        """The entries less those to be evicted rather than answered late, as they would be in this batch."""
        if not any(entry.request.pipeline.evicts for entry in entries):
            return entries
        model = self.models[queue.model]
        rows = sum(map(_rows, entries))
        service_ns = model.estimates[partition.kind].service_ns(rows)
        done_ns = partition.start_ns(now_ns) + self.hand_off_ns + service_ns
        for entry in entries:
            if entry.request.pipeline.evicts and entry.stage_deadline_ns < done_ns and not entry.request.settled:
                self._evict(entry.request, decisions)
        model.outstanding -= sum(entry.rows for entry in entries if entry.request.settled)
        self._forget_if_empty(queue, model)
        return [entry for entry in entries if not entry.request.settled]

    def _close(
        self, partition: PartitionState, queue: Queue, entries: list[Entry], reason: ReleaseReason, now_ns: int
    ) -> DispatchBatch:
        model = self.models[queue.model]
        batch = Batch(self._next_batch, queue, partition, partition.kind, entries, 0, 0, now_ns, len(entries))
        members = enter(batch)
        batch.rows = rows = sum(map(_rows, entries))
        batch.median_ns = median_ns = model.estimates[partition.kind].median_ns(rows)
        self._next_batch += 1
        self.batches[batch.identity] = batch
        if self.reserved is not None:
            self.reserved.started(partition, queue.model, entries, rows, now_ns)
        partition.free_at_ns = partition.start_ns(now_ns) + median_ns
        partition.batches.append(batch)
        assert partition.group is not None, "a partition that takes a batch has a group"
        partition.group.changed(partition)
        if partition.account is not None and self._sharing is not None:
            self._sharing.started(partition.account, now_ns)
        model.dispatched(rows)
        model.last_ns = now_ns
        self._forget_if_empty(queue, model)
        return DispatchBatch(batch.identity, partition.name, queue.model, rows, members, reason, partition.free_at_ns)

    def abandoned(self, now_ns: int, cold_starts: OnDemandLoader | None) -> list[tuple[Entry, str]]:
        """What waits for models that do not come, and why; wakes up again for those that may."""
        entries, again_ns = self.fleet.abandoned(now_ns, cold_starts)
        if again_ns is not None and (self.agenda.check_ns is None or again_ns < self.agenda.check_ns):
            self.agenda.check_ns = again_ns
        return entries

    def queue_depths(self) -> dict[str, int]:
        """Requests waiting, by model key."""
        depths = {key: sum(queue.waiting for queue in model.queues.values()) for key, model in self.models.items()}
        for entry in self.reserved.waiting.values() if self.reserved is not None else ():
            depths[entry.queue.model] += 1
        return depths
