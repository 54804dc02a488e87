"""Memory that devices have free now: for the partitions of a server, and for a second worker of one partition."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sluice.models.errors import ControlFailed, InfeasibleLayout
from sluice.mps.nvidia.nvml import open_nvml
from sluice.mps.partitions.capacity_check import HOST, WHOLE, FreeCapacity
from sluice.mps.partitions.host import memory_limit_bytes
from sluice.mps.partitions.partition import CpuPartition, Partition

_MIB = 1 << 20


def free_capacity(partitions: Iterable[Partition]) -> dict[str, FreeCapacity]:
    """Return the free capacity of the partitions' devices before any partition has a worker.

    For the host this is all the memory that this process may ever use; for a GPU, the memory that no other process
    holds. A device whose driver reports nothing is left out.
    """
    devices = {partition.uuid for partition in partitions if not isinstance(partition, CpuPartition)}
    free = {HOST: FreeCapacity(WHOLE, memory_limit_bytes() / _MIB)}
    if devices:
        with suppress(ControlFailed), open_nvml() as nvml:  # the isolation report of each partition says it
            for device in devices:
                with suppress(ControlFailed):
                    free[device] = FreeCapacity(WHOLE, nvml.free_memory_mib(device))
    return free


def check_spare_memory(partition: Partition, model_bytes: int) -> None:
    """Raise InfeasibleLayout unless the partition's device has enough free memory now for a second worker.

    The worker needs the memory that the partition guarantees or, without a guarantee, `model_bytes`. Memory that no
    driver reports is not checked.
    """
    guaranteed_mb = partition.hard_memory_mb if isinstance(partition, CpuPartition) else partition.memory_mb
    needed_mb = model_bytes / _MIB if guaranteed_mb is None else guaranteed_mb
    free_mb = _free_mb(partition)
    if free_mb is not None and needed_mb > free_mb:
        raise InfeasibleLayout(
            f"partition {partition.name}: the new worker needs {needed_mb:.4g} MiB of memory beside the running "
            f"worker; {free_mb:.4g} MiB are free"
        )


def _free_mb(partition: Partition) -> float | None:
    if isinstance(partition, CpuPartition):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("MemAvailable:")), None)
    try:
        with open_nvml() as nvml:
            return nvml.free_memory_mib(partition.uuid)
    except ControlFailed:
        return None
