"""Meters of the memory of a GPU or MIG instance while a model is measured there."""

from sluice.models.errors import ControlFailed
from sluice.models.measuring.memory_meter import HostMemoryMeter, MemoryMeter
from sluice.mps.nvidia.cuda import visible_gpu
from sluice.mps.nvidia.nvml import open_nvml
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, Partition

_MIB = 1 << 20


class DeviceMemoryMeter:
    """The memory in use on a device, by its UUID, by any process; a MemoryMeter.

    Libraries keep the memory that they have taken, so that the current use is the peak. The driver reports it in MiB.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._free = self._free_bytes()

    def restart(self) -> None:
        """Do nothing: the peak cannot be reset."""

    def peak_bytes(self) -> int | None:
        """Return the decrease of free memory since the meter was made; None without a driver that reports it."""
        free = self._free_bytes()
        return None if self._free is None or free is None else max(self._free - free, 0)

    def _free_bytes(self) -> int | None:
        try:
            with open_nvml() as nvml:
                return nvml.free_memory_mib(self._device) * _MIB
        except ControlFailed:
            return None


def memory_meter(partition: Partition) -> MemoryMeter:
    """Return a meter of the memory by which models are placed on a partition, for this process, bound to it."""
    if isinstance(partition, CpuPartition):
        return HostMemoryMeter()
    visible_gpu(attach=True)  # the context belongs to the worker, not to a model
    return DeviceMemoryMeter(partition.uuid)


def load_meter(partition: Partition) -> MemoryMeter | None:
    """Return a meter for one more model of a serving worker; None on a share of a GPU.

    On a share, the memory that other workers take meanwhile, which also load models when a server starts, would be
    counted as the model's.
    """
    return None if isinstance(partition, MpsPartition) else memory_meter(partition)
