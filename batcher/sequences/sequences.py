"""Sequences: which slot of which partition each has, and which of its requests may run.

A slot is a place for the state of one sequence in the worker of a partition. The scheduler only decides about slots:
the worker keeps what is in them. With Triton's direct strategy a slot is also the row of the sequence in batches.

A request of a sequence waits in the queue of its model that is offered to no partition, until its sequence has a slot
and the requests before it have their answers. Then it moves to the queue of the partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.interface.config import SequenceConfig
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.queues.priority_queue import EntryRefusedError
from sluice.batcher.queues.queue import Queue
from sluice.batcher.state import Entry, ModelState, PartitionState
from sluice.models.sequence_batching import SequenceRow, SequenceStep
from sluice.models.spec import public_key


@dataclass(slots=True, eq=False)
class OpenSequence:
    """One sequence: its requests run in the order in which they came, one at a time."""

    id: int | str
    host: PartitionState | None = None  # the partition with its slot; None while it waits for one
    slot: int = -1
    has_end: bool = False  # its last request has come
    current: Entry | None = None  # may run: it is in the queue of the host, or in a batch
    waiting: deque[Entry] = field(default_factory=deque)  # come after it


class _Host:
    """The slots of one partition for one model: those that were given back are taken again first, the lowest first."""

    __slots__ = ("_free", "used")

    def __init__(self) -> None:
        self._free: list[int] = []
        self.used: dict[int, OpenSequence] = {}

    def take(self, sequence: OpenSequence) -> int:
        """Give a sequence the lowest free slot."""
        slot = heappop(self._free) if self._free else len(self.used)
        self.used[slot] = sequence
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot."""
        del self.used[slot]
        heappush(self._free, slot)


class _Table:
    """The sequences of one model.

    `open` are those that may get further requests, by id. `backlog` are those that wait for a slot, in the order in
    which they began. `resting` are those without requests, since when, the longest first.
    """

    __slots__ = ("backlog", "config", "hosts", "model", "open", "resting")

    def __init__(self, model: ModelState, config: SequenceConfig) -> None:
        self.model = model
        self.config = config
        self.hosts: dict[PartitionState, _Host] = {}
        self.open: dict[int | str, OpenSequence] = {}
        self.backlog: dict[OpenSequence, None] = {}
        self.resting: dict[OpenSequence, int] = {}


class Sequences:
    """The sequences of all models.

    `movable` are entries that may run from now on and are to be moved to the queue of their partition, and `ended`
    those whose sequence ended before they ran. The dispatcher empties both.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._tables: dict[str, _Table] = {}
        self._of: dict[Entry, OpenSequence] = {}
        self.movable: list[Entry] = []
        self.ended: list[tuple[Entry, Outcome, str]] = []

    # -- requests

    def enter(self, entry: Entry, model: ModelState, now_ns: int) -> Queue:
        """Add a request to its sequence; returns the queue that it is to wait in.

        Raises EntryRefusedError for one that belongs to no sequence, in Triton's words.
        """
        table = self._table(model)
        step = _checked(entry, table, now_ns)
        sequence = table.open.get(step.id)
        if sequence is None:
            sequence = table.open[step.id] = OpenSequence(step.id)
            table.backlog[sequence] = None
            if len(table.backlog) == 1:
                self._find_slot(table, sequence)
        if step.end:
            del table.open[step.id]
            sequence.has_end = True
        table.resting.pop(sequence, None)
        self._of[entry] = sequence
        if sequence.host is None or sequence.current is not None:
            sequence.waiting.append(entry)
            return self._fleet.queues.default[model]
        sequence.current = entry
        return self._fleet.queues.of_host(model.config.key, sequence.host)

    def queue_of(self, entry: Entry) -> Queue:
        """The queue of the partition that an entry of `movable` is to run on."""
        host = self._of[entry].host
        assert host is not None, "a sequence without a slot has no request that may run"
        return self._fleet.queues.of_host(entry.queue_key[0], host)

    def rows(self, entries: Sequence[Entry]) -> tuple[SequenceRow, ...]:
        """The slots of the entries of a batch, and their parts in their sequences."""
        return tuple([SequenceRow(self._of[entry].slot, _step(entry)) for entry in entries])

    def ran(self, entries: Iterable[Entry], now_ns: int) -> None:
        """Record that entries have run, or failed: the next requests of their sequences may run."""
        for entry in entries:
            sequence = self._of.pop(entry, None)
            table = self._tables.get(entry.queue_key[0])
            if sequence is not None and table is not None:
                sequence.current = None
                if sequence.waiting:
                    self._run_next(sequence)
                elif sequence.has_end:
                    self._free(table, sequence)
                    self._assign(table)
                else:
                    table.resting[sequence] = now_ns

    def withdrawn(self, entry: Entry) -> None:
        """Record that an entry is given up before it ran, which ends its sequence: the state would lack its part."""
        sequence = self._of.pop(entry, None)
        if sequence is not None and entry.queue_key[0] in self._tables:
            if sequence.current is entry:
                sequence.current = None
            else:
                sequence.waiting.remove(entry)
            table = self._tables[entry.queue_key[0]]
            reason = f"a request of sequence {sequence.id} before it did not run"
            self._end(table, sequence, Outcome.CANCELLED_CLIENT, reason)
            self._assign(table)

    def knows(self, entry: Entry) -> bool:
        """True if the sequence of an entry that has not run goes on."""
        return entry in self._of

    # -- partitions

    def is_used(self, partition: str, key: str) -> bool:
        """True if sequences of a model go on on a partition, which would end if the model were unloaded."""
        table = self._tables.get(key)
        return table is not None and any(host.used for each, host in table.hosts.items() if each.name == partition)

    def sync(self) -> None:
        """End the sequences whose worker no longer holds their model, and use the slots of new ones."""
        for table in self._tables.values():
            key = table.model.config.key
            for host in [each for each in table.hosts if not (each.ready and key in each.models)]:
                self._lose(table, host)
            self._assign(table)

    def replaced(self, host: PartitionState) -> None:
        """End the sequences of a partition that has another worker."""
        for table in self._tables.values():
            if host in table.hosts:
                self._lose(table, host)

    def lost(self, key: str, host: PartitionState) -> None:
        """End the sequences of one model on a partition, whose worker has lost their states."""
        table = self._tables.get(key)
        if table is not None and host in table.hosts:
            self._lose(table, host)
            self._assign(table)

    def forget(self, key: str) -> None:
        """Forget the sequences of a model that gets no requests any more."""
        self._tables.pop(key, None)

    # -- time

    @property
    def next_ns(self) -> int | None:
        """When the first idle sequence ends; None while none is idle."""
        return min((_due_ns(table) for table in self._tables.values() if table.resting), default=None)

    def expire(self, now_ns: int) -> None:
        """End the sequences that have been idle for too long; those that wait get their slots."""
        for table in self._tables.values():
            if not table.resting or _due_ns(table) > now_ns:
                continue
            while table.resting and _due_ns(table) <= now_ns:
                self._end(table, next(iter(table.resting)), Outcome.CANCELLED_CLIENT, "")
            self._assign(table)

    # -- within

    def _table(self, model: ModelState) -> _Table:
        table = self._tables.get(model.config.key)
        if table is None:
            config = model.config.sequences
            assert config is not None, "only models with sequences have a table"
            table = self._tables[model.config.key] = _Table(model, config)
        return table

    def _find_slot(self, table: _Table, sequence: OpenSequence) -> bool:
        """Give the first sequence of the backlog a slot where the fewest are in use; False if there is none."""
        key = table.model.config.key
        best: PartitionState | None = None
        least = table.config.slots
        for host in table.model.partitions:
            if host.ready and key in host.models:
                known = table.hosts.get(host)
                used = 0 if known is None else len(known.used)
                if used < least:
                    best, least = host, used
        if best is None:
            return False
        del table.backlog[sequence]
        if best not in table.hosts:
            table.hosts[best] = _Host()
        sequence.host = best
        sequence.slot = table.hosts[best].take(sequence)
        return True

    def _assign(self, table: _Table) -> None:
        """Give slots to those that wait for one."""
        while table.backlog:
            sequence = next(iter(table.backlog))
            if not self._find_slot(table, sequence):
                return
            self._run_next(sequence)

    def _run_next(self, sequence: OpenSequence) -> None:
        """Let the next request of a sequence run."""
        sequence.current = sequence.waiting.popleft()
        self.movable.append(sequence.current)

    def _free(self, table: _Table, sequence: OpenSequence) -> None:
        if sequence.host is not None and sequence.host in table.hosts:
            table.hosts[sequence.host].give_back(sequence.slot)

    def _end(self, table: _Table, sequence: OpenSequence, outcome: Outcome, reason: str) -> None:
        """End a sequence early; those of its requests that have not run fail."""
        if table.open.get(sequence.id) is sequence:
            del table.open[sequence.id]
        table.backlog.pop(sequence, None)
        table.resting.pop(sequence, None)
        current = sequence.current
        runs = current is not None and not current.queued and current.retry_group is None
        if current is not None and not runs:
            sequence.waiting.appendleft(current)
        for entry in sequence.waiting:
            self._of.pop(entry, None)
            self.ended.append((entry, outcome, reason))
        sequence.waiting.clear()
        self.movable = [entry for entry in self.movable if entry in self._of]
        if runs and sequence.host in table.hosts:
            sequence.has_end = True  # its slot is free once the request has run
            return
        if current is not None:
            self._of.pop(current, None)
        self._free(table, sequence)

    def _lose(self, table: _Table, host: PartitionState) -> None:
        slots = table.hosts.pop(host)
        for sequence in list(slots.used.values()):
            reason = f"the state of sequence {sequence.id} is gone; start the sequence again"
            self._end(table, sequence, Outcome.FAILED_WORKER_LOST, reason)


def _step(entry: Entry) -> SequenceStep:
    step = entry.request.arrival.sequence
    assert step is not None, "a request in a sequence says so"
    return step


def _checked(entry: Entry, table: _Table, now_ns: int) -> SequenceStep:
    """The part of a request in its sequence; raises EntryRefusedError."""
    name = public_key(table.model.config.key).rpartition(":")[0]
    step, problem = entry.request.arrival.sequence, ""
    if entry.rows > 1:
        problem = "must specify batch-size 1 due to requirements of sequence batcher"
    elif step is None or not step.id:
        problem = "must specify a non-zero or non-empty correlation ID"
    if problem or step is None:
        raise _refused(f"inference request to model '{name}' {problem}")
    config = table.config
    datatype = "BYTES" if isinstance(step.id, str) else "UINT64"
    if config.id_input and (datatype == "BYTES") != (config.id_datatype == "BYTES"):
        raise _refused(
            f"sequence batching control '{config.id_input}' data-type is '{datatype}', but model '{name}' expects "
            f"'{config.id_datatype}'",
        )
    if not step.start and step.id not in table.open:
        raise _refused(
            f"inference request for sequence {step.id} to model '{name}' must specify the START flag on the first "
            "request of the sequence",
        )
    expires_ns = entry.request.arrival.expires_ns
    if expires_ns and expires_ns <= now_ns:
        raise EntryRefusedError(Outcome.EVICTED_DEADLINE, "")
    return step


def _refused(reason: str) -> EntryRefusedError:
    return EntryRefusedError(Outcome.REJECTED_SEQUENCE, reason)


def _due_ns(table: _Table) -> int:
    return next(iter(table.resting.values())) + table.config.idle_ns
