"""The memory in use by partition: that of the worker's process, or of the GPU or MIG instance that it has to itself."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from sluice.batcher.interface.events import AnyEvent, MemorySampled
from sluice.gateway.observability.machine_metrics import READ_TIMEOUT_S, in_daemon_thread
from sluice.gateway.observability.process_metrics import read_process
from sluice.gateway.partitions.inventory import Inventory
from sluice.mps.nvidia.readings import GpuReading, gpu_readings
from sluice.mps.partitions.partition import CpuPartition

SAMPLE_S = 1.0
"""Time between two samples."""


class WorkerMemory:
    """Reads the bytes in use on the partitions of this machine whose workers are up.

    Shares of one GPU have no memory of their own in the driver's readings, so they are left out.
    """

    def __init__(
        self, inventory: Inventory, read_gpus: Callable[[], Sequence[GpuReading] | None] = gpu_readings
    ) -> None:
        self._inventory = inventory
        self._read_gpus = read_gpus
        self._reading: asyncio.Future[dict[str, int]] | None = None
        self.used: Mapping[str, int] = {}

    async def refresh(self) -> None:
        """Read in a thread; a reading that takes too long is left for the next time, since a driver may hang."""
        if self._reading is None:
            processes, partitions = self._inventory.processes, self._inventory.partitions
            sharing = Counter(each.uuid for each in partitions if not isinstance(each, CpuPartition))
            devices = {
                each.name: each.uuid
                for each in partitions
                if not isinstance(each, CpuPartition) and sharing[each.uuid] == 1 and each.name in processes
            }
            pids = {
                each.name: processes[each.name]
                for each in partitions
                if isinstance(each, CpuPartition) and each.name in processes
            }
            self._reading = in_daemon_thread(lambda: self._read(pids, devices))
            self._reading.add_done_callback(self._took)
        await asyncio.wait([self._reading], timeout=READ_TIMEOUT_S)

    def _read(self, pids: Mapping[str, int], devices: Mapping[str, str]) -> dict[str, int]:
        processes = {name: read_process(pid) for name, pid in pids.items()}
        found = {name: process.resident_bytes for name, process in processes.items() if process is not None}
        gpus = {each.uuid: each.memory_used_bytes for each in (self._read_gpus() or ())} if devices else {}
        for name, uuid in devices.items():
            if (used := gpus.get(uuid)) is not None:
                found[name] = used
        return found

    def _took(self, reading: asyncio.Future[dict[str, int]]) -> None:
        self._reading = None
        if not reading.cancelled() and reading.exception() is None:
            self.used = reading.result()


class MemorySampler:
    """Reports the memory in use to the scheduler each second: packing policies go by it."""

    def __init__(self, memory: WorkerMemory, report: Callable[[AnyEvent], None]) -> None:
        self._memory = memory
        self._report = report

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await self._memory.refresh()
            if self._memory.used:
                self._report(MemorySampled(dict(self._memory.used)))
            await asyncio.sleep(SAMPLE_S)
