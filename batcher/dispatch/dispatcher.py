"""Dispatch: which queue's batch goes to which partition, and when to decide again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter

from sluice.batcher.dispatch.choose_partition import PartitionChooser
from sluice.batcher.dispatch.closing import Closing, wrong_choice
from sluice.batcher.dispatch.competition import Competition
from sluice.batcher.dispatch.copies import mark_copied
from sluice.batcher.dispatch.in_turn import PlannedTurn, in_turn
from sluice.batcher.dispatch.plan_rules import Hold, PlanRules
from sluice.batcher.dispatch.second_batches import SecondBatches
from sluice.batcher.dispatch.stragglers import Stragglers
from sluice.batcher.dispatch.timeouts import RequestTimeouts
from sluice.batcher.fleet.device_sharing import DeviceSharing
from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.fleet.member_table import first_free, is_idle, note_change
from sluice.batcher.fleet.partition_group import first_available, first_idle, first_opened
from sluice.batcher.fleet.run_queue import RunQueue
from sluice.batcher.fleet.speed import is_left_to_others, outdate_pipelines, raise_limits
from sluice.batcher.instances.pools import Instances
from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch, Member, ReleaseReason, RevokeBatch
from sluice.batcher.interface.events import LinkMeasured, PartitionReady, PartitionResized
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.planner_protocol import Planner
from sluice.batcher.places.places import Places
from sluice.batcher.policies.base import Choice
from sluice.batcher.queues.bounded_queue import BoundedQueue
from sluice.batcher.queues.ordered_entries import requeue
from sluice.batcher.queues.priority_queue import PriorityQueue
from sluice.batcher.queues.progress import batch_key_for
from sluice.batcher.queues.queue import NO_WAITERS, Queue
from sluice.batcher.queues.queue_table import base_key, host_key
from sluice.batcher.queues.response_order import FinishedEntries
from sluice.batcher.sequences.sequences import Sequences
from sluice.batcher.state import (
    IN_FLIGHT,
    RESTART_NS,
    Batch,
    Entry,
    ModelState,
    PartitionState,
    PipelineState,
    QueueKey,
    Request,
    StageRun,
    StageState,
)
from sluice.models.units import INFINITE_NS, NS_PER_MS

_rows = attrgetter("rows")
Chosen = tuple[PartitionState, Queue, list[Entry], ReleaseReason, str]
"""A batch to close: (partition, queue, entries, release reason, the rule of the plan or "")."""
TYPICAL_WEIGHT = 0.1
"""Weight of one batch in the smoothed number of rows of a batch."""
PEAK_DECAY = 0.9
"""The peak of outstanding rows falls by this factor with every batch."""
HOST_CHECK_NS = NS_PER_MS
"""A queue whose partition is busy for longer than predicted is looked at again after this time, or once it is idle."""
REFRESH_BATCHES = 16
"""Predictions of a model's pipelines are made again after this many of its batches."""
# Members of enums are found slowly.
RETRY, COMPETE, IDLE = ReleaseReason.RETRY, ReleaseReason.COMPETE, ReleaseReason.IDLE


class Dispatcher:
    """Owns batches, and closes them in `form` for the partitions of the `fleet`.

    `planner` ranks where a batch runs and how large it is, where there is a choice. `evict` is called for requests
    whose deadline a batch would miss, `resume` for entries whose answers were held back, and `fail` for requests whose
    sequence has ended. `places` are those of requests whose stages have not started, `sequences` have the slots, and
    `instances` the partitions that were chosen for models by a policy of theirs.
    """

    def __init__(
        self,
        spec: SchedulerSpec,
        fleet: Fleet,
        planner: Planner | None,
        evict: Callable[[Request, list[AnyDecision]], None],
        resume: Callable[[FinishedEntries, int, list[AnyDecision]], None],
        fail: Callable[[Request, Outcome, str, list[AnyDecision]], None],
    ) -> None:
        self.hand_off_ns = spec.limits.hand_off_ns
        self.fleet = fleet
        self.models = fleet.models
        self.batches: dict[int, Batch] = {}
        self.wakeups = fleet.wakeups
        self.places = Places(fleet)
        self.timeouts = RequestTimeouts(fleet)
        self.sequences = Sequences(fleet)
        self.instances = Instances(fleet)
        self._queues = fleet.queues
        self._closing = Closing(fleet.policies, spec.limits)
        self._chooser = PartitionChooser(planner, self.hand_off_ns)
        self.rules = PlanRules(self._chooser, self.places.locality, self.hand_off_ns, spec.planner.name)
        self._sharing = DeviceSharing(spec.partitions, fleet.partitions, self.wakeups, _set_free)
        self._stragglers = Stragglers(fleet, spec.limits.straggler_factor)
        self.second_batches = SecondBatches(fleet)
        self.competition = Competition(fleet, self.instances)
        self._evict = evict
        self._resume = resume
        self._fail = fail
        self._changed: dict[PriorityQueue, None] = {}
        self._formed_ns = 0
        self._next_batch = 1
        self._next_sequence = 1

    # -- entries

    def enqueue(self, request: Request, stage: StageState, run: StageRun | None, now_ns: int) -> Entry:
        """Queue the rows of a request for a stage, and wake up when a partition could take them.

        Raises EntryRefusedError if it may not wait there.
        """
        model = request.models[stage.index] if request.models else stage.model
        assert model is not None, "a combiner is not queued"
        index, places = stage.index, request.places
        place = places[index] if places else None
        if place is not None:
            model = place[0].model  # which may be another variant than for requests that arrive now
        if stage.is_keyed and not model.mixes_keys:
            queue = self._queues.get((model.config.key, batch_key_for(request, stage)))
        else:
            queue = self._queues.default[model]
        if request.arrival.max_cost is not None and place is not None and model.by_deadline:
            host = place[0].partition
            queue = self._queues.bound(queue.key, host.kind, host.price)
        stage_deadline_ns = request.deadline_ns - stage.remaining_path_ns
        if place is not None and request.is_linked:
            # Predictions may have changed since then, but with its place it is in time.
            stage_deadline_ns = max(stage_deadline_ns, place[0].latest_ns + place[0].partition.hand_off_ns)
        sequence = self._next_sequence = self._next_sequence + 1
        rows, row_index = request.rows, None
        if run is not None:
            rows, row_index = run.rows, run.row_index
        entry = Entry(request, index, rows, row_index, queue.key, stage_deadline_ns, now_ns, sequence)
        if model.config.sequences is not None:
            queue = self.sequences.enter(entry, model, now_ns)
            requeue(entry, queue.key)
        elif model.config.instances is not None:
            queue = self.instances.enter(entry, model, queue, now_ns)
            requeue(entry, queue.key)
        if request.arrival.not_before_ns > now_ns and self.instances.is_ahead(queue):
            if queue.push(entry, now_ns):
                self.instances.offer(queue, model, now_ns)
        else:
            self._push(entry, queue, model, now_ns)
        if request.pipeline.evicts:
            self.timeouts.plan(entry, now_ns)
        return entry

    def begin(self, entry: Entry, now_ns: int) -> None:
        """Have an entry that was sent ahead of its time wait as if it had come now; raises as `enqueue`."""
        ahead, model = self._queues.get(entry.queue_key), self.models[entry.queue_key[0]]
        ahead.discard(entry)
        self._queues.forget_if_empty(ahead)
        queue = self.instances.join(entry, self._queues.get(base_key(ahead.key)))
        requeue(entry, queue.key)
        self._push(entry, queue, model, now_ns)

    def _push(self, entry: Entry, queue: Queue, model: ModelState, now_ns: int) -> None:
        if model.by_deadline:
            order_ns = entry.stage_deadline_ns
        else:
            order_ns = max(entry.enqueued_ns, entry.request.arrival.not_before_ns)
            if isinstance(queue, PriorityQueue):
                self.timeouts.limit(entry, *queue.admit(entry, now_ns), now_ns)
            elif isinstance(queue, BoundedQueue):
                queue.check_room(entry)
        self._add(entry, queue, model, order_ns, now_ns)

    def _add(self, entry: Entry, queue: Queue, model: ModelState, order_ns: int, now_ns: int) -> None:
        model.outstanding += entry.rows
        wanted = model.outstanding - model.extra_rows
        if wanted > model.peak_rows:
            model.peak_rows = float(wanted)
        first = queue.push(entry, order_ns)
        if first and model.by_deadline and self.second_batches.came(entry, now_ns):
            self.check_by(now_ns)
        if model.config.instances is not None and queue.host is None:
            if first:
                self.instances.offer(queue, model, now_ns)
                if not model.served:
                    self.strand(model, now_ns)
            return
        if first or queue.rows >= queue.wanted_rows:
            queue.stop_waiting()
            wakeups = self.wakeups
            for group in model.groups:
                # If the queue was not empty, the groups already know when a partition opens.
                if first or queue in wakeups.run_queues[group].deferred:
                    wakeups.notify(queue, group, now_ns)
            if first and not model.served:
                self.strand(model, now_ns)

    def strand(self, model: ModelState, now_ns: int) -> None:
        """Record that entries wait for a model that no running partition holds."""
        self.fleet.strand(model)
        self.wakeups.check_ns = now_ns

    def check_by(self, at_ns: int) -> None:
        """Wake up at `at_ns` or before, for queues that no group can run."""
        if self.wakeups.check_ns is None or at_ns < self.wakeups.check_ns:
            self.wakeups.check_ns = at_ns

    def retry(self, key: QueueKey, entries: list[Entry], now_ns: int) -> None:
        """Dispatch the entries again, as one batch of their own."""
        model = self.models[key[0]]
        queue = self._queues.get(key if model.config.instances is None else base_key(key))
        queue.retry(entries)
        model.outstanding += sum(entry.rows for entry in entries)
        if model.config.instances is not None:
            self.instances.offer(queue, model, now_ns)
        else:
            if queue.only is not None:
                self._unbind(queue, now_ns)
            self.wakeups.notify_all(queue, model, now_ns)
        if not model.served:
            self.strand(model, now_ns)

    def wait_again(self, key: QueueKey, entries: list[Entry], now_ns: int) -> None:
        """Have the entries of a batch that was revoked wait as before, in the order of their deadlines."""
        queue, model = self._queues.get(key), self.models[key[0]]
        for entry in entries:
            entry.was_revoked = True
            requeue(entry, key)
            self._add(entry, queue, model, entry.stage_deadline_ns, now_ns)
            if entry.request.pipeline.evicts:
                self.timeouts.plan(entry, now_ns + 1)
        if queue.only is not None:
            self._unbind(queue, now_ns)

    def withdraw(self, entry: Entry) -> None:
        """Remove a waiting entry."""
        queue = self._queues.get(entry.queue_key)
        queue.discard(entry)
        if not (entry.request.arrival.not_before_ns and self.instances.is_ahead(queue)):
            self.models[queue.model].outstanding -= entry.rows
        self._queues.forget_if_empty(queue)
        self.mark_changed(queue.key)
        self.instances.changed(self._formed_ns)
        self.sequences.withdrawn(entry)
        if self.sequences.movable or self.sequences.ended:
            self._move_sequences(self._formed_ns)
            self.wakeups.check_ns = self._formed_ns + 1

    def is_kept(self, partition: str, key: str) -> bool:
        """True if a model stays on a partition: a batch of it is planned there, or sequences of it go on there."""
        return self.places.is_promised(partition, key) or self.sequences.is_used(partition, key)

    def ran(self, entries: list[Entry], now_ns: int) -> None:
        """Record that entries of sequences have run, or failed."""
        self.sequences.ran(entries, now_ns)
        self._move_sequences(now_ns)

    def lose_sequences(self, batch: Batch, now_ns: int) -> None:
        """End the sequences of a batch's model on its partition, since the worker has their states no more.

        A batch that was sent before the loss was known tells nothing new: other sequences may have begun since.
        """
        if any(self.sequences.knows(entry) for entry in batch.entries):
            self.sequences.lost(batch.queue_key[0], batch.partition)
            self._move_sequences(now_ns)

    def _move_sequences(self, now_ns: int) -> None:
        """Move requests of sequences to the queue that they may run from, and others away; see when sequences end."""
        sequences = self.sequences
        while sequences.movable:
            entry = sequences.movable.pop(0)
            self._move(entry, sequences.queue_of(entry), now_ns)
        for entry, _, _ in sequences.ended:
            queue = self._queues.default[self.models[entry.queue_key[0]]]
            if entry.queue_key != queue.key and not entry.request.settled:
                self._move(entry, queue, now_ns)
        if sequences.ended:
            self.check_by(now_ns)
        elif (due_ns := sequences.next_ns) is not None:
            self.check_by(due_ns)

    def _move(self, entry: Entry, queue: Queue, now_ns: int) -> None:
        """Move a waiting entry of a sequence to another queue."""
        before, model = self._queues.get(entry.queue_key), self.models[queue.model]
        before.discard(entry)
        model.outstanding -= entry.rows
        self._queues.forget_if_empty(before)
        requeue(entry, queue.key)
        self._add(entry, queue, model, entry.enqueued_ns, now_ns)

    def _end_sequences(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """End the sequences that are idle for too long, and fail the requests of those that have ended early."""
        sequences = self.sequences
        sequences.expire(now_ns)
        while sequences.ended:
            entry, outcome, reason = sequences.ended.pop(0)
            if not entry.request.settled:
                self._fail(entry.request, outcome, reason, decisions)
        self._move_sequences(now_ns)

    def mark_changed(self, key: QueueKey) -> None:
        """Record that entries of a queue were moved or settled: entries behind them may now be able to run."""
        queue = self._queues.find(key)
        if isinstance(queue, PriorityQueue):
            self._changed[queue] = None
            self.wakeups.check_ns = self._formed_ns + 1

    def _reoffer_changed(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Offer changed queues again to their groups, and resume the entries whose answers are no longer held back."""
        while self._changed:
            queue, _ = self._changed.popitem()
            for done in queue.response_order.release() if queue.response_order is not None else ():
                self._resume(done, now_ns, decisions)
            if queue:
                self.wakeups.notify_all(queue, self.models[queue.model], now_ns)
        self.wakeups.check_ns = None

    def _unbind(self, queue: Queue, now_ns: int) -> None:
        """Let entries run anywhere if no partition is up that keeps their cost."""
        model = self.models[queue.model]
        if any(group.ready_count and (group.kind, group.price) == queue.only for group in model.groups):
            return
        while queue:
            self._unbind_first(queue, now_ns)
        self._queues.forget_if_empty(queue)

    def _unbind_first(self, queue: Queue, now_ns: int) -> None:
        """Let the first batch to be retried run anywhere, or the first entry."""
        model = self.models[queue.model]
        unbound = self._queues.get((queue.model, queue.batch_key.rpartition("@")[0]))
        if queue.retries:
            unbound.retry(queue.take_retry())
            self.wakeups.notify_all(unbound, model, now_ns)
            return
        entry = queue.take_first()
        model.outstanding -= entry.rows
        requeue(entry, unbound.key)
        self._push(entry, unbound, model, now_ns)

    def holds_answer(self, entry: Entry) -> bool:
        """True if an entry has run, and its answer waits for those before it."""
        queue = self._queues.find(entry.queue_key)
        return queue is not None and queue.response_order is not None and queue.response_order.holds(entry)

    # -- partitions

    def ready(self, event: PartitionReady, now_ns: int) -> None:
        """Record that a partition's worker is up with these models."""
        self.fleet.partitions[event.partition].idle_since_ns = now_ns
        self.fleet.ready(event)
        self.reconsider(event.partition, now_ns)

    def reconsider(self, name: str, now_ns: int) -> None:
        """Reconsider all groups after a partition was lost or its models changed."""
        partition = self.fleet.partitions[name]
        self.wakeups.end_deferrals(partition.group, now_ns)
        self.places.sync(partition, now_ns)
        for queue in self._queues.bound_queues():
            self._unbind(queue, now_ns)
        self._reconsider_sequences(partition, now_ns)
        self.instances.sync(partition, now_ns)

    def _reconsider_sequences(self, host: PartitionState, now_ns: int) -> None:
        """Follow a partition that was lost or whose models changed."""
        self.sequences.sync()
        self._move_sequences(now_ns)
        if host.group is None or not self._queues.has_sequences(host):
            return
        for key in sorted(host.models):
            queue = self._queues.find((key, host_key(host)))
            if queue:
                self.wakeups.notify(queue, host.group, now_ns)

    def resized(self, event: PartitionResized, now_ns: int) -> None:
        """Record that a partition has a new worker with another share of the machine."""
        self.fleet.resized(event)
        partition = self.fleet.partitions[event.partition]
        self.places.resized(partition)
        self._sharing.resized(partition, event.device, now_ns)
        self.sequences.replaced(partition)
        self.reconsider(event.partition, now_ns)

    def link_measured(self, event: LinkMeasured, now_ns: int) -> bool:
        """Record how long the way to a node takes; True if predictions have changed."""
        changed, moved = self.fleet.link_measured(event)
        for partition in moved:
            self.places.resized(partition)
            self.reconsider(partition.name, now_ns)
        if changed:
            self.places.changed()
        return changed

    def lost(self, name: str, now_ns: int, *, is_node_lost: bool = False) -> None:
        """Record that a partition's worker is gone; a separate event follows for each of its batches."""
        self.fleet.lost(name, now_ns)
        partition = self.fleet.partitions[name]
        for batch in (*partition.batches[:1], *partition.suspended):
            batch.suspect = True
            batch.is_node_lost = is_node_lost
        self.reconsider(name, now_ns)
        self.wakeups.check_ns = now_ns

    # -- batches

    def end(self, identity: int, now_ns: int) -> Batch:
        """Remove a batch that ended from its partition, and return it."""
        batch = self.batches.pop(identity)
        if batch.is_suspended:
            batch.partition.suspended.remove(batch)
        else:
            self._leave_partition(batch, now_ns)
        model = self.models[batch.queue_key[0]]
        model.outstanding -= batch.rows
        model.under_way -= 1
        if model.config.policy.most_under_way:
            for queue in self._queues.of(model):
                self.wakeups.notify_all(queue, model, now_ns)
        if batch.is_extra:
            model.extra_rows -= batch.rows
        if model.batches % REFRESH_BATCHES == 0:
            outdate_pipelines(model)
            if model.batch_limits:
                raise_limits(model, now_ns)
        return batch

    def suspend(self, identity: int, now_ns: int) -> None:
        """Let a partition take other batches while the model of this one waits for other models."""
        batch = self.batches[identity]
        if not batch.is_suspended:
            self._leave_partition(batch, now_ns)
            batch.is_suspended = True
            batch.partition.suspended.append(batch)

    def _leave_partition(self, batch: Batch, now_ns: int) -> None:
        """Free the time of a partition that a batch has."""
        self.places.changed()
        self.instances.changed(now_ns)
        partition = batch.partition
        was_running = partition.batches[0] is batch
        partition.batches.remove(batch)
        self.second_batches.left(batch)
        if was_running:
            partition.idle_since_ns = now_ns
            if partition.overdue:
                self._stragglers.trust(partition)
        if not partition.batches:
            partition.free_at_ns = now_ns
            if self.second_batches.idle(now_ns):
                self.check_by(now_ns)
        elif was_running:
            self.second_batches.left(partition.batches[0])
            # The end of a batch on another node is known a way later, and what waited there began meanwhile.
            began_ns = max(now_ns - batch.way_ns, partition.batches[0].dispatched_ns)
            partition.free_at_ns = began_ns + sum(waiting.expected_ns for waiting in partition.batches)
        else:
            partition.free_at_ns -= batch.expected_ns
        group = partition.group
        assert group is not None, "a partition that had a batch has a group"
        run_queue = self.wakeups.run_queues[group]
        run_queue.partition_changed(partition)
        if self._sharing.accounts:
            self._sharing.ended(batch, now_ns)
        if run_queue.waiting and partition.ready:
            if self._sharing.accounts:  # others may be within their shares again
                self.wakeups.wake_run_queue(run_queue, now_ns)
            else:
                self.wakeups.wake_when_open(group, now_ns)
        elif run_queue.idle_wakeup_ns is not None:
            self.wakeups.wake_run_queue(run_queue, run_queue.idle_wakeup_ns)

    def drop_member(self, entry: Entry, batch: Batch, decisions: list[AnyDecision]) -> None:
        """Record that a running entry's request is settled; a batch whose requests are all settled is revoked."""
        batch.live -= 1
        self.mark_changed(batch.queue_key)
        if not batch.live and not batch.is_suspended and batch.partition.batches[0] is not batch:
            self._revoke(batch, decisions)

    def form(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Close every batch whose time has come; idle partitions choose before those that have a batch running."""
        self._formed_ns = now_ns
        wakeups, sharing = self.wakeups, self._sharing
        if wakeups.check_ns is not None and wakeups.check_ns <= now_ns:
            self._reoffer_changed(now_ns, decisions)
            self._check_overdue(now_ns)
            self._end_sequences(now_ns, decisions)
        items = wakeups.items
        while items and items[0][0] <= now_ns:
            due = wakeups.due(now_ns)
            if sharing.accounts:
                due = sharing.order(due, now_ns)
            for ahead in (False, True):
                for run_queue in due:
                    if run_queue.waiting:
                        self._form_in(run_queue, ahead, now_ns, decisions)
            for run_queue in due:
                if (next_ns := run_queue.next_ns()) is not None:
                    wakeups.wake_run_queue(run_queue, max(next_ns, now_ns + 1))
            if sharing.accounts:
                self._revoke_unstarted(decisions)
                sharing.wake_throttled(due, now_ns)
        if self.second_batches.next_ns is not None:
            self._revoke_second(now_ns, decisions)
        if self.competition.next_ns is not None:
            self._compete(now_ns, decisions)

    def _compete(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Run the rows of competing stages again that are due, where nothing else is to run."""
        for batch, config in self.competition.due(now_ns):
            while (copy := self.competition.copy(batch, config, now_ns)) is not None:
                host, entries = copy
                queue = self._queues.get(batch.queue_key)
                self.models[queue.model].outstanding += sum(map(_rows, entries))
                decisions.append(self._close(host, queue, entries, COMPETE, now_ns))
                assert host.group is not None, "an idle partition has a group"
                run_queue = self.wakeups.run_queues[host.group]
                if (next_ns := run_queue.next_ns()) is not None:
                    self.wakeups.wake_run_queue(run_queue, max(next_ns, now_ns + 1))
        if (next_ns := self.competition.next_ns) is not None:
            self.check_by(next_ns)

    def _revoke_second(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Revoke the second batches that are worth more elsewhere, or later."""
        for batch in self.second_batches.due(now_ns):
            batch.reforms = True
            self._revoke(batch, decisions)
        if (next_ns := self.second_batches.next_ns) is not None:
            self.check_by(next_ns)

    def _check_overdue(self, now_ns: int) -> None:
        """Give overdue partitions no more batches, and run elsewhere what can be in time there."""
        stragglers = self._stragglers
        for partition in stragglers.find(now_ns):
            partition.free_at_ns = now_ns + RESTART_NS
            assert partition.group is not None, "a partition that has a batch has a group"
            self.wakeups.run_queues[partition.group].partition_changed(partition)
            new = [batch for batch in partition.batches if not batch.copied]
            for batch in new:
                if copies := stragglers.copies(batch, now_ns):
                    self.retry(batch.queue_key, copies, now_ns)
                for copy in copies:
                    if copy.request.pipeline.evicts:
                        self.timeouts.plan(copy, now_ns + 1)
            if new:
                self.reconsider(partition.name, now_ns)
        if stragglers.next_ns is not None:
            self.check_by(stragglers.next_ns)

    def _revoke_unstarted(self, decisions: list[AnyDecision]) -> None:
        """Revoke the batches that have not started on throttled partitions."""
        for batch in self._sharing.take_unstarted():
            self._revoke(batch, decisions)

    def _revoke(self, batch: Batch, decisions: list[AnyDecision]) -> None:
        if not batch.revoking:
            batch.revoking = True
            self.second_batches.left(batch)
            decisions.append(RevokeBatch(batch.identity))

    def _form_in(self, run_queue: RunQueue, ahead: bool, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Close batches for the idle partitions of a group or, with `ahead`, for those about to be idle."""
        group = run_queue.group
        while run_queue.waiting:
            partition = first_opened(group, now_ns) if ahead else first_idle(group)
            if partition is None:
                return
            chosen = self._choose(run_queue, partition, now_ns)
            if chosen is None:
                return
            partition, queue, entries, reason, rule = chosen
            if reason is not RETRY:
                entries = self._on_time(partition, queue, entries, now_ns, decisions)
            if entries:
                decisions.append(self._close(partition, queue, entries, reason, now_ns, rule))

    def _choose(self, run_queue: RunQueue, partition: PartitionState, now_ns: int) -> Chosen | None:
        """Take the next batch from the most urgent queue that can be served now, for this or a better partition."""
        while (queue := run_queue.most_urgent()) is not None:
            model = self.models[queue.model]
            here = self._find_host(run_queue, queue, model, partition, now_ns)
            if here is None:
                continue
            if queue.retries:
                entries = queue.take_retry()
                self._offer_rest(queue, now_ns)
                return self._soonest_of(entries, queue, model, here, now_ns), queue, entries, RETRY, ""
            head = queue.head()
            reachable_ns = now_ns + self.hand_off_ns + model.quickest_ns + model.nearest_ns
            if head.stage_deadline_ns < reachable_ns and model.by_deadline and self._expire(queue, reachable_ns):
                run_queue.notify(queue)  # the new head may be less urgent
                continue
            chosen = self._by_rule_or_policy(run_queue, queue, head, model, here, now_ns)
            if chosen is not None:
                return chosen
        return None

    def _by_rule_or_policy(
        self,
        run_queue: RunQueue,
        queue: Queue,
        head: Entry,
        model: ModelState,
        here: PartitionState,
        now_ns: int,
    ) -> Chosen | None:
        """Take a batch as the rule of the plan wants it, else as the policy does; or defer the queue."""
        stage, rule = head.request.pipeline.stages[head.stage], ""
        # Queues that may run on some partitions only, and those that are not ordered by deadline, have no rules.
        if stage.rule is not None and stage.model is model and model.by_deadline and not (queue.host or queue.only):
            ruled = self.rules.choose(queue, head, stage, model, here, now_ns)
            if isinstance(ruled, Hold):
                run_queue.defer(queue, max(ruled.until_ns, now_ns + 1), ruled.wanted_rows)
                if ruled.for_idle:
                    run_queue.wait_for_idle(queue, 0)
                return None
            if ruled is not None:
                entries = queue.take(ruled.rows)
                self._offer_rest(queue, now_ns)
                return ruled.partition, queue, entries, ruled.reason, ruled.rule
            rule = self.rules.fallback
        if (here.linked or head.request.is_linked) and model.by_deadline and queue.host is None:
            turn = in_turn(queue, self._queues, model, here, now_ns)
            if turn is not None:
                return self._by_plan(run_queue, queue, turn, rule, now_ns)
        host = here if queue.host is not None else self._host_of(head, model, here, now_ns)
        estimate = model.estimates[host.kind]
        choice = self._closing.choose(queue, model, host, now_ns)
        rows = choice.rows
        if not rows:
            if choice.until_ns <= now_ns:
                raise wrong_choice(model, f"asks again at {choice.until_ns} ns; expected later than {now_ns} ns")
            run_queue.defer(queue, choice.until_ns, choice.wanted_rows)
            if choice.after_idle_ns is not None:
                run_queue.wait_for_idle(queue, choice.after_idle_ns)
            return None
        if not 0 < rows <= estimate.max_rows:
            _check_rows(choice, max(estimate.max_rows, head.rows), model)
        takes = partial(self._takes, queue, model, now_ns)
        chosen = self._chooser.choose(queue, head, model, choice, host, takes, now_ns)
        if isinstance(chosen, int):
            run_queue.defer(queue, max(chosen, now_ns + 1))
            run_queue.wait_for_idle(queue, 0)
            return None
        host, most, from_ns = chosen
        if model.by_deadline:
            most = self.places.affordable_rows(host, queue, most, from_ns, now_ns)
        entries = queue.take(most, from_ns)
        self._offer_rest(queue, now_ns)
        return host, queue, entries, choice.reason, rule

    def _by_plan(
        self, run_queue: RunQueue, queue: Queue, turn: PlannedTurn | int, rule: str, now_ns: int
    ) -> Chosen | None:
        """Take the planned batch whose turn it is, or defer the queue until it is its turn."""
        if isinstance(turn, PlannedTurn):
            queue.remove(turn.entries)
            self._offer_rest(queue, now_ns)
            return turn.partition, queue, turn.entries, IDLE, rule
        run_queue.defer(queue, turn)
        run_queue.wait_for_idle(queue, 0)
        return None

    def _host_of(self, head: Entry, model: ModelState, here: PartitionState, now_ns: int) -> PartitionState:
        """The partition that an entry has its place on, if that is as free as its equal `here`.

        If not, an equal for which nothing is planned: what is planned for one idle partition is no reason to wait
        while another one has nothing to do. A sequence stays where its state is.
        """
        place = head.place
        host = here if place is None else _planned_host(place[0].partition, here)
        if not host.planned or model.config.sequences is not None or (place is not None and place[0].partition is host):
            return host
        assert host.group is not None, "a partition that takes a batch has a group"
        free = first_free(host.group, now_ns, is_idle)
        if free is None:
            return host
        return free if free.node is None or head.follows else self.places.locality.nearest_free(model, free, now_ns)

    def _soonest_of(
        self, entries: list[Entry], queue: Queue, model: ModelState, here: PartitionState, now_ns: int
    ) -> PartitionState:
        """The partition for entries to be retried: `here`, unless they would be late there and end sooner elsewhere."""
        if queue.host is not None or len(model.groups) == 1:
            return here
        rows = sum(map(_rows, entries))
        due_ns = min([entry.stage_deadline_ns for entry in entries])

        def end_ns(host: PartitionState) -> int:
            took_ns = model.estimates[host.kind].expected_ns(rows) + host.way_ns(model, rows)
            return host.start_ns(now_ns) + self.hand_off_ns + took_ns

        if end_ns(here) <= due_ns:
            return here
        groups = [each for each in model.groups if queue.only in (None, (each.kind, each.price))]
        others = [
            host
            for group in groups
            if group is not here.group and rows <= model.estimates[group.kind].max_rows
            for host in [first_available(group, now_ns)]
            if host is not None
        ]
        return min([here, *others], key=end_ns)

    def _find_host(
        self, run_queue: RunQueue, queue: Queue, model: ModelState, partition: PartitionState, now_ns: int
    ) -> PartitionState | None:
        """The partition for a batch of a queue: `partition`, or the one that has its sequences.

        None if that one may not be given a batch yet, or the batch is left to other kinds of partitions.
        """
        host = queue.host
        if host is None:
            if model.batch_limits and is_left_to_others(model, queue, run_queue.group.kind):
                self._leave_to_others(run_queue, queue, now_ns)
                return None
            return partition
        if host is partition or _is_open(host, now_ns):
            return host
        if host.group is run_queue.group:  # else it has moved, and its new group was offered the queue
            until_ns = host.opening_ns if now_ns < host.opening_ns < INFINITE_NS else host.free_at_ns
            run_queue.defer(queue, max(until_ns, now_ns + HOST_CHECK_NS), NO_WAITERS)
            run_queue.wait_for_idle(queue, 0)
        return None

    def _takes(self, queue: Queue, model: ModelState, now_ns: int, partition: PartitionState) -> bool:
        """True if a partition would take a batch of a queue now."""
        return self._closing.choose(queue, model, partition, now_ns).rows > 0

    def _leave_to_others(self, run_queue: RunQueue, queue: Queue, now_ns: int) -> None:
        """Leave the first batch of a queue to other kinds, since this one has no memory for it.

        A batch whose cost is limited goes there, too, since it could run nowhere else.
        """
        if queue.only is None:
            run_queue.defer(queue, now_ns + RESTART_NS)
            return
        self._unbind_first(queue, now_ns)
        run_queue.notify(queue)
        self._queues.forget_if_empty(queue)

    def _expire(self, queue: Queue, reachable_ns: int) -> bool:
        """Move the entries that are late in any case behind all others, with no time kept for them; True if any are."""
        late = queue.expire(reachable_ns)
        for entry in late:
            self.places.release(entry.request, entry.stage)
        return bool(late)

    def _offer_rest(self, queue: Queue, now_ns: int) -> None:
        """Offer the entries that are left in a queue to all groups, after a batch was taken."""
        if queue.live or queue.retries:
            wakeups = self.wakeups
            model = self.models[queue.model]
            for group in model.groups:
                run_queue = wakeups.run_queues[group]
                if (queue in run_queue.ready and model.by_deadline) or (
                    queue.wanted_rows and queue in run_queue.deferred
                ):
                    continue
                wakeups.notify(queue, group, now_ns)

    def _on_time(
        self, partition: PartitionState, queue: Queue, entries: list[Entry], now_ns: int, decisions: list[AnyDecision]
    ) -> list[Entry]:
        """Evict entries that would be late; return the rest."""
        if not any(entry.request.pipeline.evicts for entry in entries):
            return entries
        model = self.models[queue.model]
        rows = sum(map(_rows, entries))
        took_ns = model.estimates[partition.kind].expected_ns(rows) + partition.way_ns(model, rows)
        done_ns = partition.start_ns(now_ns) + self.hand_off_ns + took_ns
        late_ns = {
            entry.request: done_ns - entry.stage_deadline_ns
            for entry in entries
            if entry.request.pipeline.evicts and entry.stage_deadline_ns < done_ns and not entry.request.settled
        }
        for request in late_ns:
            self._evict(request, decisions)
        for request, ns in late_ns.items():
            if request.waits_ns:
                self.places.keep_more(request, ns, now_ns)
        model.outstanding -= sum(entry.rows for entry in entries if entry.request.settled)
        self._queues.forget_if_empty(queue)
        return [entry for entry in entries if not entry.request.settled]

    def _close(
        self,
        partition: PartitionState,
        queue: Queue,
        entries: list[Entry],
        reason: ReleaseReason,
        now_ns: int,
        rule: str = "",
    ) -> DispatchBatch:
        model = self.models[queue.model]
        rows = sum(map(_rows, entries))
        expected_ns = model.estimates[partition.kind].expected_ns(rows)
        kind, identity = partition.kind, self._next_batch
        way_ns = 0 if partition.node is None else _way_ns(partition, model, entries, rows)
        batch = Batch(
            identity,
            queue.key,
            partition,
            kind,
            entries,
            rows,
            expected_ns,
            now_ns,
            len(entries),
            is_extra=reason is COMPETE,
            way_ns=way_ns,
            rule=rule,
        )
        self._next_batch += 1
        self.batches[identity] = batch
        for entry in entries:
            entry.batch = batch
        # An idle partition starts now, even if it is throttled and `free_at_ns` is when it would be within its share.
        starts_ns = partition.start_ns(now_ns) if partition.batches else now_ns
        free_ns = starts_ns + expected_ns
        self.places.started(partition, queue, entries, now_ns, free_ns, free_ns + way_ns)
        partition.free_at_ns = free_ns
        partition.batches.append(batch)
        if len(partition.batches) == IN_FLIGHT and reason is not RETRY and reason is not COMPETE:
            self.second_batches.queued(batch)
        if reason is RETRY or reason is COMPETE:
            if any(entry.copies is not None for entry in entries):
                mark_copied(batch)
        elif (compete := _stage(entries[0]).config.compete) is not None:
            self.competition.watch(batch, compete, starts_ns)
        assert partition.group is not None, "a partition that takes a batch has a group"
        if self._stragglers.is_idle and (partition.group.only is None or len(model.groups) > 1):
            self.check_by(self._stragglers.watch(now_ns))
        self.wakeups.run_queues[partition.group].partition_changed(partition)
        if self._sharing.accounts:
            self._sharing.started(partition, now_ns)
        if batch.is_extra:
            model.extra_rows += rows
        model.peak_rows = max(model.outstanding - model.extra_rows, model.peak_rows * PEAK_DECAY)
        model.typical_rows += TYPICAL_WEIGHT * (rows - model.typical_rows)
        model.batches += 1
        model.under_way += 1
        model.last_dispatch_ns = now_ns
        if queue.host is partition and model.config.instances is not None:
            self.instances.started(partition, queue)
        self._queues.forget_if_empty(queue)
        members = tuple([Member(each.request.identity, each.stage, each.rows, each.row_index) for each in entries])
        sequences = () if model.config.sequences is None else self.sequences.rows(entries)
        padded_rows = model.padded_rows(rows) if model.run_sizes else 0
        free_ns = partition.free_at_ns
        return DispatchBatch(
            identity, partition.name, queue.model, rows, members, reason, free_ns, sequences, padded_rows
        )

    def forget(self, pipeline: PipelineState) -> None:
        """Forget a pipeline that is gone."""
        for stage in pipeline.stages:
            self._chooser.forget(stage)
            if stage.model is not None and stage.model.pipelines == [pipeline]:
                self.sequences.forget(stage.model.config.key)
                self.competition.forget(stage.model.config.key)
        self.places.forget(pipeline)
        self.rules.fallbacks.pop(pipeline.config.name, None)

    def queue_depths(self) -> dict[str, int]:
        """Requests waiting, by model key."""
        return {key: self.queue_depth(key) for key in self.models}

    def queue_depth(self, model: str) -> int:
        """Requests waiting for a model, by its key; 0 for an unknown one."""
        return sum(queue.waiting for queue in self._queues.by_model.get(model, {}).values())

    def queued(self, model: str) -> tuple[int, int]:
        """The requests and the rows that wait for a model; none for one that is not known."""
        requests = rows = 0
        for queue in self._queues.by_model.get(model, {}).values():
            requests += queue.waiting
            rows += queue.rows
        return requests, rows


def _stage(entry: Entry) -> StageState:
    """The stage that an entry is of."""
    return entry.request.pipeline.stages[entry.stage]


def _is_open(partition: PartitionState, now_ns: int) -> bool:
    """True if a partition may be given a batch now."""
    if not partition.ready or partition.throttled or partition.overdue:
        return False
    return not partition.batches or partition.opening_ns <= now_ns


def _way_ns(partition: PartitionState, model: ModelState, entries: list[Entry], rows: int) -> int:
    """The time that a batch and its answers are on their way, without the inputs that its node has already."""
    there = 0
    if partition.keeps_outputs:
        for entry in entries:
            request = entry.request
            config = request.pipeline.stages[entry.stage].config
            if config.source_bytes and all(_is_kept(request.runs[each], partition) for each in config.sources):
                there += entry.rows * config.source_bytes
    return partition.way_ns(model, rows) - int(partition.ns_per_byte * there)


def _is_kept(run: StageRun | None, partition: PartitionState) -> bool:
    """True if a partition's node has the outputs of a stage."""
    return run is not None and run.kept_on is partition.node


def _planned_host(host: PartitionState, partition: PartitionState) -> PartitionState:
    """The partition of a place, if it is as free as its equal `partition`."""
    is_free = host.group is partition.group and host.ready and not host.batches and not host.throttled
    return host if is_free else partition


def _check_rows(choice: Choice, most: int, model: ModelState) -> None:
    """Raise ConfigError unless a batch has a number of rows that can be run; one request is never split."""
    if not 0 < choice.rows <= most:
        expected = f"at most {most}" if choice.rows > 0 else "at least 0"
        raise wrong_choice(model, f"{choice.rows} rows; expected {expected}")


def leave_batch(entry: Entry) -> None:
    """Record that an entry no longer runs."""
    entry.batch = None


def _set_free(partition: PartitionState, at_ns: int) -> None:
    """Change when an idle partition is free."""
    partition.free_at_ns = at_ns
    note_change(partition)
