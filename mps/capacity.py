"""What devices have free at this moment, for `mps.shares`."""

from collections.abc import Iterable
from contextlib import suppress

from models.errors import ControlFailed
from mps.host import memory_limit_bytes
from mps.nvml import open_nvml
from mps.partition import CpuPartition, Partition
from mps.shares import HOST, WHOLE, Free

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
