"""The memory in use by partition, as processes and drivers tell it."""

import asyncio
import os

from sluice.batcher.interface.events import AnyEvent, MemorySampled, PartitionReady
from sluice.gateway.partitions.inventory import Inventory, ProcessDetails
from sluice.gateway.partitions.worker_memory import MemorySampler, WorkerMemory
from sluice.mps.nvidia.readings import GpuReading
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import CpuPartition, MigPartition, Partition

MIG = "MIG-11111111-1111-1111-1111-111111111111"
GPUS = [GpuReading(MIG, None, 20 << 30, 3 << 30, None, None, None)]
PARTITIONS: list[Partition] = [
    CpuPartition("here", (0,)),
    CpuPartition("ended", (1,)),
    CpuPartition("down", (2,)),
    MigPartition("gpu", MIG, "1g.10gb"),
]


def inventory_of(partitions: list[Partition]) -> Inventory:
    """An inventory in which each partition except `down` has a worker."""
    inventory = Inventory(partitions)
    for partition in partitions:
        pid = 2**22 + 1 if partition.name == "ended" else os.getpid()  # beyond the largest process id of Linux
        if partition.name != "down":
            inventory.apply(PartitionReady(partition.name, {}), ProcessDetails(worker=pid, evidence=Evidence()))
    return inventory


def test_a_worker_has_the_memory_of_its_process_and_a_mig_instance_what_the_driver_says() -> None:
    async def main() -> None:
        memory = WorkerMemory(inventory_of(PARTITIONS), lambda: GPUS)
        await memory.refresh()
        assert memory.used.keys() == {"here", "gpu"}
        assert 1 << 20 < memory.used["here"] < 64 << 30
        assert memory.used["gpu"] == 3 << 30

    asyncio.run(main())


def test_without_partitions_on_gpus_no_driver_is_asked() -> None:
    def refuse() -> None:
        raise AssertionError("the driver is asked")

    async def main() -> None:
        memory = WorkerMemory(inventory_of(PARTITIONS[:1]), refuse)
        await memory.refresh()
        assert list(memory.used) == ["here"]

    asyncio.run(main())


def test_a_driver_that_fails_leaves_the_last_reading() -> None:
    readings = [GPUS]

    async def main() -> None:
        memory = WorkerMemory(inventory_of(PARTITIONS), readings.pop)
        await memory.refresh()
        await memory.refresh()
        assert memory.used["gpu"] == 3 << 30

    asyncio.run(main())


def test_samples_are_reported_to_the_scheduler() -> None:
    events: list[AnyEvent] = []

    async def main() -> None:
        reported = asyncio.Event()

        def report(event: AnyEvent) -> None:
            events.append(event)
            reported.set()

        sampling = asyncio.ensure_future(MemorySampler(WorkerMemory(inventory_of(PARTITIONS[:1])), report).run())
        await reported.wait()
        sampling.cancel()

    asyncio.run(main())
    (event,) = events
    assert isinstance(event, MemorySampled)
    assert list(event.used) == ["here"]
