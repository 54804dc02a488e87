"""The MPS processes of this machine: finds the daemons and servers, and ends them."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from sluice.models.errors import ControlFailed

PROGRAM = "nvidia-cuda-mps-control"
_PREFIX = "nvidia-cuda-mps"
_PIPE_VARIABLE = b"CUDA_MPS_PIPE_DIRECTORY="
_PROGRAM_WORDS = 3
"""Number of leading words of a command line that may name the program, after an interpreter and its option."""


def mps_processes(pipes: Path) -> tuple[int, ...]:
    """The daemons and servers that were started for a pipe directory, as far as this user may see them."""
    wanted = _PIPE_VARIABLE + os.fsencode(pipes)
    return tuple(pid for pid in _all_processes() if _is_mps(pid) and wanted in _read(pid, "environ").split(b"\0"))


def control_daemons() -> tuple[tuple[int, dict[str, str]], ...]:
    """The control daemons of this machine: process ids in order, and environments as far as this user may see them."""
    found = []
    for pid in _all_processes():
        words = [os.fsdecode(word) for word in _read(pid, "cmdline").split(b"\0")]
        names = [os.path.basename(word) for word in words[:_PROGRAM_WORDS]]
        if PROGRAM in names and {"-d", "-f", "--daemon", "--foreground"} & set(words):
            variables = (os.fsdecode(word).partition("=") for word in _read(pid, "environ").split(b"\0") if word)
            found.append((pid, {name: value for name, _, value in variables}))
    return tuple(found)


def end_processes(pids: Sequence[int], timeout_s: float) -> None:
    """Send SIGTERM, then SIGKILL after half of `timeout_s`; raises ControlFailed if a process still runs at the end."""
    left = list(pids)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.ExitStack() as stack:
            watched = {}
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    watched[os.pidfd_open(pid)] = pid
            for descriptor in watched:
                stack.callback(os.close, descriptor)
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, number)
            left = [watched[descriptor] for descriptor in _await_end(watched, timeout_s / 2)]
        if not left:
            return
    raise ControlFailed(f"MPS processes {', '.join(map(str, left))}: still running after SIGKILL")


def _await_end(descriptors: Iterable[int], timeout_s: float) -> set[int]:
    """Wait for processes to end; returns the pidfds of those that still run after `timeout_s`."""
    left = set(descriptors)
    waiting = select.poll()  # select() refuses descriptors above 1023, which a busy server has
    for descriptor in left:
        waiting.register(descriptor, select.POLLIN)
    deadline_s = time.monotonic() + timeout_s
    while left and (rest_s := deadline_s - time.monotonic()) > 0:
        for descriptor, _ in waiting.poll(rest_s * 1000):
            waiting.unregister(descriptor)
            left.remove(descriptor)
    return left


def _all_processes() -> Iterable[int]:
    return sorted(int(entry) for entry in os.listdir("/proc") if entry.isdecimal())


def _is_mps(pid: int) -> bool:
    """True if the name of the program, or of the script that it runs, is that of an MPS process."""
    words = _read(pid, "cmdline").split(b"\0")[:_PROGRAM_WORDS]
    return any(os.path.basename(os.fsdecode(word)).startswith(_PREFIX) for word in words)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # the process has exited, or belongs to another user
        return b""
