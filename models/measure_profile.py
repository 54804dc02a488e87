"""The thorough measurement of a model, for its profile: percentiles of latency, memory, times of loading."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from statistics import median

from models.arrays import Array
from models.backends.base import Backend
from models.errors import BackendFailed
from models.measure import blank_batch
from models.profile_file import Cell, Measurement
from models.units import NS_PER_S

WARM_UP_RUNS = 3
"""Runs of a batch size before those that count."""
MIN_RUNS, MAX_RUNS = 100, 1000
LEAST_RUNS = 5
"""Runs that count of a batch size whose time is up."""
TIME_NS = 3 * NS_PER_S
"""Time that no further run of a batch size begins after."""
PRECISION = 0.02
"""Half the width of the median's 95 % confidence interval, relative to it, at which a batch size is settled."""
_CHECK_RUNS = 50


def measure_profile(load: Callable[[], Backend], batchable: bool, batches: Sequence[int]) -> Measurement:
    """Load a model and measure it at `batches`, ascending: time and memory; raises what `load` does and BackendFailed.

    To be called in a process of its own that holds no other model, since its memory is what is measured. Inputs are as
    for `models.measure.measuring`. A batch size is warmed and then run until its median is settled (see `settled`), at
    least `MIN_RUNS` and at most `MAX_RUNS` times; one that takes too long for that is run for `TIME_NS`, at least
    `LEAST_RUNS` times. All figures are order statistics, which single disturbed runs do not move.
    """
    _forget_peak_memory()
    base = _peak_memory()
    started = time.monotonic_ns()
    backend = load()
    load_ns = time.monotonic_ns() - started
    cells: list[Cell] = []
    peaks: list[tuple[int, int]] = []
    first_ns = 0
    for rows in batches:
        _forget_peak_memory()
        try:
            inputs = blank_batch(backend, batchable, rows)
            warm_up = [_run_ns(backend, inputs) for _ in range(WARM_UP_RUNS)]
            times = _times_ns(backend, inputs)
        except (BackendFailed, MemoryError) as error:
            raise BackendFailed(f"batch {rows}: {error or 'out of memory'}") from error
        first_ns = first_ns or warm_up[0]
        cells.append(percentiles(rows, times))
        peaks.append((rows, _peak_memory() - base))
    row_bytes, rest_bytes = robust_line(peaks)
    return Measurement(
        cells=tuple(cells),
        memory_rest_bytes=max(0, round(rest_bytes)),
        memory_row_bytes=max(0, round(row_bytes)),
        load_ns=load_ns,
        warm_up_ns=max(0, first_ns - cells[0].p50_ns),
    )


def settled(times_ns: Sequence[int]) -> bool:
    """Whether the 95 % confidence interval of the median of ascending times is within `PRECISION` of it, both ways.

    The interval is that of the sign test: it holds for any distribution.
    """
    count = len(times_ns)
    margin = 0.98 * math.sqrt(count)
    low, high = math.floor(count / 2 - margin) - 1, math.ceil(count / 2 + margin)
    if low < 0 or high >= count:
        return False
    middle = times_ns[count // 2]
    return times_ns[low] >= middle * (1 - PRECISION) and times_ns[high] <= middle * (1 + PRECISION)


def robust_line(points: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Slope and intercept by Theil and Sen: medians over all pairs of points, which a few stray ones do not move.

    One point by itself has slope 0.
    """
    slope = median([(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2)] or [0.0])
    return slope, median(y - slope * x for x, y in points)


def percentiles(rows: int, times_ns: Sequence[int]) -> Cell:
    """The cell of ascending times: a percentile is the smallest time that so many of the runs did not exceed."""
    p50, p90, p99 = (times_ns[-(-len(times_ns) * percent // 100) - 1] for percent in (50, 90, 99))
    return Cell(rows, p50, p90, p99, len(times_ns))


def _times_ns(backend: Backend, inputs: dict[str, Array]) -> list[int]:
    """Times of the runs that count, ascending."""
    times: list[int] = []
    begun = time.monotonic_ns()
    while len(times) < MAX_RUNS:
        times.append(_run_ns(backend, inputs))
        if len(times) >= LEAST_RUNS and time.monotonic_ns() - begun >= TIME_NS:
            break
        if len(times) >= MIN_RUNS and len(times) % _CHECK_RUNS == 0 and settled(sorted(times)):
            break
    return sorted(times)


def _run_ns(backend: Backend, inputs: dict[str, Array]) -> int:
    started = time.monotonic_ns()
    backend.run(inputs)
    return max(1, time.monotonic_ns() - started)


def _forget_peak_memory() -> None:
    """Start the peak anew, so that loading, which may take twice the weights, does not hide what batches take."""
    for process in _processes():
        with suppress(OSError):  # a kernel that does not let us leaves a peak that is too high rather than too low
            (process / "clear_refs").write_text("5", encoding="ascii")


def _peak_memory() -> int:
    """The most memory that this process, and that each of those it has started, held at a time, in bytes."""
    peaks = []
    for process in _processes():
        with suppress(OSError):  # it has ended
            lines = (process / "status").read_text(encoding="ascii", errors="replace").splitlines()
            peaks += [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return sum(peaks)


def _processes() -> list[Path]:
    """This process and those that it has started, which models in Python run in, under `/proc`."""
    children = [each for file in Path("/proc/self/task").glob("*/children") for each in file.read_text("ascii").split()]
    return [Path("/proc/self"), *(Path("/proc", child) for child in children)]
