"""Latencies of the served models at the sizes that a set of cores could have, from stored profiles."""

import asyncio
from collections.abc import Collection, Iterable, Mapping

import msgspec

from sluice.gateway.deployment.dependencies import DependencyGraph
from sluice.gateway.deployment.stored_profiles import stored_entries, stored_tables
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.repository.scan import REMOTE, ModelEntry
from sluice.mps.partitions.partition import CpuPartition

Tables = dict[str, dict[str, LatencyTable]]
"""By kind of partition and model key."""


class KnownSizes:
    """Reads the profiles again only when other models are served."""

    def __init__(self, dependencies: DependencyGraph) -> None:
        self._dependencies = dependencies
        self._read_for: tuple[frozenset[str], frozenset[str]] | None = None
        self._tables: Tables = {}

    async def tables(self, partitions: Collection[CpuPartition], most: int) -> Tables:
        """The latencies at all sizes of up to `most` cores at which every model of our workers was profiled.

        Empty with fewer than two sizes: then there is nothing to compare.
        """
        kinds = frozenset(kind for each in partitions for kind in kinds_of(each, most))
        entries = {entry.spec.key: entry for each in self._dependencies.served.values() for entry in each.models}
        local = {key: entry for key, entry in entries.items() if entry.backend != REMOTE}
        if (wanted := (frozenset(local), kinds)) != self._read_for:
            self._tables = await asyncio.to_thread(_read, local, kinds)
            self._read_for = wanted
        return self._tables


def kinds_of(partition: CpuPartition, most: int) -> list[str]:
    """The kinds that a set of 1 to `most` cores would be of."""
    sizes = (tuple(range(size)) for size in range(1, most + 1))
    return [msgspec.structs.replace(partition, cores=cores).profile_kind for cores in sizes]


def _read(entries: Mapping[str, ModelEntry], kinds: Iterable[str]) -> Tables:
    found = {key: stored_tables(entry, stored_entries(entry, kinds)) for key, entry in entries.items()}
    tables = {
        kind: {key: by_kind[kind] for key, by_kind in found.items()}
        for kind in kinds
        if entries and all(kind in by_kind for by_kind in found.values())
    }
    return tables if len(tables) > 1 else {}
