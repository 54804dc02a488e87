"""A server with all processes that it has started: their processor time, their memory, and their end."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path


def activated(environment: Path) -> dict[str, str]:
    """The variables of a user who has activated a virtual environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(environment)}


def tree(pid: int) -> list[int]:
    """A process, those that it has started, and those that these have."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def cpu_ns(pids: list[int]) -> int:
    """The processor time that the living threads of processes have used so far."""
    total = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                total += int(thread.read_text().split()[0])
    return total


def pss_kb(pid: int) -> int:
    """The proportional set size of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Ask a server to end, and kill what is left of it and of the processes that it has started."""
    started = tree(process.pid)
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
