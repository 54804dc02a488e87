"""Whether partitions fit into what their devices have free: what does not is refused with the numbers, never cut."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sluice.models.errors import InfeasibleLayout
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, Partition, ShareMode

HOST = "host"
"""The device of the memory of partitions of cores."""

WHOLE = 100.0


class FreeCapacity(NamedTuple):
    """What of a device nobody has been promised: percent of it, and MiB of memory (None: not known)."""

    share_percent: float = WHOLE
    memory_mb: float | None = None


class CapacityGuarantee(NamedTuple):
    """What a partition is promised of its device."""

    partition: str
    device: str
    share_percent: float
    memory_mb: float


def guarantee_of(partition: Partition) -> CapacityGuarantee:
    """What a partition is promised: a MIG instance is one's alone, cores are the concern of `partitions.cpu`."""
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
    """Raise InfeasibleLayout when the partitions are promised more of a device than it has free, or cannot share it.

    `free` is by device, a UUID or `HOST`; one that is not there is all free, and its memory not known.
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
                    f"{partition.uuid}: partition {partition.name} is {partition.mode}, others are not; "
                    "expected mode static of all that share a device, or of none"
                )
    for device, asked in demands.items():
        _check_device(device, asked, free.get(device, FreeCapacity()))


def _check_device(device: str, asked: list[CapacityGuarantee], free: FreeCapacity) -> None:
    share = sum(each.share_percent for each in asked)
    if share > free.share_percent:
        listed = ", ".join(f"{each.share_percent:g} % for {each.partition}" for each in asked if each.share_percent)
        raise InfeasibleLayout(
            f"{device}: a share of {share:g} % is asked ({listed}), {free.share_percent:g} % is free"
        )
    memory = sum(each.memory_mb for each in asked)
    if free.memory_mb is not None and memory > free.memory_mb:
        listed = ", ".join(f"{_mib(each.memory_mb)} for {each.partition}" for each in asked if each.memory_mb)
        by = " by hard_memory_mb" if device == HOST else ""
        raise InfeasibleLayout(
            f"{device}: {_mib(memory)} of memory are asked{by} ({listed}), {_mib(free.memory_mb)} are free"
        )
    unbounded = [each.partition for each in asked if not each.memory_mb]
    if device != HOST and len(asked) > 1 and unbounded:
        raise InfeasibleLayout(
            f"{device}: partition {unbounded[0]} shares it with others and has no memory_mb, so that it might take "
            "theirs; expected one"
        )


def _mib(memory_mb: float) -> str:
    return f"{round(memory_mb, 1):.15g} MiB"
