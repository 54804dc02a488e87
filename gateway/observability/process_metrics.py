"""Metrics of the processes of a server: the scheduler's under the usual names, workers and front ends by label."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from sluice.gateway.observability.metrics import MetricsSource

_PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessUsage(NamedTuple):
    """The processor time of a process in s, and its resident memory."""

    cpu_s: float
    resident_bytes: int


class ProcessMetrics(MetricsSource):
    """`process_*` of this process, and processor time and memory of `others`: process ids by name.

    All are read in a thread at each scrape.
    """

    def __init__(self, others: Callable[[], Mapping[str, int]] = dict) -> None:
        self._others = others
        self._own = ProcessCollector(registry=None)
        self._families: list[Metric] = []
        self._found: dict[str, ProcessUsage] = {}

    async def refresh(self) -> None:
        """Read `/proc`."""
        others = dict(self._others())
        loop = asyncio.get_running_loop()
        self._families, self._found = await loop.run_in_executor(None, self._read, others)

    def _read(self, others: Mapping[str, int]) -> tuple[list[Metric], dict[str, ProcessUsage]]:
        found = {name: process for name, pid in others.items() if (process := read_process(pid)) is not None}
        return list(self._own.collect()), found

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client; none before the first refresh."""
        yield from self._families
        cpu = CounterMetricFamily(
            "sluice_process_cpu_seconds",
            "Processor time, user and system, of a worker or front end; that of the server's main process is "
            "process_cpu_seconds_total.",
            labels=["process"],
        )
        memory = GaugeMetricFamily(
            "sluice_process_resident_memory_bytes",
            "Resident memory of a worker or front end, memory that it shares with other processes included.",
            labels=["process"],
        )
        for name, process in self._found.items():
            cpu.add_metric([name], process.cpu_s)
            memory.add_metric([name], process.resident_bytes)
        yield from (cpu, memory)


def read_process(pid: int) -> ProcessUsage | None:
    """A process; None for one that has ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return ProcessUsage((int(fields[11]) + int(fields[12])) * _TICK_S, int(fields[21]) * _PAGE_BYTES)
    except (OSError, IndexError, ValueError):
        return None
