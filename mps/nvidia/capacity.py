"""What devices have free at this moment, for `sluice.mps.partitions.capacity_check`."""

from collections.abc import Iterable
from contextlib import suppress

from sluice.models.errors import ControlFailed
from sluice.mps.nvidia.nvml import open_nvml
from sluice.mps.partitions.capacity_check import HOST, WHOLE, Free
from sluice.mps.partitions.host import memory_limit_bytes
from sluice.mps.partitions.partition import CpuPartition, Partition

_MIB = 1 << 20


def free_capacity(partitions: Iterable[Partition]) -> dict[str, Free]:
    """What the devices of the partitions have free, before any of them has a worker.

    Of the machine's memory that is all that this process may ever have; of a GPU what no other process holds. Where no
    driver tells, it is not known.
    """
    devices = {partition.uuid for partition in partitions if not isinstance(partition, CpuPartition)}
    free = {HOST: Free(WHOLE, memory_limit_bytes() / _MIB)}
    if devices:
        with suppress(ControlFailed), open_nvml() as nvml:  # the proof of each partition will tell
            for device in devices:
                with suppress(ControlFailed):
                    free[device] = Free(WHOLE, nvml.free_memory_mib(device))
    return free
