"""The memory of a GPU or MIG instance while a model is measured there."""

from sluice.models.errors import ControlFailed
from sluice.models.measuring.memory_meter import HostMemory, MemoryMeter
from sluice.mps.nvidia.cuda import visible_gpu
from sluice.mps.nvidia.nvml import open_nvml
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, Partition

_MIB = 1 << 20


class DeviceMemory:
    """What has been taken of a device, by its UUID, whoever took it; a MemoryMeter.

    Libraries keep what they have taken, so that what is taken now is the most that was. The driver tells it in MiB.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._free = self._free_bytes()

    def restart(self) -> None:
        """Nothing is forgotten."""

    def peak_bytes(self) -> int | None:
        """By how much less is free than when the meter was made; None without a driver that tells."""
        free = self._free_bytes()
        return None if self._free is None or free is None else max(self._free - free, 0)

    def _free_bytes(self) -> int | None:
        try:
            with open_nvml() as nvml:
                return nvml.free_memory_mib(self._device) * _MIB
        except ControlFailed:
            return None


def memory_meter(partition: Partition) -> MemoryMeter:
    """A meter of the memory that models are placed by on a partition, for this process, which is bound to it."""
    if isinstance(partition, CpuPartition):
        return HostMemory()
    visible_gpu(attach=True)  # the context is the worker's and no model's
    return DeviceMemory(partition.uuid)


def load_meter(partition: Partition) -> MemoryMeter | None:
    """The same for one model more of a worker that serves; None on a share of a GPU.

    What the others there take meanwhile, which load theirs as well when a server starts, would be taken for the
    model's.
    """
    return None if isinstance(partition, MpsPartition) else memory_meter(partition)
