"""Quantile regression: a line that a given part of the points is below."""

from collections.abc import Sequence
from itertools import accumulate

MOST_TURNS = 32
"""The search ends after this many turns; from an earlier line it takes two to four."""


def quantile_line(points: Sequence[tuple[int, int]], quantile: float, pivot: int) -> tuple[float, float, int] | None:
    """The line (intercept, slope) with the least pinball loss, and a point that it passes through; None for one x.

    Points are (x, y). An optimal line passes through two of them (Koenker and Bassett, Econometrica 46, 1978). The
    search turns a line around a point, `pivot` at first, to the slope with the least loss, which is a weighted quantile
    of the slopes to all others, and goes on around the point that was hit, until the slope stays. O(turns * n log n).
    """
    slope: float | None = None
    for _ in range(MOST_TURNS):
        x, y = points[pivot]
        slopes = sorted([((y2 - y) / (x2 - x), abs(x2 - x), index) for index, (x2, y2) in enumerate(points) if x2 != x])
        if not slopes:
            break
        # The loss falls with the slope until as much weight is passed: of points to the right, which are above the line
        # at first, the part `quantile`, and of those to the left, which are below it, the rest.
        falls = sum([weight * (quantile if points[index][0] > x else 1 - quantile) for _, weight, index in slopes])
        passed = accumulate([weight for _, weight, _ in slopes])
        turned, _, hit = next((each for each, sums in zip(slopes, passed, strict=True) if sums >= falls), slopes[-1])
        if turned == slope:
            break
        slope, pivot = turned, hit
    if slope is None:
        return None
    x, y = points[pivot]
    return y - slope * x, slope, pivot
