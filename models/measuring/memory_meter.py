"""Meters of the memory that a model takes."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from sluice.models.processes import process_tree

# glibc keeps freed memory until `malloc_trim`; other C libraries have no such calls.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
_mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
_ARENA_MAX = -8
"""The option of mallopt that limits the number of arenas."""


class MemoryMeter(Protocol):
    """Measures memory in use beyond the use when the meter was made."""

    def restart(self) -> None:
        """Reset the peak."""
        ...

    def peak_bytes(self) -> int | None:
        """The peak since then; None if it cannot be measured."""
        ...


class HostMemoryMeter:
    """The memory of this process and its descendants, in which Python models run."""

    def __init__(self) -> None:
        self.restart()
        self._base = _peak_bytes()

    def restart(self) -> None:
        """Reset the peak: loading may take twice the weights, which would hide the memory of batches.

        Freed memory is returned to the system first: otherwise the next model would reuse it and seem to take nothing.
        """
        trim()
        for process in process_tree(os.getpid()):
            with suppress(OSError):  # without the permission the peak is too high, rather than too low
                Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")

    def peak_bytes(self) -> int | None:
        """The sum of the peaks of all processes."""
        return _peak_bytes() - self._base


def share_one_arena() -> None:
    """Make all threads allocate in one arena; to be called while there is only the first thread.

    `trim` would not return the free end of a thread's own arena.
    """
    if _mallopt is not None:
        _mallopt(_ARENA_MAX, 1)


def trim() -> None:
    """Return the memory that this process has freed to the system."""
    if _trim is not None:
        _trim(ctypes.c_size_t(0))


def _peak_bytes() -> int:
    peaks = []
    for process in process_tree(os.getpid()):
        with suppress(OSError):  # the process has ended
            lines = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines()
            peaks += [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return sum(peaks)
