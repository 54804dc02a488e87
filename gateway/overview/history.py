"""The history of a pipeline: requests by outcome, and quantiles, for each of the last seconds."""

from collections import deque
from typing import NamedTuple

HISTORY_STEPS = 300


class HistorySteps(NamedTuple):
    """Steps of a history from number `first` on, in columns: `good` to `cancelled` count requests that ended so."""

    first: int
    good: list[int]
    late: list[int]
    refused: list[int]
    failed: list[int]
    cancelled: list[int]
    p50_ms: list[float | None]
    p99_ms: list[float | None]


class History:
    """Keeps the last HISTORY_STEPS steps, all after step `begin`. Nothing has ended in steps that are not recorded."""

    __slots__ = ("_begin", "_counts", "_last", "_quantiles")

    def __init__(self, begin: int) -> None:
        self._begin = self._last = begin
        self._counts: tuple[deque[int], ...] = tuple(deque(maxlen=HISTORY_STEPS) for _ in range(5))
        self._quantiles: tuple[deque[float | None], ...] = tuple(deque(maxlen=HISTORY_STEPS) for _ in range(2))

    def record(self, step: int, ended: tuple[int, ...], p50_ms: float | None, p99_ms: float | None) -> None:
        """Add a step that comes after all others; `ended` are good, late, refused, failed and cancelled requests."""
        self._skip_to(step - 1)
        for counts, count in zip(self._counts, ended, strict=True):
            counts.append(count)
        for quantiles, quantile_ms in zip(self._quantiles, (p50_ms, p99_ms), strict=True):
            quantiles.append(quantile_ms)
        self._last = step

    def steps(self, first: int, last: int) -> HistorySteps:
        """The steps from number `first` to `last`, which is no earlier than any that was recorded."""
        self._skip_to(last)
        length = last - max(first, self._begin + 1, last - HISTORY_STEPS + 1) + 1
        counts = [list(each)[len(each) - length :] if length > 0 else [] for each in self._counts]
        quantiles = [list(each)[len(each) - length :] if length > 0 else [] for each in self._quantiles]
        return HistorySteps(last - max(length, 0) + 1, *counts, *quantiles)  # type: ignore[arg-type]

    def _skip_to(self, step: int) -> None:
        """Add steps in which nothing ended, up to one."""
        missing = min(step - self._last, HISTORY_STEPS)
        if missing > 0:
            for counts in self._counts:
                counts.extend([0] * missing)
            for quantiles in self._quantiles:
                quantiles.extend([None] * missing)
            self._last = step
