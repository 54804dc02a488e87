"""The first latency table of a model: every batch size of its menu is warmed and timed when it is loaded."""

import time
from collections.abc import Iterable

import numpy as np

from models.arrays import Array, numpy_dtype
from models.backends.base import Backend
from models.profile import LatencyTable
from models.tensor import VARIABLE, DataType, TensorSpec
from models.units import NS_PER_MS

_BUDGET_NS = 250 * NS_PER_MS


def warm(backend: Backend, batchable: bool, menu: Iterable[int]) -> None:
    """Run every batch size of the menu once, so that no request pays for a first run; raises BackendFailed."""
    for rows in menu:
        backend.run(_blank_batch(backend, batchable, rows))


def measure_table(backend: Backend, batchable: bool, menu: Iterable[int], repeats: int = 5) -> LatencyTable:
    """Warm every batch size of the menu, time it, and return the medians; raises BackendFailed.

    The inputs are zeros, with variable dimensions of 1. A size takes a warming run and up to `repeats` timed ones,
    at least one, of which no further begins after a quarter of a second.
    """
    return LatencyTable(
        tuple((rows, _median_ns(backend, _blank_batch(backend, batchable, rows), repeats)) for rows in menu)
    )


def _median_ns(backend: Backend, inputs: dict[str, Array], repeats: int) -> int:
    backend.run(inputs)
    times: list[int] = []
    begun = ended = time.monotonic_ns()
    while not times or (len(times) < repeats and ended - begun < _BUDGET_NS):
        started = time.monotonic_ns()
        backend.run(inputs)
        ended = time.monotonic_ns()
        times.append(max(1, ended - started))
    return sorted(times)[len(times) // 2]


def _blank_batch(backend: Backend, batchable: bool, rows: int) -> dict[str, Array]:
    return {tensor.name: _blank(tensor, batchable, rows) for tensor in backend.inputs}


def _blank(tensor: TensorSpec, batchable: bool, rows: int) -> Array:
    batch, item = ((rows,), tensor.shape[1:]) if batchable else ((), tensor.shape)
    shape = batch + tuple(1 if dimension == VARIABLE else dimension for dimension in item)
    if tensor.datatype is DataType.BYTES:
        return np.full(shape, b"", np.object_)
    return np.zeros(shape, numpy_dtype(tensor.datatype))
