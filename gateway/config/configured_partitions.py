"""The partitions of a configuration, for workers and for the scheduler."""

from sluice.batcher.interface.config import DeviceShare, PartitionConfig
from sluice.gateway.config.remote_settings import RemoteClass
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.config.triton_settings import TritonSettings
from sluice.mps.nvidia.given_devices import given_partitions, on_given_device
from sluice.mps.partitions.cpu import default_partitions, usable_cores
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, Partition, ShareMode

_MIB = 1 << 20
_SECONDS_PER_HOUR = 3600


def configured_partitions(config: ServerConfig) -> tuple[Partition, ...]:
    """The partitions of this machine; raises PartitionError for what is impossible here.

    `auto` are the GPUs and MIG instances that this process was given or, if it has none, its cores.
    """
    local = config.local_partitions
    if isinstance(local, str):
        return given_partitions() or default_partitions()
    if local is None or isinstance(local, int):
        return default_partitions(local)
    return tuple(on_given_device(each) if isinstance(each, MpsPartition) else each for each in local)


def partition_config(
    config: ServerConfig, partition: Partition, models: tuple[str, ...] | None = None
) -> PartitionConfig:
    """A partition for the scheduler; `models` restricts the models that it may hold."""
    if isinstance(partition, CpuPartition):
        share = min(len(partition.cores) / len(usable_cores()), 1.0)
    else:
        share = partition.gpu_share
    memory_bytes = 0 if partition.memory_mb is None else max(round(partition.memory_mb * _MIB), 1)
    price = config.prices.per_second(partition)
    kind, device = partition.profile_kind, _device_share(partition)
    return PartitionConfig(partition.name, kind, price, share, memory_bytes, models, device)


def _device_share(partition: Partition) -> DeviceShare | None:
    """The share of a device under MPS; None for a partition with its own cores or multiprocessors."""
    if not isinstance(partition, MpsPartition) or partition.mode is ShareMode.STATIC:
        return None
    return DeviceShare(partition.uuid, partition.guaranteed_percent / 100, partition.cap_percent / 100)


def triton_config(config: ServerConfig, server: TritonSettings, models: tuple[str, ...]) -> PartitionConfig:
    """A Triton server as a partition for the scheduler."""
    hour = config.prices.gpu_hour if server.price is None else server.price
    return PartitionConfig(server.name, server.profile_kind, hour / _SECONDS_PER_HOUR, models=models, fixed=True)


def remote_config(
    config: ServerConfig, given: RemoteClass, slot: str, models: tuple[str, ...] | None = None
) -> PartitionConfig:
    """A slot of a class of remote partitions for the scheduler; `models` are those that it may hold (None: any)."""
    price = given.price_per_second(config.prices)
    return PartitionConfig(slot, given.profile_kind, price, memory_bytes=given.memory_bytes, models=models)
