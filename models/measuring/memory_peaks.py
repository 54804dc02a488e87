"""Estimates a model's memory from the peaks of its batch sizes."""

from collections.abc import Sequence
from itertools import combinations
from statistics import median

from sluice.models.measuring.memory_meter import MemoryMeter
from sluice.models.profiles.measurement import ModelMemory


class MemoryPeaks:
    """A model's peak memory at each batch size, from `memory`, whose base was taken before the model was loaded."""

    def __init__(self, memory: MemoryMeter | None) -> None:
        self._memory = memory
        self._points: list[tuple[int, int]] = []

    def begin(self) -> None:
        """A batch size is about to run."""
        if self._memory is not None:
            self._memory.restart()

    def end(self, rows: int) -> None:
        """A batch size has run."""
        if self._memory is not None and (peak := self._memory.peak_bytes()) is not None:
            self._points.append((rows, peak))

    def model_memory(self) -> ModelMemory | None:
        """The line through all peaks; None if nothing was measured."""
        if not self._points:
            return None
        row_bytes, rest_bytes = robust_line(self._points)
        return ModelMemory(max(0, round(rest_bytes)), max(0, round(row_bytes)))


def robust_line(points: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Slope and intercept by Theil and Sen: medians over all pairs of points, which a few outliers do not move.

    A single point has slope 0.
    """
    slope = median([(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2)] or [0.0])
    return slope, median(y - slope * x for x, y in points)
