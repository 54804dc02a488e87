"""Servers under measurement: processes pinned to cores."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.support.process_tree import pss_kb

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 60.0


class ServerProcess:
    """A running server with the ports from its ready file."""

    def __init__(self, process: subprocess.Popen[bytes], ready: dict[str, int]) -> None:
        self.process = process
        self.http_port = ready.get("http_port", 0)
        self.grpc_port = ready.get("grpc_port", 0)

    def cpu_s(self) -> float:
        """CPU time used so far by the server and its children."""
        return sum(process_cpu_s(pid) for pid in self.pids())

    def pss_mb(self) -> float:
        """Proportional set size of the server and its children, in MB."""
        return sum(pss_kb(pid) for pid in self.pids()) / 1024

    def rss_mb(self) -> float:
        """Resident memory of the server's own process, in MB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

    def keep_on(self, core: int) -> None:
        """Pin the server's own process to a core; its workers already have cores of their own."""
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})

    def pids(self) -> list[int]:
        """The server's process and its children."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [self.process.pid, *map(int, children)]


@contextmanager
def running(arguments: list[str], ready_file: Path, core: int | None) -> Iterator[ServerProcess]:
    """Run `python ARGUMENTS` on a core until the block ends; the server writes the ready file when it serves."""
    ready_file.unlink(missing_ok=True)
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with pinned(core):  # a child inherits the affinity
        process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=environment)
    try:
        until = time.monotonic() + START_TIMEOUT_S
        while not ready_file.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{arguments} did not start (exit status {process.poll()})")
            time.sleep(0.02)
        yield ServerProcess(process, json.loads(ready_file.read_text()))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=START_TIMEOUT_S)


@contextmanager
def gateway(directory: Path, config: str, core: int | None, *options: str) -> Iterator[ServerProcess]:
    """Run `sluice serve` with this configuration file on free ports."""
    file = directory / "sluice.yaml"
    file.write_text(config)
    ready = directory / "gateway.json"
    ports = ["--http-port", "0", "--grpc-port", "0", "--log-level", "warning"]
    arguments = [
        "-m",
        "sluice.gateway.cli.main",
        "serve",
        "--config",
        str(file),
        "--ready-file",
        str(ready),
        *ports,
        *options,
    ]
    with running(arguments, ready, core) as server:
        yield server


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Pin this process to one core until the block ends (None: unchanged)."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if core is None else {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def alternate(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """Run the measures in turn, ABAB…, so that noise affects all alike; returns the median of each."""
    values: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for results, measure in zip(values, measures, strict=True):
            results.append(measure())
    return [sorted(results)[len(results) // 2] for results in values]


def process_cpu_s(pid: int) -> float:
    """CPU time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
