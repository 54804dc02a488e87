"""Readings of GPUs and MIG instances for metrics: use, power and memory, as far as the driver reports them."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sluice.models.errors import ControlFailed
from sluice.mps.nvidia.nvml import open_nvml


class GpuReading(NamedTuple):
    """One GPU or MIG instance; None for what its driver does not report.

    `utilisation` is in [0, 1], power in W, `energy_j` counts from when the driver was loaded. A MIG instance has no
    figures but its memory.
    """

    uuid: str
    utilisation: float | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None


def gpu_readings() -> list[GpuReading] | None:
    """All GPUs and their MIG instances, without those that are lost; None where no driver answers."""
    try:
        with open_nvml() as nvml:
            return list(_readings(nvml.library))
    except ControlFailed:
        return None


def _readings(nvml: Any) -> Iterator[GpuReading]:
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            yield _reading(nvml, device, nvml.nvmlDeviceGetUUID(device))
            instances = _or_none(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, device) or 0
        except nvml.NVMLError:
            continue  # it has fallen off the bus; the others still answer
        for number in range(instances):
            instance = _or_none(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, device, number)
            uuid = None if instance is None else _or_none(nvml, nvml.nvmlDeviceGetUUID, instance)
            if uuid is not None:
                total, used = _memory(nvml, instance)
                yield GpuReading(uuid, None, total, used, None, None, None)


def _reading(nvml: Any, device: Any, uuid: str) -> GpuReading:
    rates = _or_none(nvml, nvml.nvmlDeviceGetUtilizationRates, device)
    power_mw = _or_none(nvml, nvml.nvmlDeviceGetPowerUsage, device)
    limit_mw = _or_none(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, device)
    energy_mj = _or_none(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, device)
    return GpuReading(
        uuid,
        None if rates is None else rates.gpu / 100,
        *_memory(nvml, device),
        None if power_mw is None else power_mw / 1000,
        None if limit_mw is None else limit_mw / 1000,
        None if energy_mj is None else energy_mj / 1000,
    )


def _memory(nvml: Any, device: Any) -> tuple[int | None, int | None]:
    memory = _or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, device)
    return (None, None) if memory is None else (int(memory.total), int(memory.used))


def _or_none(nvml: Any, read: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function of the driver; None where the device does not support it."""
    try:
        return read(*arguments)
    except nvml.NVMLError:
        return None
