"""CPU partitions: disjoint sets of the cores that this process may use."""

import os
import zlib
from collections.abc import Collection, Sequence

from sluice.models.errors import InfeasibleLayout, PartitionError
from sluice.mps.partitions.host import cgroup_names, cpu_quota
from sluice.mps.partitions.partition import CpuPartition, Partition


def available_cores() -> tuple[int, ...]:
    """The cores that the kernel lets this process run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def usable_cores() -> tuple[int, ...]:
    """The available cores that the cgroups allow the time of, ascending: as many as whole cores of it, at least one.

    Containers of one machine begin at different cores, by their names, since they see the same ones.
    """
    available, quota = available_cores(), cpu_quota()
    count = len(available) if quota is None else min(max(int(quota), 1), len(available))
    if count == len(available):
        return available
    begin = zlib.crc32(f"{os.uname().nodename} {cgroup_names()}".encode()) % len(available)
    return tuple(sorted((available[begin:] + available[:begin])[:count]))


def spare_cores(held: Collection[int]) -> tuple[int, ...]:
    """The usable cores that nobody holds, ascending; no more than the cgroups allow the time of beside those held."""
    usable = usable_cores()
    free = [core for core in usable if core not in held]
    return tuple(free[: max(len(usable) - len(held), 0)])


def default_partitions(count: int | None = None) -> tuple[CpuPartition, ...]:
    """`count` partitions cpu0, cpu1 … that share the usable cores evenly; by default one for each of these.

    More partitions than usable cores get an available core each, although the cgroups do not allow the time of all.
    Raises PartitionError unless `count` is between 1 and the number of available cores.
    """
    cores, available = usable_cores(), available_cores()
    count = len(cores) if count is None else count
    if not 1 <= count <= len(available):
        raise PartitionError(f"partitions: expected 1 to {len(available)}, one for each core, got {count}")
    if count > len(cores):
        cores = available[:count]
    bounds = [len(cores) * index // count for index in range(count + 1)]
    return tuple(CpuPartition(f"cpu{index}", cores[bounds[index] : bounds[index + 1]]) for index in range(count))


def check_partitions(partitions: Sequence[Partition]) -> None:
    """Raise PartitionError unless names are unique, cores available, and the cores of CPU partitions disjoint.

    It is InfeasibleLayout for a core of two partitions. The host cores of GPU partitions may be shared, and need not be
    given.
    """
    available = available_cores()
    owners: dict[int, str] = {}
    names: set[str] = set()
    for partition in partitions:
        if partition.name in names:
            raise PartitionError(f"partition {partition.name}: the name is used twice")
        names.add(partition.name)
        ours = isinstance(partition, CpuPartition)
        if ours and not partition.cores:
            raise PartitionError(f"partition {partition.name}: it has no cores")
        if len(set(partition.cores)) < len(partition.cores):
            raise PartitionError(f"partition {partition.name}: cores {list(partition.cores)}: expected each core once")
        for core in partition.cores:
            if core not in available:
                raise PartitionError(
                    f"partition {partition.name}: core {core} is not available; expected some of {list(available)}"
                )
            if not ours:
                continue
            if core in owners:
                raise InfeasibleLayout(
                    f"partition {partition.name}: core {core} already belongs to partition {owners[core]}"
                )
            owners[core] = partition.name
