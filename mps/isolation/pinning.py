"""Binding a process to its partition: the environment it starts with, the cores it may run on, its memory."""

import os
import resource
from collections.abc import Sequence
from contextlib import suppress

from sluice.models.errors import PartitionError
from sluice.mps.isolation.mps_environment import NO_DAEMON, mps_environment, pipe_directory
from sluice.mps.partitions.partition import CpuPartition, MigPartition, Partition

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def worker_environment(partition: Partition) -> dict[str, str]:
    """What a worker's environment must hold before it starts, over `plain_environment` of the gateway.

    One thread for array libraries: the backend's own threads are the ones that fill the partition. On a GPU
    partition it sees that one device, as number 0. Raises PartitionError for one whose MPS daemon cannot be reached.
    """
    threads = dict.fromkeys(_THREAD_VARIABLES, "1")
    match partition:
        case CpuPartition():
            return threads
        case MigPartition():
            # A daemon that happens to run on this machine must not take the worker as its client.
            return threads | {"CUDA_VISIBLE_DEVICES": partition.uuid, "CUDA_MPS_PIPE_DIRECTORY": NO_DAEMON}
        case _:
            return threads | mps_environment(partition, pipe_directory(partition.uuid))


def pin_to_cores(cores: Sequence[int]) -> tuple[int, ...]:
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


def bind_to_partition(partition: Partition) -> tuple[int, ...]:
    """Bind this process to its partition as far as the kernel lets it; returns the cores that it runs on then.

    Call it before libraries start threads or take memory. `partitions.isolation_report` says what could not be had.
    """
    if partition.cores:
        with suppress(OSError):
            os.sched_setaffinity(0, partition.cores)
    if isinstance(partition, CpuPartition) and (limit := partition.hard_memory_bytes) is not None:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return tuple(sorted(os.sched_getaffinity(0)))
