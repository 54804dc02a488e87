"""Metrics of the machine under the names of Triton's: its processors, memory and GPUs."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import NamedTuple, TypeVar

from prometheus_client.core import Metric

from sluice.gateway.observability.exposition import ExposedMetric, Group
from sluice.gateway.observability.metrics import MetricsSource
from sluice.mps.nvidia.readings import GpuReading, gpu_readings

T = TypeVar("T")

READ_TIMEOUT_S = 0.5
"""The longest time that a scrape waits for new readings: a driver may hang. Then it has the ones before."""

CPU_UTILIZATION = ExposedMetric(
    "nv_cpu_utilization",
    "gauge",
    "Share of the time since the reading before that all processors of the machine together were busy, from 0 to 1.",
)
CPU_MEMORY_TOTAL = ExposedMetric("nv_cpu_memory_total_bytes", "gauge", "Memory of the machine.")
CPU_MEMORY_USED = ExposedMetric(
    "nv_cpu_memory_used_bytes", "gauge", "Memory of the machine in use: all that is not available to new programs."
)
GPU_UTILIZATION = ExposedMetric(
    "nv_gpu_utilization", "gauge", "Share of the time that the GPU was busy, from 0 to 1.", ("gpu_uuid",)
)
GPU_MEMORY_TOTAL = ExposedMetric("nv_gpu_memory_total_bytes", "gauge", "Memory of the GPU.", ("gpu_uuid",))
GPU_MEMORY_USED = ExposedMetric("nv_gpu_memory_used_bytes", "gauge", "Memory of the GPU in use.", ("gpu_uuid",))
GPU_POWER = ExposedMetric("nv_gpu_power_usage", "gauge", "Power that the GPU takes, in watts.", ("gpu_uuid",))
GPU_POWER_LIMIT = ExposedMetric(
    "nv_gpu_power_limit", "gauge", "Highest power that the GPU may take, in watts.", ("gpu_uuid",)
)
GPU_ENERGY = ExposedMetric(
    "nv_energy_consumption",
    "counter",
    "Energy that the GPU has taken since the server started, in joules.",
    ("gpu_uuid",),
)
PARTITION_MEMORY_TOTAL = ExposedMetric(
    "sluice_partition_device_memory_bytes",
    "gauge",
    "Memory of the GPU or MIG instance that the partition is on; partitions that share a device show the same.",
    ("device", "partition"),
)
PARTITION_MEMORY_USED = ExposedMetric(
    "sluice_partition_device_memory_used_bytes",
    "gauge",
    "Memory in use of the GPU or MIG instance that the partition is on; partitions that share a device show the same.",
    ("device", "partition"),
)
_OF_GPUS: tuple[tuple[ExposedMetric, Callable[[GpuReading], float | None]], ...] = (
    (GPU_UTILIZATION, lambda gpu: gpu.utilisation),
    (GPU_MEMORY_TOTAL, lambda gpu: gpu.memory_total_bytes),
    (GPU_MEMORY_USED, lambda gpu: gpu.memory_used_bytes),
    (GPU_POWER, lambda gpu: gpu.power_w),
    (GPU_POWER_LIMIT, lambda gpu: gpu.power_limit_w),
)


class CpuTimes(NamedTuple):
    """Ticks of all processors together since the machine started."""

    total: int
    idle: int


class Readings(NamedTuple):
    """One reading of the machine; memory in bytes."""

    cpu: CpuTimes
    memory_total: int
    memory_available: int
    gpus: Sequence[GpuReading]


class MachineReader:
    """Reads `/proc` and the NVIDIA driver; may take long. A machine without a driver is asked for it once."""

    def __init__(
        self, proc: Path = Path("/proc"), read_gpus: Callable[[], Sequence[GpuReading] | None] = gpu_readings
    ) -> None:
        self._proc = proc
        self._read_gpus: Callable[[], Sequence[GpuReading] | None] | None = read_gpus

    def read(self) -> Readings:
        """A reading; raises OSError or ValueError where `/proc` is not what it is on Linux."""
        ticks = [int(each) for each in (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        memory = {}
        for line in (self._proc / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                memory[name] = int(rest.split()[0]) << 10
        gpus = None if self._read_gpus is None else self._read_gpus()
        if gpus is None:
            self._read_gpus = None
        cpu = CpuTimes(sum(ticks), ticks[3] + ticks[4])
        return Readings(cpu, memory.get("MemTotal", 0), memory.get("MemAvailable", 0), gpus or ())


class MachineMetrics(MetricsSource):
    """The latest reading of the machine, which a scrape renews if it is older than `interval_s`.

    `devices` maps partitions to the UUIDs of their GPUs or MIG instances. The machine is read in a thread, one reading
    at a time, and only when somebody scrapes.
    """

    def __init__(
        self,
        interval_s: float,
        devices: Callable[[], Mapping[str, str]] = dict,
        reader: MachineReader | None = None,
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        self._interval_s = interval_s
        self._devices = devices
        self._reader = reader or MachineReader()
        self._clock_s = clock_s
        self._read_s = float("-inf")
        self._before: CpuTimes | None = None
        self._latest: Readings | None = None
        self._utilisation = 0.0
        self._first_energy: dict[str, float] = {}
        self._reading: asyncio.Future[Readings] | None = None

    async def refresh(self) -> None:
        """Read the machine again if it is time; a reading that takes too long is left for the next scrape."""
        if self._reading is None:
            if self._clock_s() - self._read_s < self._interval_s:
                return
            self._reading = in_daemon_thread(self._reader.read)
            self._reading.add_done_callback(self._took)
        await asyncio.wait([self._reading], timeout=READ_TIMEOUT_S)

    def _took(self, reading: asyncio.Future[Readings]) -> None:
        self._reading = None
        if reading.cancelled() or reading.exception() is not None:
            return
        latest = reading.result()
        self._read_s = self._clock_s()
        if self._before is not None and latest.cpu.total > self._before.total:
            idle = (latest.cpu.idle - self._before.idle) / (latest.cpu.total - self._before.total)
            self._utilisation = min(max(1.0 - idle, 0.0), 1.0)
        self._before = latest.cpu
        self._latest = latest
        for gpu in latest.gpus:
            if gpu.energy_j is not None:
                self._first_energy.setdefault(gpu.uuid, gpu.energy_j)

    def collect(self) -> Iterator[Metric]:
        """No family is made for prometheus_client: Triton's counters do not end in `_total`."""
        yield from ()

    def groups(self) -> Iterator[Group]:
        """All families; none before the first reading."""
        latest = self._latest
        if latest is None:
            return
        used = latest.memory_total - latest.memory_available
        for family, value in (
            (CPU_UTILIZATION, self._utilisation),
            (CPU_MEMORY_TOTAL, latest.memory_total),
            (CPU_MEMORY_USED, used),
        ):
            yield Group((family,), [(family.sample((), value),)])
        whole = [gpu for gpu in latest.gpus if not gpu.uuid.startswith("MIG-")]
        for family, of in _OF_GPUS:
            values = [(gpu.uuid, of(gpu)) for gpu in whole]
            yield Group((family,), [(family.sample((uuid,), value),) for uuid, value in values if value is not None])
        energy = [
            (GPU_ENERGY.sample((gpu.uuid,), gpu.energy_j - self._first_energy[gpu.uuid]),)
            for gpu in whole
            if gpu.energy_j is not None
        ]
        yield Group((GPU_ENERGY,), energy)
        yield Group((PARTITION_MEMORY_TOTAL, PARTITION_MEMORY_USED), self._partition_texts(latest))

    def _partition_texts(self, latest: Readings) -> Iterator[tuple[str, ...]]:
        gpus = {gpu.uuid: gpu for gpu in latest.gpus}
        for partition, device in self._devices().items():
            gpu = gpus.get(device)
            if gpu is not None and gpu.memory_total_bytes is not None and gpu.memory_used_bytes is not None:
                labels = device, partition
                yield (
                    PARTITION_MEMORY_TOTAL.sample(labels, gpu.memory_total_bytes),
                    PARTITION_MEMORY_USED.sample(labels, gpu.memory_used_bytes),
                )


def in_daemon_thread(read: Callable[[], T]) -> asyncio.Future[T]:
    """Read in a thread that does not keep the process from ending, as one of the loop's executor would."""
    loop = asyncio.get_running_loop()
    reading: asyncio.Future[T] = loop.create_future()

    def attempt() -> None:
        give: Callable[[], None]
        try:
            give = partial(reading.set_result, read())
        except Exception as error:
            give = partial(reading.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: the server has ended
            loop.call_soon_threadsafe(give)

    threading.Thread(target=attempt, name="machine", daemon=True).start()
    return reading
