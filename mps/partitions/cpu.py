"""CPU partitions: disjoint sets of the cores that this process may use."""

import os
from collections.abc import Sequence

from sluice.models.errors import PartitionError
from sluice.mps.partitions.partition import CpuPartition, Partition


def available_cores() -> tuple[int, ...]:
    """The cores that the kernel lets this process run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def default_partitions(count: int | None = None) -> tuple[CpuPartition, ...]:
    """`count` partitions cpu0, cpu1 … that share the available cores evenly; by default one for each core.

    Raises PartitionError unless `count` is between 1 and the number of cores.
    """
    cores = available_cores()
    count = len(cores) if count is None else count
    if not 1 <= count <= len(cores):
        raise PartitionError(f"partitions: expected 1 to {len(cores)}, one for each core, got {count}")
    bounds = [len(cores) * index // count for index in range(count + 1)]
    return tuple(CpuPartition(f"cpu{index}", cores[bounds[index] : bounds[index + 1]]) for index in range(count))


def check_partitions(partitions: Sequence[Partition]) -> None:
    """Raise PartitionError unless names are unique, cores available, and the cores of CPU partitions disjoint.

    The host cores of GPU partitions may be shared, and need not be given.
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
        for core in partition.cores:
            if core not in available:
                raise PartitionError(
                    f"partition {partition.name}: core {core} is not available; expected some of {list(available)}"
                )
            if not ours:
                continue
            if core in owners:
                raise PartitionError(
                    f"partition {partition.name}: core {core} already belongs to partition {owners[core]}"
                )
            owners[core] = partition.name
