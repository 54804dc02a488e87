"""The description of arrivals: rate, burstiness and peaks."""

import math

import msgspec
import numpy as np
import numpy.typing as npt

WINDOWS_S = (1.0, 60.0)
"""Windows of the index of dispersion for counts."""


class ArrivalFigures(msgspec.Struct, frozen=True):
    """Figures of arrivals; None where there are too few for one.

    `cv` is the coefficient of variation of the gaps. `idc` is, by window in seconds, the index of dispersion for
    counts: the variance over the mean of the counts of whole windows; both are 1 for a Poisson process. `peak_ratio` is
    the count of the busiest second over the mean.
    """

    arrivals: int
    span_s: float
    rate: float | None
    cv: float | None
    gap_ms: dict[str, float]
    idc: dict[str, float | None]
    peak_per_s: int
    peak_ratio: float | None


def describe_arrivals(t_s: npt.NDArray[np.float64]) -> ArrivalFigures:
    """The figures of ascending times in seconds."""
    span_s = float(t_s[-1] - t_s[0])
    rate = (len(t_s) - 1) / span_s if span_s else None
    gaps = np.diff(t_s)
    quantiles = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    peak = int(_counts(t_s, 1.0).max())
    return ArrivalFigures(
        arrivals=len(t_s),
        span_s=span_s,
        rate=rate,
        cv=float(gaps.std() / gaps.mean()) if rate else None,
        gap_ms={name: float(np.quantile(gaps, each)) * 1e3 for name, each in quantiles.items()} if len(gaps) else {},
        idc={f"{window_s:g}": _dispersion(t_s, window_s) for window_s in WINDOWS_S},
        peak_per_s=peak,
        peak_ratio=peak / rate if rate else None,
    )


def _counts(t_s: npt.NDArray[np.float64], window_s: float) -> npt.NDArray[np.int64]:
    """Arrivals by window from the first arrival on; only those with arrivals where the windows are very many."""
    windows = np.floor((t_s - t_s[0]) / window_s)
    if windows[-1] > 10 * len(t_s) + 1000:
        return np.unique(windows, return_counts=True)[1]
    return np.bincount(windows.astype(np.int64))


def _dispersion(t_s: npt.NDArray[np.float64], window_s: float) -> float | None:
    """Variance over mean of the counts of whole windows, empty ones included; None for fewer than two windows."""
    whole = math.floor((t_s[-1] - t_s[0]) / window_s)
    if whole < 2:
        return None
    counts = _counts(t_s[t_s < t_s[0] + whole * window_s], window_s)
    mean = counts.sum() / whole
    return float(((counts.astype(np.float64) ** 2).sum() / whole - mean**2) / mean)
