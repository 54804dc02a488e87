"""The first latency table of a model: the batch sizes of its menu are warmed up and timed when it is loaded."""

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TypeVar

from sluice.models.backends.base import Backend
from sluice.models.backends.device_errors import is_out_of_memory
from sluice.models.backends.first_runs import FirstRuns, Shapes, naming_rows
from sluice.models.measuring.memory_peaks import MemoryPeaks
from sluice.models.measuring.model_loading import DEFAULT_MODEL_LOADING
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import DeclaredTensors
from sluice.models.units import NS_PER_MS

_T = TypeVar("_T")
_SIZE_NS = 250 * NS_PER_MS
"""Time after which no further run of a batch size begins."""
_AGREEMENT = 0.05
"""Two runs of a batch size that differ by less, relative to the shorter one, are enough."""
_KNOWN = 0.1
"""A first run that differs by less from the line through the two sizes before is not repeated."""


def run_to_end(steps: Generator[None, None, _T]) -> _T:
    """Run all steps; returns the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result


def warm_up_steps(
    backend: Backend,
    batchable: bool,
    menu: Iterable[int],
    table: LatencyTable,
    shapes: Shapes | None = None,
    peaks: MemoryPeaks | None = None,
    budget_ns: int = DEFAULT_MODEL_LOADING.run_ns,
    declared: DeclaredTensors | None = None,
) -> Generator[None, None, None]:
    """Run the batch sizes of the menu once, one a step, so that no request pays for a first run.

    It ends before the first size that memory is too small for, or that would exceed the budget by the `table`. Raises
    BackendFailed, also when memory is too small for the first size of all, and when an output is not as `declared`
    (by default, by the backend). `peaks` measures the memory meanwhile.
    """
    sizes = list(menu)
    totals = accumulate(map(table.latency_ns, sizes))
    within = [rows for rows, total_ns in zip(sizes, totals, strict=True) if total_ns <= budget_ns]
    for _ in _warm(backend, batchable, within or sizes[:1], shapes, peaks or MemoryPeaks(None), declared):
        yield


def measure_steps(
    backend: Backend,
    batchable: bool,
    menu: Iterable[int],
    repeats: int = 5,
    shapes: Shapes | None = None,
    peaks: MemoryPeaks | None = None,
    budget_ns: int = DEFAULT_MODEL_LOADING.run_ns,
    declared: DeclaredTensors | None = None,
) -> Generator[None, None, LatencyTable]:
    """Warm up the batch sizes of the menu, ascending, time them, and return the medians; a step is one run.

    Running out of memory, `peaks` and errors are as for `warm_up_steps`. The inputs are zeros, with variable dimensions
    of 1 unless `shapes` has others or the model needs more (see `FirstRuns`). A size gets a first run. If that took
    what the line through the two sizes before predicts, the curve is known, and it is taken as the latency. Otherwise
    up to `repeats` timed runs follow, at least one, until two agree; no further one begins after a quarter of a second.
    If there is only one, the first run counts as well; of two medians the lower one is taken. The time between two
    steps does not count.

    A size whose first run would exceed `budget_ns`, at the time per row of the size before, is not run, nor are larger
    ones: they get that time per row, which is more than a model that gains from batches takes. The very first run, in
    which libraries may start, does not count.
    """
    cells: list[tuple[int, int]] = []
    left: list[int] = []
    spent_ns = 0

    def sizes() -> Iterator[int]:
        for rows in menu:
            if left or (cells and spent_ns + _in_proportion(cells[-1], rows) > budget_ns):
                left.append(rows)
            else:
                yield rows

    for rows, inputs, first_ns in _warm(backend, batchable, sizes(), shapes, peaks or MemoryPeaks(None), declared):
        yield
        spent_ns += first_ns if cells else 0
        if _is_known(cells, rows, first_ns):
            cells.append((rows, first_ns))
            continue
        times: list[int] = []
        while len(times) < repeats and sum(times) < _SIZE_NS and not _agree(times):
            started = time.monotonic_ns()
            backend.run(inputs)
            times.append(max(1, time.monotonic_ns() - started))
            yield
        spent_ns += sum(times)
        # One run may have been delayed by more than the limit, and a cell far too high is never corrected.
        if len(times) == 1:
            times.append(first_ns)
        cells.append((rows, sorted(times)[(len(times) - 1) // 2]))
    return LatencyTable((*cells, *((rows, _in_proportion(cells[-1], rows)) for rows in left)))


def measure_table(
    backend: Backend,
    batchable: bool,
    menu: Iterable[int],
    repeats: int = 5,
    shapes: Shapes | None = None,
    declared: DeclaredTensors | None = None,
) -> LatencyTable:
    """Run all of `measure_steps` at once."""
    return run_to_end(measure_steps(backend, batchable, menu, repeats, shapes, declared=declared))


def _is_known(cells: Sequence[tuple[int, int]], rows: int, took_ns: int) -> bool:
    """Return whether a size took what the line through the last two cells predicts."""
    if len(cells) < 2:
        return False
    (first, first_ns), (second, second_ns) = cells[-2:]
    line_ns = second_ns + (second_ns - first_ns) * (rows - second) / (second - first)
    return abs(took_ns - line_ns) <= _KNOWN * line_ns


def _agree(times_ns: Sequence[int]) -> bool:
    """Return whether the two shortest of the times are close."""
    shortest = sorted(times_ns)[:2]
    return len(shortest) == 2 and shortest[1] - shortest[0] <= _AGREEMENT * shortest[0]


def _in_proportion(cell: tuple[int, int], rows: int) -> int:
    """The nanoseconds of a larger size at the time per row of a cell."""
    size, took_ns = cell
    return took_ns * rows // size


def _warm(
    backend: Backend,
    batchable: bool,
    menu: Iterable[int],
    shapes: Shapes | None,
    peaks: MemoryPeaks,
    declared: DeclaredTensors | None,
) -> Iterator[tuple[int, dict[str, Array], int]]:
    """Yield each size that memory suffices for, with inputs that have run once, and the nanoseconds of that run."""
    runs = FirstRuns(backend, batchable, shapes, declared)
    for number, rows in enumerate(menu):
        peaks.begin()
        try:
            with naming_rows(rows if batchable else None):
                inputs, took_ns = runs.run(rows)
        except Exception as error:  # backends raise any type
            if not number or not is_out_of_memory(error):
                raise
            return
        peaks.end(rows)
        yield rows, inputs, took_ns
