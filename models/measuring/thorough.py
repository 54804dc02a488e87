"""The thorough measurement of a model for its profile: percentiles of latency, memory, and the time of loading."""

import math
import time
from collections.abc import Callable, Generator, Sequence

from sluice.models.backends.base import Backend
from sluice.models.backends.device_errors import is_out_of_memory
from sluice.models.backends.first_runs import FirstRuns, Shapes, batch_in_words
from sluice.models.errors import BackendFailed
from sluice.models.measuring.memory_meter import MemoryMeter
from sluice.models.measuring.memory_peaks import MemoryPeaks
from sluice.models.profiles.measurement import Cell, Measurement
from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import DeclaredTensors
from sluice.models.units import NS_PER_S

WARM_UP_RUNS = 3
"""Runs of a batch size before those that count."""
MIN_RUNS, MAX_RUNS = 100, 1000
LEAST_RUNS = 5
"""Counted runs of a batch size that has used up its time."""
TIME_NS = 3 * NS_PER_S
"""Time of a batch size after which no further run begins."""
PRECISION = 0.02
"""Half the width of the median's 95 % confidence interval, relative to it, at which a batch size is settled."""
_CHECK_RUNS = 50


def profile_steps(
    load: Callable[[], Backend],
    batchable: bool,
    batches: Sequence[int],
    memory: MemoryMeter,
    shapes: Shapes | None = None,
    declared: DeclaredTensors | None = None,
) -> Generator[None, None, Measurement]:
    """Load a model and measure it at `batches`, ascending, a run a step; raises as `load` does, and BackendFailed.

    Call it in a process that holds no other model, with a new meter of its memory. Inputs, and the check against
    `declared`, are as for `quick.measure_steps`. A batch size is warmed up and then run until its median is settled
    (see `is_settled`), at least `MIN_RUNS` and at most `MAX_RUNS` times; one that takes too long for that is run for
    `TIME_NS`, at least `LEAST_RUNS` times. The measurement ends before the first size that memory is too small for,
    unless it is the first of all. All figures are order statistics, which single disturbed runs do not move.
    """
    started = time.monotonic_ns()
    backend = load()
    load_ns = time.monotonic_ns() - started
    yield
    runs = FirstRuns(backend, batchable, shapes, declared)
    cells: list[Cell] = []
    peaks = MemoryPeaks(memory)
    first_ns = 0
    no_memory_batch = None
    for rows in batches:
        peaks.begin()
        try:
            inputs, first = runs.run(rows)
            times = yield from _times_ns(backend, inputs)
        except (BackendFailed, MemoryError) as error:
            if cells and is_out_of_memory(error):
                no_memory_batch = rows
                break
            raise BackendFailed(f"{batch_in_words(rows)}: {error or 'out of memory'}") from error
        first_ns = first_ns or first
        cells.append(percentiles(rows, times))
        peaks.end(rows)
    taken = peaks.model_memory()
    return Measurement(
        cells=tuple(cells),
        memory_rest_bytes=None if taken is None else taken.rest_bytes,
        memory_row_bytes=None if taken is None else taken.row_bytes,
        load_ns=load_ns,
        warm_up_ns=max(0, first_ns - cells[0].p50_ns),
        no_memory_batch=no_memory_batch,
    )


def is_settled(times_ns: Sequence[int]) -> bool:
    """Return whether the median of ascending times is known within `PRECISION` of it, at 95 % confidence.

    The confidence interval is that of the sign test: it holds for any distribution.
    """
    count = len(times_ns)
    margin = 0.98 * math.sqrt(count)
    low, high = math.floor(count / 2 - margin) - 1, math.ceil(count / 2 + margin)
    if low < 0 or high >= count:
        return False
    middle = times_ns[count // 2]
    return times_ns[low] >= middle * (1 - PRECISION) and times_ns[high] <= middle * (1 + PRECISION)


def percentiles(rows: int, times_ns: Sequence[int]) -> Cell:
    """The cell of ascending times: a percentile is the smallest time that enough of the runs did not exceed."""
    p50, p90, p99 = (times_ns[-(-len(times_ns) * percent // 100) - 1] for percent in (50, 90, 99))
    return Cell(rows, p50, p90, p99, len(times_ns))


def _times_ns(backend: Backend, inputs: dict[str, Array]) -> Generator[None, None, list[int]]:
    """Ascending times of the counted runs, after the remaining warm-up runs."""
    for _ in range(WARM_UP_RUNS - 1):
        yield
        _run_ns(backend, inputs)
    times: list[int] = []
    begun = time.monotonic_ns()
    while len(times) < MAX_RUNS:
        yield
        times.append(_run_ns(backend, inputs))
        if len(times) >= LEAST_RUNS and time.monotonic_ns() - begun >= TIME_NS:
            break
        if len(times) >= MIN_RUNS and len(times) % _CHECK_RUNS == 0 and is_settled(sorted(times)):
            break
    return sorted(times)


def _run_ns(backend: Backend, inputs: dict[str, Array]) -> int:
    started = time.monotonic_ns()
    backend.run(inputs)
    return max(1, time.monotonic_ns() - started)
