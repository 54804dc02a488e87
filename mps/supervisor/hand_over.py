"""The hand-over of a partition from its running worker to a new worker with another share."""

import asyncio
from collections.abc import Mapping, Set

import msgspec

from sluice.models.errors import PartitionError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.ipc.messages import AddModel, DropModel, LoadResult, WorkerReady
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, Partition
from sluice.mps.supervisor.worker_slot import WorkerSlot

TablesByKind = Mapping[tuple[str, str], LatencyTable]
"""Latency tables by kind of partition and model key."""


class HandOver:
    """Makes a `successor` hold the same models as the worker of `before`, which keeps serving and changing meanwhile.

    `tables` are the known latency tables of the models on the new share, by key, and `known` the tables that were
    measured here; a model that is in neither is timed. `ready` is the new worker's first report. `done` gets a
    PartitionError when the new worker cannot take over. A model that the old worker could not load either is not handed
    over.
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
            msgspec.structs.replace(file, table=tables.get(key) or known.get((kind, key)), memory_measured=False)
            for key, file in before.models.items()
        )
        spec = msgspec.structs.replace(before.spec, partition=partition, models=files, initial=None)
        self.successor = before.for_replacement(spec)
        self.ready: WorkerReady | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def worker_ready(self, ready: WorkerReady) -> str:
        """The new worker is ready; returns the reason why it cannot take over, "" if none is known."""
        self.ready = ready
        lacking = self.successor.violations
        if lacking and not self._before.violations:
            return f"the partition of the new worker is not enforced: {'; '.join(lacking)}"
        return next(filter(None, map(self.load_failure, ready.models)), "")

    def load_failure(self, model: LoadResult) -> str:
        """Return the reason to give up if the new worker could not load a model that the old one holds, else ""."""
        if model.table is not None or model.key not in self._wanted():
            return ""
        return f"model {model.key} does not load there: {model.error}"

    def reconcile(self) -> bool:
        """Return whether the new worker may take over now; orders it to load and unload models that differ."""
        before, successor = self._before, self.successor
        if self.ready is None or before.has_pending_changes or successor.has_pending_changes:
            return False
        wanted = self._wanted()
        for key in sorted(wanted - successor.tables.keys()):
            table = self._known.get((successor.kind, key))
            file = msgspec.structs.replace(before.models[key], table=table, memory_measured=False)
            successor.request_change(AddModel(file))
        for key in sorted(successor.tables.keys() - wanted):
            successor.request_change(DropModel(key))
        return not successor.has_pending_changes

    def complete(self) -> dict[str, LatencyTable]:
        """Resolve `done`; returns the latency tables of the new worker by model key.

        A table that was measured beside a busy worker, perhaps on the same cores, is bounded by the old worker's table,
        scaled by the ratio of the two shares.
        """
        before, successor = self._before, self.successor
        for key, table in successor.tables.items():
            if key not in self._stored:
                successor.tables[key] = _bounded(table, before.tables[key], self._slower)
            successor.remember_model(successor.models[key], successor.tables[key])
        for key in successor.models.keys() - before.models.keys():  # dropped before it was loaded
            del successor.models[key]
        if not self.done.done():
            self.done.set_result(None)
        return dict(successor.tables)

    def fail(self, reason: str) -> None:
        """End the new worker and fail `done` with the reason."""
        self.successor.end(reason)
        if not self.done.done():
            self.done.set_exception(PartitionError(reason))

    def _wanted(self) -> Set[str]:
        """The models that the old worker holds and has not been ordered to unload."""
        return self._before.tables.keys() & self._before.models.keys()


def _bounded(table: LatencyTable, before: LatencyTable, slower: float) -> LatencyTable:
    cells = ((rows, min(took_ns, round(before.latency_ns(rows) * slower))) for rows, took_ns in table.cells)
    return LatencyTable(tuple(cells))


def _size(partition: Partition) -> float:
    """The partition's part of its device, comparable with another share of the same device."""
    match partition:
        case CpuPartition():
            return len(partition.cores)
        case MpsPartition():
            return partition.share_percent
        case _:
            return 1
