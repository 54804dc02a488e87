"""Facts about processes from /proc: existence, cores, memory files, children; and waiting for a condition."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""


def alive(pid: int) -> bool:
    """True while a process exists, even as a zombie."""
    return Path(f"/proc/{pid}").exists()


def allowed_cores(pid: int) -> set[str]:
    """The core lists that the threads of a process may run on."""
    statuses = _of_threads(pid, "status")
    return {line.split()[1] for status in statuses for line in status.splitlines() if "Cpus_allowed_list" in line}


def memory_files(pid: int, name: str) -> list[str]:
    """The anonymous files of a process, open or mapped, whose name contains `name`."""
    found = [line.split()[-2] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/memfd:" in line]
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return [entry for entry in found if "memfd:" in entry and name in entry]


def children(pid: int) -> list[int]:
    """The child processes of a process, of all its threads, without the front ends of a server."""
    return sorted(set(_children(pid)) - set(front_ends(pid)))


def front_ends(pid: int) -> list[int]:
    """The processes of the front ends of a server."""
    return sorted(child for child in _children(pid) if b"sluice.gateway.front_ends.main" in _command(child))


def peers(pid: int, port: int) -> set[int]:
    """The ports of the clients that a process has accepted on a port."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            inodes.add(os.readlink(descriptor))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        int(words[2].rpartition(":")[2], 16)
        for words in lines
        if words[3] != _LISTENS and f"socket:[{words[9]}]" in inodes and int(words[1].rpartition(":")[2], 16) == port
    }


def _children(pid: int) -> list[int]:
    return [int(child) for text in _of_threads(pid, "children") for child in text.split()]


def _command(pid: int) -> bytes:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _of_threads(pid: int, name: str) -> Iterator[str]:
    """The content of a file of each thread of a process; threads that end meanwhile are left out."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            yield (task / name).read_text()


def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Wait until a condition holds; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {timeout_s:g} s"
        time.sleep(0.01)
