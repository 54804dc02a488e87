"""An inventory whose partitions are played by a test."""

from collections.abc import Iterable, Mapping

from sluice.batcher.interface.events import (
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
    PartitionResized,
)
from sluice.gateway.partitions.inventory import Inventory, PartitionEvent, ProcessDetails
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import CpuPartition, Partition

_TABLE = LatencyTable.from_ms({1: 1})


class PlayedInventory(Inventory):
    """Partitions of one core each, `remote` ones among them, and Triton servers, with a method for each event."""

    def __init__(self, *names: str, servers: Iterable[str] = (), remote: Iterable[str] = ()) -> None:
        there = dict.fromkeys(remote, "cpu1")
        here = [CpuPartition(name, (core,)) for core, name in enumerate(names) if name not in there]
        super().__init__(here, servers, remote=there)

    def partition_ready(self, partition: str, loaded: Iterable[str] = (), failed: Mapping[str, str] = {}) -> None:
        self.apply(PartitionReady(partition, dict.fromkeys(loaded, _TABLE)), ProcessDetails(failed=failed))

    def partition_lost(self, partition: str, reason: str = "killed") -> None:
        self.apply(PartitionLost(partition, reason))

    def model_loaded(self, partition: str, model: str) -> None:
        self.apply(ModelLoaded(partition, model, _TABLE))

    def model_load_failed(self, partition: str, model: str, reason: str) -> None:
        self.apply(ModelLoadFailed(partition, model, reason))

    def model_unloaded(self, partition: str, model: str) -> None:
        self.apply(ModelUnloaded(partition, model))


def resized(inventory: Inventory, partition: Partition) -> None:
    """A worker on another share takes over a partition."""
    event = PartitionResized(partition.name, partition.profile_kind, 1.0, 1.0, {})
    details = ProcessDetails(1, partition.cores, Evidence(partition.cores), resized=partition)
    inventory.apply(event, details)


def summary(event: PartitionEvent, details: ProcessDetails) -> list[str]:
    """Describe a report of an executor about a partition."""
    name = event.partition
    failed = [f"{model}: {reason}" for model, reason in details.failed.items()]
    match event:
        case PartitionReady():
            return ["; ".join([f"{name} ready {','.join(event.tables)}", *failed])]
        case PartitionLost():
            how = "retired" if details.planned else "lost"
            return [*(f"{name} did not load {each}" for each in failed), f"{name} {how}: {event.reason}"]
        case PartitionResized():
            return [f"{name} is {event.kind}"]
        case ModelLoaded():
            return [f"{name} loaded {event.model}"]
        case ModelLoadFailed():
            return [f"{name} did not load {event.model}: {event.reason}"]
        case ModelUnloaded():
            return [f"{name} unloaded {event.model}"]
