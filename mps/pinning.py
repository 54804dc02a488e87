"""Binding a process to its partition: the environment it starts with and the cores it may run on."""

import os
from collections.abc import Sequence

from models.errors import PartitionError
from mps.partition import CpuPartition, Partition

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def environment(partition: Partition) -> dict[str, str]:
    """What a worker's environment must hold before it starts, over that of the gateway.

    One thread for array libraries: the backend's own threads are the ones that fill the partition.
    """
    if not isinstance(partition, CpuPartition):
        raise PartitionError(f"partition {partition.name}: GPU partitions are not available yet, expected kind cpu")
    return dict.fromkeys(_THREAD_VARIABLES, "1")


def pin(cores: Sequence[int]) -> tuple[int, ...]:
    """Bind this process, and the threads it will start, to `cores`; returns the mask that the kernel reports back.

    Call it before libraries start threads: those that run already stay where they are. Raises PartitionError when the
    kernel refuses or grants other cores.
    """
    try:
        os.sched_setaffinity(0, cores)
    except (OSError, ValueError) as error:
        raise PartitionError(f"cannot pin to cores {sorted(cores)}: {error}") from None
    granted = os.sched_getaffinity(0)
    if granted != set(cores):
        raise PartitionError(f"pinned to cores {sorted(granted)}, expected {sorted(cores)}")
    return tuple(sorted(granted))
