"""The first latency table of a model: every batch size of its menu is warmed up and timed when it is loaded."""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from sluice.models.backends.base import Backend
from sluice.models.backends.device_errors import is_out_of_memory
from sluice.models.measuring.memory_peaks import MemoryPeaks
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.tensors.arrays import Array, numpy_dtype
from sluice.models.tensors.spec import VARIABLE, DataType, TensorSpec
from sluice.models.units import NS_PER_MS

_T = TypeVar("_T")
_BUDGET_NS = 250 * NS_PER_MS
Shapes = Mapping[str, tuple[int, ...]]
"""Item shapes for inputs of variable shape, by input."""


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
    shapes: Shapes | None = None,
    peaks: MemoryPeaks | None = None,
) -> Generator[None, None, None]:
    """Run every batch size of the menu once, one a step, so that no request pays for a first run.

    It ends before the first size that memory is too small for. Raises BackendFailed, also when that is the first size
    of all. `peaks` measures the memory meanwhile.
    """
    for _ in _warm(backend, batchable, menu, shapes, peaks or MemoryPeaks(None)):
        yield


def measure_steps(
    backend: Backend,
    batchable: bool,
    menu: Iterable[int],
    repeats: int = 5,
    shapes: Shapes | None = None,
    peaks: MemoryPeaks | None = None,
) -> Generator[None, None, LatencyTable]:
    """Warm up every batch size of the menu, time it, and return the medians; a step is one run.

    Running out of memory, `peaks` and errors are as for `warm_up_steps`. The inputs are zeros, with variable dimensions
    of 1 unless `shapes` has others. A size gets a warm-up run and up to `repeats` timed ones, at least one, and no
    further one after a quarter of a second. If there is only one, the warm-up run counts as well; of two medians the
    lower one is taken. The time between two steps does not count.
    """
    cells: list[tuple[int, int]] = []
    for rows, inputs, warming_ns in _warm(backend, batchable, menu, shapes, peaks or MemoryPeaks(None)):
        yield
        times: list[int] = []
        while not times or (len(times) < repeats and sum(times) < _BUDGET_NS):
            started = time.monotonic_ns()
            backend.run(inputs)
            times.append(max(1, time.monotonic_ns() - started))
            yield
        # One run may have been delayed by more than the budget, and a cell far too high is never corrected.
        if len(times) == 1:
            times.append(warming_ns)
        cells.append((rows, sorted(times)[(len(times) - 1) // 2]))
    return LatencyTable(tuple(cells))


def measure_table(backend: Backend, batchable: bool, menu: Iterable[int], repeats: int = 5) -> LatencyTable:
    """Run all of `measure_steps` at once."""
    return run_to_end(measure_steps(backend, batchable, menu, repeats))


def _warm(
    backend: Backend, batchable: bool, menu: Iterable[int], shapes: Shapes | None, peaks: MemoryPeaks
) -> Iterator[tuple[int, dict[str, Array], int]]:
    """Yield each size that memory suffices for, with inputs that have run once, and the nanoseconds of that run."""
    for number, rows in enumerate(menu):
        peaks.begin()
        try:
            inputs = blank_batch(backend, batchable, rows, shapes)
            started = time.monotonic_ns()
            backend.run(inputs)
            took_ns = max(1, time.monotonic_ns() - started)
        except Exception as error:  # backends raise any type
            if not number or not is_out_of_memory(error):
                raise
            return
        peaks.end(rows)
        yield rows, inputs, took_ns


def blank_batch(backend: Backend, batchable: bool, rows: int, shapes: Shapes | None = None) -> dict[str, Array]:
    """Inputs of zeros, with variable dimensions of 1 unless `shapes` has others."""
    known = shapes or {}
    return {tensor.name: _blank(tensor, batchable, rows, known.get(tensor.name)) for tensor in backend.inputs}


def _blank(tensor: TensorSpec, batchable: bool, rows: int, item: tuple[int, ...] | None) -> Array:
    batch, declared = ((rows,), tensor.shape[1:]) if batchable else ((), tensor.shape)
    shape = batch + (item or tuple(1 if dimension == VARIABLE else dimension for dimension in declared))
    if tensor.datatype is DataType.BYTES:
        return np.full(shape, b"", np.object_)
    return np.zeros(shape, numpy_dtype(tensor.datatype))
