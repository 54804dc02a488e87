"""The latencies for a plan: stored profiles, or models that are timed now."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.deployment.stored_profiles import look_up, shortfall
from sluice.gateway.deployment.worker_files import file_to_measure
from sluice.gateway.what_if.answer import TableSource, TableUsed
from sluice.models.errors import ConfigError
from sluice.models.profiles.file import FigureSource, ProfileEntry, ProfileStale
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.partition_kind import parse_kind
from sluice.models.profiles.simulated_gpu import gpu_fraction_of
from sluice.models.repository.scan import ModelEntry
from sluice.mps.partitions.cpu import available_cores, default_partitions
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, Partition
from sluice.mps.supervisor.profiling import time_on

Tables = dict[str, dict[str, LatencyTable]]


def planned_partitions(text: str) -> tuple[Partition, ...]:
    """The partitions of the option `--partitions`: a number of equal core sets, or kinds, one partition for each.

    They need not exist. Raises ConfigError for an unknown kind, PartitionError for an impossible number.
    """
    if text.isdecimal():
        return default_partitions(int(text))
    return tuple(_partition(f"{kind}#{index}", kind) for index, kind in enumerate(text.split(",")))


def remote_partitions(config: ServerConfig) -> tuple[Partition, ...]:
    """The remote partitions of a configuration, as if they were here; raises as `planned_partitions`."""
    return tuple(
        msgspec.structs.replace(_partition(slot, each.profile_kind), price=each.price, memory_mb=each.memory_mb)
        for each in config.remote_classes
        for slot in each.slots
    )


def _partition(name: str, kind: str) -> Partition:
    parsed = parse_kind(kind)
    if parsed is None:
        raise ConfigError(
            f"--partitions: expected a number, or kinds such as cpu1,cpu2/x3,mig-1g,mig-1g+c4,mps-20; got '{kind}'"
        )
    if parsed.cores:
        try:
            return CpuPartition(name, tuple(range(parsed.cores)), parsed.slowdown)
        except ValueError as error:
            raise ConfigError(f"--partitions: {kind}: {error}") from error
    gpu_fraction_of(kind)
    cores = tuple(range(parsed.host_cores))
    if parsed.profile:
        return MigPartition(name, "", parsed.profile, cores=cores)
    return MpsPartition(name, "", parsed.percent, cores=cores)


def latency_tables(
    models: Iterable[ModelEntry],
    partitions: Sequence[Partition],
    repository: Path | None,
    announce: Callable[[str], None],
) -> tuple[Tables, list[TableUsed]]:
    """The latency table of every model on every kind: stored, or timed now as a worker does when it loads a model.

    `announce` gets a sentence before each timing. Raises ConfigError if there is neither a profile nor the hardware,
    BackendFailed for a model that does not run.
    """
    kinds = {partition.profile_kind: partition for partition in partitions}
    tables: Tables = {}
    used = []
    for model in models:
        tables[model.spec.key] = {}
        for kind, stored in _stored(model, kinds).items():
            if isinstance(stored, ProfileEntry):
                table = stored.table(50)
                source = TableSource(stored.source.value)
                notes = (*stored.warnings, *_holes(model, table))
            else:
                partition = _here(model, kinds[kind], stored, repository)
                announce(f"timing {model.spec.key} on {kind}: {stored}")
                table = time_on(partition, file_to_measure(model, model.spec.menu))
                source, notes = TableSource.TIMED_NOW, (stored,)
            tables[model.spec.key][kind] = table
            used.append(TableUsed(model.spec.key, kind, source, notes))
    return tables, used


def _stored(model: ModelEntry, kinds: Iterable[str]) -> dict[str, ProfileEntry | str]:
    """The stored profile by kind, or why none is usable.

    A server uses the same measured profiles, except those of partitions whose isolation failed, which have a warning.
    """
    return {kind: _usable(model, found) for kind, found in look_up(model, kinds).items()}


def _usable(model: ModelEntry, found: ProfileEntry | Exception) -> ProfileEntry | str:
    if isinstance(found, ProfileStale):
        return f"the stored profile is stale: {found}"
    if isinstance(found, Exception):
        return str(found)
    if found.source is FigureSource.MEASURED and (lacking := shortfall(model, found)):
        return f"the stored profile {lacking}"
    return found


def _here(model: ModelEntry, partition: Partition, reason: str, repository: Path | None) -> CpuPartition:
    """A partition of that kind on this machine to time a model on."""
    kind = partition.profile_kind
    if not isinstance(partition, CpuPartition):
        named = str(model.path) if repository is None else f"--repository {repository} {model.spec.key}"
        raise ConfigError(
            f"{model.spec.key} on {kind}: {reason}, and this machine has no such partition; to simulate a "
            f"well-known model instead: sluice profile {named} --simulate resnet50 --partitions {kind}"
        )
    cores = available_cores()
    if len(partition.cores) > len(cores):
        raise ConfigError(
            f"{model.spec.key} on {kind}: {reason}, and this process may use only {len(cores)} cores to time it on"
        )
    return CpuPartition(partition.name, cores[: len(partition.cores)], partition.slowdown)


def _holes(model: ModelEntry, table: LatencyTable) -> tuple[str, ...]:
    known = {size for size, _ in table.cells}
    last = table.cells[-1][0]
    missing = [size for size in model.spec.menu if size not in known]
    notes = []
    if beyond := [size for size in missing if size > last]:
        notes.append(f"batches of {_listed(beyond)} are not in the profile and not planned for")
    if holes := [size for size in missing if size < last]:
        notes.append(f"batches of {_listed(holes)} are not in the profile and count like the next larger size")
    return tuple(notes)


def _listed(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))
