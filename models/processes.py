"""Processes of this machine as `/proc` shows them, and the import path of the Python processes that Sluice starts."""

import os
from collections.abc import Iterator
from pathlib import Path

import sluice

IMPORT_ROOT = str(Path(sluice.__file__).parents[1])
"""The directory that the package `sluice` is imported from: `site-packages`, or `src` in a clone of the repository."""

_PROC = Path("/proc")


TELEMETRY_OFF = {"ORT_DISABLE_TELEMETRY": "1"}
"""The variable that keeps ONNX Runtime from reporting to its makers; it must be set before the library starts."""


def python_path() -> str:
    """Return the PYTHONPATH of a process that runs a module of Sluice."""
    return os.pathsep.join(filter(None, (IMPORT_ROOT, os.environ.get("PYTHONPATH"))))


def process_tree(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants, as far as the kernel lists them."""
    yield pid
    if pid == os.getpid() and not _has_children():
        return
    for tid in threads_of(pid):
        try:
            children = (_PROC / str(pid) / "task" / str(tid) / "children").read_text(encoding="ascii").split()
        except OSError:  # the thread has just ended
            continue
        for child in children:
            yield from process_tree(int(child))


def threads_of(pid: int) -> list[int]:
    """Return the thread ids of a process; a process that has ended has none."""
    try:
        return [int(name) for name in os.listdir(_PROC / str(pid) / "task")]
    except OSError:
        return []


def process_name(pid: int) -> str:
    """Return a process as messages name it, for example `python (pid 4242)`."""
    try:
        return f"{(_PROC / str(pid) / 'comm').read_text(encoding='utf-8').strip()} (pid {pid})"
    except OSError:  # the process has ended, or is in another namespace
        return f"pid {pid}"


def _has_children() -> bool:
    """Return whether this process has children; asking each of thousands of threads is slow."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
