"""Binding a process to its partition: the environment that it starts with, its cores and its memory limit."""

import os
import resource
from collections.abc import Sequence
from contextlib import suppress

from sluice.models.errors import PartitionError
from sluice.models.processes import threads_of
from sluice.mps.isolation.mps_environment import NO_DAEMON, mps_environment, pipes_of
from sluice.mps.partitions.partition import CpuPartition, MigPartition, Partition

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def worker_environment(partition: Partition) -> dict[str, str]:
    """The variables of a worker's environment, on top of the gateway's `environment_without_mps`.

    On a GPU partition the worker sees that one device, as number 0. Raises PartitionError for a partition whose MPS
    daemon cannot be reached.
    """
    threads = array_library_environment()
    match partition:
        case CpuPartition():
            return threads
        case MigPartition():
            # An MPS daemon that happens to run on this machine must not get the worker as a client.

            return threads | {"CUDA_VISIBLE_DEVICES": partition.uuid, "CUDA_MPS_PIPE_DIRECTORY": NO_DAEMON}
        case _:
            return threads | mps_environment(partition, pipes_of(partition))


def array_library_environment() -> dict[str, str]:
    """The variables that give array libraries one thread: the backend's own threads fill the partition."""
    return dict.fromkeys(_THREAD_VARIABLES, "1")


def pin_to_cores(cores: Sequence[int]) -> tuple[int, ...]:
    """Bind this process, and the threads that it will start, to `cores`; returns the mask that the kernel reports.

    Call it before libraries start threads: running threads keep their mask. Raises PartitionError when the kernel
    refuses or grants other cores.
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
    """Bind this process to its partition as far as the kernel allows; returns the cores that it runs on then.

    The environment is set as well, since a spare worker was started before it had a partition. Call it before CUDA
    starts, which reads the environment, and before models allocate memory. Raises PartitionError as
    `worker_environment`; `partitions.isolation_report` finds the rest.
    """
    os.environ.update(worker_environment(partition))
    if partition.cores:
        for thread in threads_of(os.getpid()):  # a library that was imported may have started some
            with suppress(OSError):
                os.sched_setaffinity(thread, partition.cores)
    if isinstance(partition, CpuPartition) and (limit := partition.hard_memory_bytes) is not None:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return tuple(sorted(os.sched_getaffinity(0)))
