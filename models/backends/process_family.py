"""The processes that descend from one: models may run in processes of their own."""

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def family(pid: int) -> Iterator[int]:
    """A process and all that descend from it, as far as this kernel tells."""
    yield pid
    if pid == os.getpid() and not _has_children():
        return
    for tid in threads_of(pid):
        try:
            children = (_PROC / str(pid) / "task" / str(tid) / "children").read_text(encoding="ascii").split()
        except OSError:  # it has just ended
            continue
        for child in children:
            yield from family(int(child))


def threads_of(pid: int) -> list[int]:
    """The threads of a process; none of one that is gone."""
    try:
        return [int(name) for name in os.listdir(_PROC / str(pid) / "task")]
    except OSError:
        return []


def _has_children() -> bool:
    """Whether it is worth to ask thousands of threads for theirs."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
