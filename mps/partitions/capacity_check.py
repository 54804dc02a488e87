"""Refuses partitions whose guarantees exceed the free capacity of their devices; nothing is cut to fit."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sluice.models.errors import InfeasibleLayout
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, Partition, ShareMode

HOST = "host"
"""The device of partitions of cores, for their memory."""

WHOLE = 100.0


class FreeCapacity(NamedTuple):
    """The capacity of a device that is not guaranteed to anyone yet: percent of it, and MiB (None: not known)."""

    share_percent: float = WHOLE
    memory_mb: float | None = None


class CapacityGuarantee(NamedTuple):
    """The capacity of its device that a partition is guaranteed."""

    partition: str
    device: str
    share_percent: float
    memory_mb: float


def guarantee_of(partition: Partition) -> CapacityGuarantee:
    """Return a partition's guarantee: all of a MIG instance; `partitions.cpu` checks the cores of CPU partitions."""
    match partition:
        case CpuPartition():
            return CapacityGuarantee(partition.name, HOST, 0.0, partition.hard_memory_mb or 0.0)
        case MigPartition():
            return CapacityGuarantee(partition.name, partition.uuid, WHOLE, partition.memory_mb or 0.0)
        case _:
            return CapacityGuarantee(
                partition.name, partition.uuid, partition.guaranteed_percent, partition.memory_mb or 0.0
            )


def check_capacity(partitions: Iterable[Partition], free: Mapping[str, FreeCapacity]) -> None:
    """Raise InfeasibleLayout when partitions are guaranteed more of a device than it has free, or cannot share it.

    `free` is by device, a UUID or `HOST`; a device that is missing is all free, and its memory not known.
    """
    demands: dict[str, list[CapacityGuarantee]] = {}
    static_devices: dict[str, bool] = {}
    for partition in partitions:
        demand = guarantee_of(partition)
        demands.setdefault(demand.device, []).append(demand)
        if isinstance(partition, MpsPartition):
            static = partition.mode is ShareMode.STATIC
            if static_devices.setdefault(partition.uuid, static) is not static:
                raise InfeasibleLayout(
                    f"{partition.uuid}: partition {partition.name} is {partition.mode}, other partitions are not; "
                    "expected mode static for all partitions of a device, or for none"
                )
    for device, requested in demands.items():
        _check_device(device, requested, free.get(device, FreeCapacity()))


def _check_device(device: str, requested: list[CapacityGuarantee], free: FreeCapacity) -> None:
    share = sum(each.share_percent for each in requested)
    if share > free.share_percent:
        listed = ", ".join(f"{each.share_percent:g} % for {each.partition}" for each in requested if each.share_percent)
        raise InfeasibleLayout(f"{device}: {share:g} % are requested ({listed}), {free.share_percent:g} % are free")
    memory = sum(each.memory_mb for each in requested)
    if free.memory_mb is not None and memory > free.memory_mb:
        listed = ", ".join(f"{_mib(each.memory_mb)} for {each.partition}" for each in requested if each.memory_mb)
        by = " by hard_memory_mb" if device == HOST else ""
        raise InfeasibleLayout(
            f"{device}: {_mib(memory)} of memory are requested{by} ({listed}), {_mib(free.memory_mb)} are free"
        )
    unbounded = [each.partition for each in requested if not each.memory_mb]
    if device != HOST and len(requested) > 1 and unbounded:
        raise InfeasibleLayout(
            f"{device}: partition {unbounded[0]} shares the device without memory_mb, so that it might take "
            "the memory of the others; expected memory_mb"
        )


def _mib(memory_mb: float) -> str:
    return f"{round(memory_mb, 1):.15g} MiB"
