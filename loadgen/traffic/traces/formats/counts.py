"""Arrivals from counts: how many came in each of successive intervals."""

import numpy as np
import numpy.typing as npt

from sluice.loadgen.traffic.traces.formats.options import ImportOptions, Spread
from sluice.loadgen.traffic.traces.trace import MAX_TRACE
from sluice.models.errors import ConfigError

_MAX_COUNT = 2_000_000_000
_CHUNK = 1 << 20


def spread_counts(
    counts: npt.NDArray[np.int64], interval_s: float, options: ImportOptions, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """The times of arrivals, seconds from the start of the first interval, ascending.

    Each is kept with the chance `options.keep`. Raises `ConfigError` when there are more than `MAX_TRACE`.
    """
    total = int(counts.sum())
    if total > _MAX_COUNT:
        raise ConfigError(f"expected at most {_MAX_COUNT} arrivals, got {total}")
    if options.spread is Spread.POISSON:
        return _poisson(counts * options.keep, interval_s, rng)
    kept = counts if options.keep == 1 else _thinned(counts, options.keep, rng)
    _check(int(kept.sum()))
    starts = np.repeat(np.arange(len(counts)), kept)
    return np.sort((starts + rng.random(len(starts))) * interval_s)


def _thinned(counts: npt.NDArray[np.int64], keep: float, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """The part of each count that is kept, one uniform number an arrival."""
    ends = np.cumsum(counts)
    kept = np.zeros(len(counts), np.int64)
    for first in range(0, int(ends[-1]), _CHUNK):
        chosen = first + np.flatnonzero(rng.random(min(_CHUNK, int(ends[-1]) - first)) < keep)
        kept += np.bincount(np.searchsorted(ends, chosen, side="right"), minlength=len(counts))
    return kept


def _poisson(means: npt.NDArray[np.floating], interval_s: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """A Poisson process whose rate is constant in each interval, by inversion of its integral."""
    integral = np.concatenate(([0.0], np.cumsum(means)))
    _check(int(integral[-1]))
    elapsed = np.empty(0)
    last = 0.0
    parts = [elapsed]
    while last < integral[-1]:
        part = last + np.cumsum(-np.log1p(-rng.random(_CHUNK if integral[-1] > _CHUNK else 64 + int(integral[-1]))))
        parts.append(part)
        last = float(part[-1])
    elapsed = np.concatenate(parts)
    elapsed = elapsed[: int(np.searchsorted(elapsed, integral[-1]))]
    part_of = np.searchsorted(integral, elapsed, side="right") - 1
    return np.asarray((part_of + (elapsed - integral[part_of]) / means[part_of]) * interval_s)


def _check(arrivals: int) -> None:
    if arrivals > MAX_TRACE:
        raise ConfigError(f"expected at most {MAX_TRACE} arrivals, got {arrivals}; keep a share of them with --keep")
