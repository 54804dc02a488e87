"""How much memory a model takes, as far as somebody tells it."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from sluice.models.processes import process_tree

# glibc keeps what a model leaves behind until it is told not to; another C library has no such calls.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
_mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
_ARENA_MAX = -8
"""Of mallopt: how many arenas there may be."""


class MemoryMeter(Protocol):
    """What is taken beyond what was taken when the meter was made."""

    def restart(self) -> None:
        """Start the peak anew."""
        ...

    def peak_bytes(self) -> int | None:
        """The most that was taken at a time since then; None where nobody tells."""
        ...


class HostMemory:
    """The memory of this process and of those that it has started, which models in Python run in."""

    def __init__(self) -> None:
        self.restart()
        self._base = _peak_bytes()

    def restart(self) -> None:
        """Start the peak anew: loading may take twice the weights, which would hide what batches take.

        What was freed goes back to the system first: the next model would be given it, and so seem to take nothing.
        """
        trim()
        for process in process_tree(os.getpid()):
            with suppress(OSError):  # a kernel that does not let us leaves a peak that is too high rather than too low
                Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")

    def peak_bytes(self) -> int | None:
        """The sum of the most that each process held."""
        return _peak_bytes() - self._base


def share_one_arena() -> None:
    """Have all threads allocate in one place; before there are others than the first one.

    Of what is free at the end of an arena that a thread has of its own, `trim` would give nothing back.
    """
    if _mallopt is not None:
        _mallopt(_ARENA_MAX, 1)


def trim() -> None:
    """Give what this process has freed back to the system."""
    if _trim is not None:
        _trim(ctypes.c_size_t(0))


def _peak_bytes() -> int:
    peaks = []
    for process in process_tree(os.getpid()):
        with suppress(OSError):  # it has ended
            lines = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines()
            peaks += [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return sum(peaks)
