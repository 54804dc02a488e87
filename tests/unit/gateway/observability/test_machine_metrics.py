"""Metrics of processors, memory and GPUs."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

from sluice.gateway.observability.exposition import exposition
from sluice.gateway.observability.machine_metrics import MachineMetrics, MachineReader
from sluice.mps.nvidia.readings import GpuReading

GPU = "GPU-00000000-0000-0000-0000-000000000000"
MIG = "MIG-00000001-0000-0000-0000-000000000000"
GIB = 1 << 30


class Machine:
    """A machine whose readings tests set."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.now_s = 100.0
        self.gpus: Sequence[GpuReading] | None = None
        self.asked = 0
        self.set(busy=0, idle=0)
        (proc / "meminfo").write_text("MemTotal:  4194304 kB\nMemFree: 5 kB\nMemAvailable: 1048576 kB\n")

    def set(self, busy: int, idle: int) -> None:
        (self.proc / "stat").write_text(f"cpu  {busy} 0 0 {idle - 1} 1 0 0 0 0 0\ncpu0 1 2 3 4\n")

    def read_gpus(self) -> Sequence[GpuReading] | None:
        self.asked += 1
        return self.gpus

    def metrics(self, **devices: str) -> MachineMetrics:
        reader = MachineReader(self.proc, self.read_gpus)
        return MachineMetrics(2.0, lambda: devices, reader, lambda: self.now_s)


def lines(metrics: MachineMetrics) -> set[str]:
    return {line for line in exposition(metrics.groups()).decode().splitlines() if not line.startswith("#")}


def test_use_is_that_since_the_reading_before_and_readings_are_an_interval_apart(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    metrics = machine.metrics()

    async def scrapes() -> None:
        assert lines(metrics) == set()
        await metrics.refresh()
        assert lines(metrics) == {
            "nv_cpu_utilization 0.0",
            f"nv_cpu_memory_total_bytes {4.0 * GIB!r}",
            f"nv_cpu_memory_used_bytes {3.0 * GIB!r}",
        }
        machine.set(busy=30, idle=70)
        machine.now_s += 1.9
        await metrics.refresh()
        assert "nv_cpu_utilization 0.0" in lines(metrics)
        machine.now_s += 0.2
        await metrics.refresh()
        assert "nv_cpu_utilization 0.3" in {line[:22] for line in lines(metrics)}
        assert machine.asked == 1  # there is no driver, which is not asked again

    asyncio.run(scrapes())


def test_gpus_have_what_their_driver_reports_and_partitions_the_memory_of_their_device(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    metrics = machine.metrics(small=MIG, whole=GPU, gone="GPU-1")

    async def scrapes() -> None:
        for energy_j in (5000.0, 5250.0):
            machine.gpus = [
                GpuReading(GPU, 0.25, 80 * GIB, 8 * GIB, 310.5, 700.0, energy_j),
                GpuReading(MIG, None, 10 * GIB, 1 * GIB, None, None, None),
            ]
            machine.now_s += 2
            await metrics.refresh()

    asyncio.run(scrapes())
    label = f'gpu_uuid="{GPU}"'
    assert {
        f"nv_gpu_utilization{{{label}}} 0.25",
        f"nv_gpu_memory_total_bytes{{{label}}} {80.0 * GIB!r}",
        f"nv_gpu_memory_used_bytes{{{label}}} {8.0 * GIB!r}",
        f"nv_gpu_power_usage{{{label}}} 310.5",
        f"nv_gpu_power_limit{{{label}}} 700.0",
        f"nv_energy_consumption{{{label}}} 250.0",
        f'sluice_partition_device_memory_used_bytes{{device="{MIG}",partition="small"}} {1.0 * GIB!r}',
        f'sluice_partition_device_memory_bytes{{device="{GPU}",partition="whole"}} {80.0 * GIB!r}',
    } <= lines(metrics)
    assert not any("gone" in line or f'gpu_uuid="{MIG}"' in line for line in lines(metrics))


def test_a_driver_that_hangs_leaves_the_readings_before_and_lets_the_server_end(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    hangs, goes_on = threading.Event(), threading.Event()
    came_back: list[bool] = []

    def read() -> Sequence[GpuReading]:
        if hangs.is_set():
            came_back.append(goes_on.wait(10))
        return [GpuReading(GPU, 0.5, None, None, None, None, None)]

    reader = MachineReader(tmp_path, read)
    metrics = MachineMetrics(0.0, dict, reader, lambda: machine.now_s)

    async def scrapes() -> None:
        await metrics.refresh()
        hangs.set()
        await metrics.refresh()
        assert f'nv_gpu_utilization{{gpu_uuid="{GPU}"}} 0.5' in lines(metrics)

    asyncio.run(scrapes())
    assert not came_back
    goes_on.set()


def test_a_machine_that_cannot_be_read_has_no_metrics(tmp_path: Path) -> None:
    metrics = MachineMetrics(0.0, dict, MachineReader(tmp_path / "none"))
    asyncio.run(metrics.refresh())
    assert lines(metrics) == set()
