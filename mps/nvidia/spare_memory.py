"""Whether a second worker of a partition has memory beside the one that serves."""

from pathlib import Path

from sluice.models.errors import ControlFailed, InfeasibleLayout
from sluice.mps.nvidia.nvml import open_nvml
from sluice.mps.partitions.partition import CpuPartition, Partition

_MIB = 1 << 20


def check_spare_memory(partition: Partition, model_bytes: int) -> None:
    """Raise InfeasibleLayout unless what another worker may take is free just now, on the partition's own device.

    That is what the partition is promised or, without a promise, `model_bytes`. What a driver does not tell is not
    checked.
    """
    promised_mb = partition.hard_memory_mb if isinstance(partition, CpuPartition) else partition.memory_mb
    needed_mb = model_bytes / _MIB if promised_mb is None else promised_mb
    free_mb = _free_mb(partition)
    if free_mb is not None and needed_mb > free_mb:
        raise InfeasibleLayout(
            f"partition {partition.name}: the new worker needs {needed_mb:.4g} MiB of memory beside the one that "
            f"serves, {free_mb:.4g} MiB are free"
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
