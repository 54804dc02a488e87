"""The first latency table of a model: every batch size of its menu is warmed and timed when it is loaded."""

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
"""Item shapes by input: those that inputs of variable shape are given."""


def run_to_end(steps: Generator[None, None, _T]) -> _T:
    """Take all steps at once; returns what they come to."""
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

    It ends before the first size that there is no memory for. Raises BackendFailed, also when that is the first of all.
    `peaks` are told what is taken meanwhile.
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
    """Warm every batch size of the menu, time it, and return the medians; a step is one run.

    Where it ends for want of memory, `peaks`, and what it raises, are as for `warm_up_steps`. The inputs are zeros, with
    variable dimensions of 1 where `shapes` has no other. A size takes a warming run and up to `repeats` timed ones, at
    least one, of which no further begins after a quarter of a second; with one alone the warming run counts as well,
    and of two medians the lower one. What happens between two steps does not count.
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
        # One run may have been held up for longer than the budget, and a cell far too high is never found out.
        if len(times) == 1:
            times.append(warming_ns)
        cells.append((rows, sorted(times)[(len(times) - 1) // 2]))
    return LatencyTable(tuple(cells))


def measure_table(backend: Backend, batchable: bool, menu: Iterable[int], repeats: int = 5) -> LatencyTable:
    """All of `measure_steps` at once."""
    return run_to_end(measure_steps(backend, batchable, menu, repeats))


def _warm(
    backend: Backend, batchable: bool, menu: Iterable[int], shapes: Shapes | None, peaks: MemoryPeaks
) -> Iterator[tuple[int, dict[str, Array], int]]:
    """Each size that there is memory for, with inputs that have run once, and the nanoseconds that it took."""
    for number, rows in enumerate(menu):
        peaks.begin()
        try:
            inputs = blank_batch(backend, batchable, rows, shapes)
            started = time.monotonic_ns()
            backend.run(inputs)
            took_ns = max(1, time.monotonic_ns() - started)
        except Exception as error:  # of any backend
            if not number or not is_out_of_memory(error):
                raise
            return
        peaks.end(rows)
        yield rows, inputs, took_ns


def blank_batch(backend: Backend, batchable: bool, rows: int, shapes: Shapes | None = None) -> dict[str, Array]:
    """Inputs of zeros, with variable dimensions of 1 where `shapes` has no other."""
    known = shapes or {}
    return {tensor.name: _blank(tensor, batchable, rows, known.get(tensor.name)) for tensor in backend.inputs}


def _blank(tensor: TensorSpec, batchable: bool, rows: int, item: tuple[int, ...] | None) -> Array:
    batch, declared = ((rows,), tensor.shape[1:]) if batchable else ((), tensor.shape)
    shape = batch + (item or tuple(1 if dimension == VARIABLE else dimension for dimension in declared))
    if tensor.datatype is DataType.BYTES:
        return np.full(shape, b"", np.object_)
    return np.zeros(shape, numpy_dtype(tensor.datatype))
