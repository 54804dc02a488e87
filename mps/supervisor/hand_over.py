"""The hand-over of a partition from a worker that serves to one on another share."""

import asyncio
from collections.abc import Mapping, Set

import msgspec

from sluice.models.errors import PartitionError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.ipc.messages import AddModel, DropModel, LoadResult, WorkerReady
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, Partition
from sluice.mps.supervisor.worker_slot import WorkerSlot

TablesByKind = Mapping[tuple[str, str], LatencyTable]
"""How fast models are, by kind of partition and key."""


class HandOver:
    """Brings a `successor` to hold what the worker of `before` does, which serves and changes meanwhile.

    `tables` are what is known of the models' speed on the new share, by key, and `known` what was measured here; models
    that are in neither are timed. `ready` is what the new worker said when it came up. `done` gets a PartitionError
    when it cannot take over. No model is handed over that the one before could not load either.
    """

    def __init__(
        self, before: WorkerSlot, partition: Partition, tables: Mapping[str, LatencyTable], known: TablesByKind
    ) -> None:
        self._before = before
        self._stored = tables
        self._known = known
        self._slower = max(_size(before.spec.partition) / _size(partition), 1.0)
        kind = partition.profile_kind
        files = tuple(
            msgspec.structs.replace(file, table=tables.get(key) or known.get((kind, key)))
            for key, file in before.models.items()
        )
        spec = msgspec.structs.replace(before.spec, partition=partition, models=files, initial=None)
        self.successor = before.for_replacement(spec)
        self.ready: WorkerReady | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def worker_ready(self, ready: WorkerReady) -> str:
        """The new worker is up; returns why it cannot take over, "" if it may as far as can be seen now."""
        self.ready = ready
        lacking = self.successor.violations
        if lacking and not self._before.violations:
            return f"the new worker does not prove its share: {'; '.join(lacking)}"
        return next(filter(None, map(self.load_failure, ready.models)), "")

    def load_failure(self, model: LoadResult) -> str:
        """Why nothing can be handed over, if the new worker could not load a model that is held; "" otherwise."""
        if model.table is not None or model.key not in self._wanted():
            return ""
        return f"model {model.key} does not load there: {model.error}"

    def reconcile(self) -> bool:
        """Whether the new worker may take over; what it lacks, or has too much, it is told then."""
        before, successor = self._before, self.successor
        if self.ready is None or before.has_pending_changes or successor.has_pending_changes:
            return False
        wanted = self._wanted()
        for key in sorted(wanted - successor.tables.keys()):
            table = self._known.get((successor.kind, key))
            successor.request_change(AddModel(msgspec.structs.replace(before.models[key], table=table)))
        for key in sorted(successor.tables.keys() - wanted):
            successor.request_change(DropModel(key))
        return not successor.has_pending_changes

    def complete(self) -> dict[str, LatencyTable]:
        """Tell who waits that the worker has taken over; returns how fast models are there, by key.

        What was measured beside a worker that was busy, maybe on the same cores, counts as no worse than what that one
        took in proportion.
        """
        before, successor = self._before, self.successor
        for key, table in successor.tables.items():
            if key not in self._stored:
                successor.tables[key] = _bounded(table, before.tables[key], self._slower)
            successor.remember_model(successor.models[key], successor.tables[key])
        for key in successor.models.keys() - before.models.keys():  # given up before it was loaded
            del successor.models[key]
        if not self.done.done():
            self.done.set_result(None)
        return dict(successor.tables)

    def fail(self, reason: str) -> None:
        """Have the new worker ended, and tell who waits why it has not taken over."""
        self.successor.end(reason)
        if not self.done.done():
            self.done.set_exception(PartitionError(reason))

    def _wanted(self) -> Set[str]:
        """The models that the worker before holds and is to hold on."""
        return self._before.tables.keys() & self._before.models.keys()


def _bounded(table: LatencyTable, before: LatencyTable, slower: float) -> LatencyTable:
    cells = ((rows, min(took_ns, round(before.latency_ns(rows) * slower))) for rows, took_ns in table.cells)
    return LatencyTable(tuple(cells))


def _size(partition: Partition) -> float:
    """How much of its device a partition has, to compare with another share of the same one."""
    match partition:
        case CpuPartition():
            return len(partition.cores)
        case MpsPartition():
            return partition.share_percent
        case _:
            return 1
