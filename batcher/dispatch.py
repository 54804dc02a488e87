"""Dispatch: which queue's batch goes to which partition, and when to look again."""

from collections.abc import Callable, Iterable

from batcher.admission import UNAVAILABLE_NS
from batcher.config import SchedulerSpec
from batcher.decisions import AnyDecision, DispatchBatch, Member, ReleaseReason
from batcher.estimate import LatencyEstimate
from batcher.events import PartitionReady
from batcher.lifecycle import Batch, Entry, Request, StageRun
from batcher.placement import IN_FLIGHT, ModelState, PartitionState
from batcher.plan import StageState
from batcher.policy.select import select_policy
from batcher.progress import batch_key_for
from batcher.queue import Queue
from models.pipeline import Late
from models.profile import LatencyTable

REFRESH_BATCHES = 16
"""Predictions of a model's pipelines are renewed after this many of its batches."""


class Dispatcher:
    """Owns partitions, models, queues and batches; forms batches when asked to.

    `wake_ns` is when `form` is to be called next (None: when something has happened). `unserved` are the models
    that no partition that is up holds; `attentive` says that a partition could take a batch which its policy did not
    close yet. `evict` is called for requests whose deadline a batch would miss.
    """

    def __init__(self, spec: SchedulerSpec, evict: Callable[[Request, list[AnyDecision]], None]) -> None:
        self.hand_off_ns = spec.limits.hand_off_ns
        self.models = {
            config.key: ModelState(config, select_policy(config.policy, spec.limits)) for config in spec.models
        }
        self.partitions = {config.name: PartitionState(config, spec.limits.hand_off_ns) for config in spec.partitions}
        self.waiting: dict[Queue, None] = {}
        self.batches: dict[int, Batch] = {}
        self.wake_ns: int | None = None
        self.unserved = list(self.models.values())
        self.attentive = False
        self._evict = evict
        self._evicting = any(pipeline.late is Late.EVICT for pipeline in spec.pipelines)
        self._tables: dict[tuple[str, str], LatencyTable] = {}
        self._next_batch = 1
        self._next_sequence = 1

    def wake(self, at_ns: int) -> None:
        """Make sure that `form` is called at `at_ns` or before."""
        if self.wake_ns is None or at_ns < self.wake_ns:
            self.wake_ns = at_ns

    # -- entries

    def enqueue(self, request: Request, stage: StageState, run: StageRun | None, now_ns: int) -> Entry:
        """Queue the rows of a request for a stage, and wake up when a partition could take them."""
        model = stage.model
        assert model is not None, "a combiner is not queued"
        queue = stage.queue
        if queue is None:
            queue = self._queue_of(model, batch_key_for(request, stage))
        stage_deadline_ns = request.deadline_ns - stage.tail_ns
        self._next_sequence += 1
        rows, row_index = (request.rows, None) if run is None else (run.rows, run.row_index)
        entry = Entry(request, stage.index, rows, row_index, queue, stage_deadline_ns, now_ns, self._next_sequence)
        request.entries.append(entry)
        # With entries before this one, it is known already when a partition opens.
        look = self.attentive or not queue.live
        if look:
            self.waiting[queue] = None
        queue.push(entry, stage_deadline_ns if model.by_deadline else now_ns)
        model.outstanding += rows
        if model.outstanding > model.peak:
            model.peak = model.outstanding
        if look and (self.wake_ns is None or self.wake_ns > now_ns):
            self._wake_for(model, now_ns)
        return entry

    def _queue_of(self, model: ModelState, batch_key: str) -> Queue:
        queue = model.queues.get(batch_key)
        if queue is None:
            queue = model.queues[batch_key] = Queue(model.config.key, batch_key)
        return queue

    def _wake_for(self, model: ModelState, now_ns: int) -> None:
        if not model.partitions:
            self.wake_ns = now_ns
        for host in model.partitions:
            batches = len(host.batches)
            if not batches or not host.ready:
                self.wake_ns = now_ns
                return
            if batches < IN_FLIGHT:
                self.wake(max(host.free_at_ns - host.hand_off_ns, now_ns))

    def withdraw(self, entry: Entry) -> None:
        """Take an entry that waits out again."""
        queue = entry.queue
        queue.discard(entry)
        model = self.models[queue.model]
        model.outstanding -= entry.rows
        self._forget_if_empty(queue, model)

    def retry(self, queue: Queue, group: list[Entry], now_ns: int) -> None:
        """Have the entries dispatched again as one batch of their own."""
        if not group:
            return
        model = self.models[queue.model]
        # The queue may have been forgotten while its last batch ran; what is pushed later must meet this one.
        queue = model.queues.setdefault(queue.batch_key, queue)
        self.waiting[queue] = None
        queue.retry(group)
        model.outstanding += sum(entry.rows for entry in group)
        self._wake_for(model, now_ns)

    def _forget_if_empty(self, queue: Queue, model: ModelState) -> None:
        if not queue:
            self.waiting.pop(queue, None)
            if queue.batch_key:
                # Keys come from requests' shapes: keeping a queue for every one ever seen would grow without bound.
                model.queues.pop(queue.batch_key, None)

    # -- partitions

    def ready(self, event: PartitionReady, now_ns: int) -> None:
        """A partition's worker is up with these models."""
        partition = self.partitions[event.partition]
        partition.ready = True
        partition.lost_ns = None
        partition.idle_since_ns = now_ns
        for key in partition.models - event.tables.keys():
            self.models[key].partitions.remove(partition)
        for key, table in event.tables.items():
            model = self.models[key]
            if partition not in model.partitions:
                model.partitions.append(partition)
            self._learn(model, partition.kind, table)
        changed = partition.models | event.tables.keys()
        partition.models = frozenset(event.tables)
        self._changed(changed)
        self.wake(now_ns)

    def _learn(self, model: ModelState, kind: str, table: LatencyTable) -> None:
        """Take in a table; of two for the same kind the faster cells count, since noise only ever slows."""
        known = self._tables.get((model.config.key, kind))
        if known is not None:
            if [size for size, _ in known.cells] == [size for size, _ in table.cells]:
                faster = (min(a, b) for a, b in zip(known.cells, table.cells, strict=True))
                table = LatencyTable(tuple(faster))
            if table == known:
                return
        self._tables[model.config.key, kind] = table
        model.estimates[kind] = LatencyEstimate(table, model.config.max_batch, self.hand_off_ns)

    def lost(self, name: str, now_ns: int) -> None:
        """A partition's worker is gone; its batches fail one by one in events of their own."""
        partition = self.partitions[name]
        partition.ready = False
        partition.lost_ns = now_ns
        if partition.batches:
            partition.batches[0].suspect = True
        self._changed(partition.models)
        self.wake(now_ns)

    def _changed(self, keys: Iterable[str]) -> None:
        self.unserved = [model for model in self.models.values() if not any(host.ready for host in model.partitions)]
        for key in keys:
            for pipeline in self.models[key].pipelines:
                pipeline.stale = True
                pipeline.degraded = any(
                    stage.model is not None
                    and not (stage.model.partitions and all(host.ready for host in stage.model.partitions))
                    for stage in pipeline.stages
                )

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
        if self.waiting:
            self.wake(now_ns)
        return batch

    def form(self, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Close every batch whose time has come; idle partitions choose before those that have a batch running."""
        self.attentive = False
        for ahead in (False, True):
            for partition in self.partitions.values():
                while self.waiting and bool(partition.batches) == ahead:
                    open_ns = partition.open_at_ns(now_ns)
                    if open_ns is None:
                        break
                    if open_ns > now_ns:
                        self.wake(open_ns)
                        break
                    chosen = self._choose(partition, now_ns)
                    if chosen is None:
                        self.attentive = True
                        break
                    queue, entries, reason = chosen
                    if self._evicting and reason is not ReleaseReason.RETRY:
                        entries = self._on_time(partition, queue, entries, now_ns, decisions)
                    if entries:
                        decisions.append(self._close(partition, queue, entries, reason, now_ns))

    def _choose(self, partition: PartitionState, now_ns: int) -> tuple[Queue, list[Entry], ReleaseReason] | None:
        """What this partition should run now, if anything: of all queues, the one whose head is the most urgent."""
        best: tuple[tuple[int, int, int], Queue, int, ReleaseReason] | None = None
        for queue in list(self.waiting):
            if queue.model not in partition.models:
                continue
            model = self.models[queue.model]
            if queue.retries:
                return queue, queue.take_retry(), ReleaseReason.RETRY
            choice = model.policy.choose(queue, model, partition, model.estimates[partition.kind], now_ns)
            if choice.rows:
                head = queue.head()
                urgency = (head.stage_deadline_ns, -head.stage, head.sequence)
                if best is None or urgency < best[0]:
                    best = (urgency, queue, choice.rows, choice.reason)
            elif choice.until_ns is not None:
                self.wake(max(choice.until_ns, now_ns + 1))
        if best is None:
            return None
        _, queue, rows, reason = best
        return queue, queue.take(rows), reason

    def _on_time(
        self, partition: PartitionState, queue: Queue, entries: list[Entry], now_ns: int, decisions: list[AnyDecision]
    ) -> list[Entry]:
        """The entries less those to be evicted rather than answered late, as they would be in this batch."""
        if not any(entry.request.evicts for entry in entries):
            return entries
        model = self.models[queue.model]
        rows = sum(entry.rows for entry in entries)
        service_ns = model.estimates[partition.kind].service_ns(rows)
        done_ns = partition.start_ns(now_ns) + self.hand_off_ns + service_ns
        for entry in entries:
            if entry.request.evicts and entry.stage_deadline_ns < done_ns and not entry.request.settled:
                self._evict(entry.request, decisions)
        model.outstanding -= sum(entry.rows for entry in entries if entry.request.settled)
        self._forget_if_empty(queue, model)
        return [entry for entry in entries if not entry.request.settled]

    def _close(
        self, partition: PartitionState, queue: Queue, entries: list[Entry], reason: ReleaseReason, now_ns: int
    ) -> DispatchBatch:
        model = self.models[queue.model]
        members = []
        rows = 0
        for entry in entries:
            request = entry.request
            request.running += 1
            if request.committed:
                request.uncommit(entry.stage)
            members.append(Member(request.identity, entry.stage, entry.rows, entry.row_index))
            rows += entry.rows
        median_ns = model.estimates[partition.kind].median_ns(rows)
        batch = Batch(self._next_batch, queue, partition, entries, rows, median_ns, now_ns, len(entries))
        for entry in entries:
            entry.batch = batch
        self._next_batch += 1
        self.batches[batch.identity] = batch
        partition.free_at_ns = partition.start_ns(now_ns) + median_ns
        partition.batches.append(batch)
        model.dispatched(rows)
        self._forget_if_empty(queue, model)
        return DispatchBatch(batch.identity, partition.name, queue.model, rows, tuple(members), reason)

    def abandoned(self, now_ns: int) -> list[Entry]:
        """Entries of models whose workers have been gone for too long; wakes up again for those that may return."""
        entries: list[Entry] = []
        for model in self.unserved:
            gone_ns = max(
                (now_ns if host.lost_ns is None else host.lost_ns for host in model.partitions),
                default=now_ns - UNAVAILABLE_NS,
            )
            for queue in filter(None, model.queues.values()):
                if now_ns - gone_ns < UNAVAILABLE_NS:
                    self.wake(gone_ns + UNAVAILABLE_NS)
                    break
                entries += queue.entries()
                entries += (entry for group in queue.retries for entry in group)
        return entries
