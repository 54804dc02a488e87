"""The clock that all times of a run are read from."""

import time
from itertools import pairwise
from pathlib import Path

import msgspec

_READS = 2000
_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


class Clock(msgspec.Struct, frozen=True):
    """The monotonic clock: the kernel's source of it, its smallest step, and the time that one reading takes."""

    source: str
    step_ns: int
    read_ns: float


def measure_clock() -> Clock:
    """Read the clock many times in a row."""
    reads = [time.monotonic_ns() for _ in range(_READS)]
    steps = [later - earlier for earlier, later in pairwise(reads)]
    source = _SOURCE.read_text().strip() if _SOURCE.exists() else "unknown"
    return Clock(source, min((step for step in steps if step > 0), default=0), sorted(steps)[len(steps) // 2])
