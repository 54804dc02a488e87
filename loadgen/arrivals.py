"""Arrival processes: when the queries of an open-loop run are due."""

import numpy as np
import numpy.typing as npt

from models.errors import ConfigError
from models.units import NS_PER_S

Times = npt.NDArray[np.int64]

MAX_QUERIES = 20_000_000
"""The most queries one run may hold: every query takes some 50 bytes of columns."""

_CHUNK = 65_536


def poisson(rate: float, duration_s: float | None, queries: int | None, rng: np.random.Generator) -> Times:
    """Arrivals of a Poisson process of `rate` a second, int64 nanoseconds from the start of the run, ascending.

    Ends before `duration_s` seconds, after `queries` arrivals, or at whichever of the two comes first. Raises
    `ConfigError` when a bound is missing or not positive, or when more than `MAX_QUERIES` arrivals would come.
    """
    _check(rate, duration_s, queries)
    end_ns = np.iinfo(np.int64).max if duration_s is None else round(duration_s * NS_PER_S)
    wanted = MAX_QUERIES if queries is None else queries
    chunks: list[Times] = []
    drawn, last_ns = 0, 0
    while drawn < wanted and last_ns < end_ns:
        # -ln(1 - u) instead of the generator's own method: its definition cannot change with a numpy release.
        gaps = -np.log1p(-rng.random(min(_CHUNK, wanted - drawn))) * (NS_PER_S / rate)
        chunk = last_ns + np.cumsum(gaps.astype(np.int64))
        chunks.append(chunk)
        drawn, last_ns = drawn + len(chunk), int(chunk[-1])
    arrivals = np.concatenate(chunks)
    return arrivals[: int(np.searchsorted(arrivals, end_ns))]


def _check(rate: float, duration_s: float | None, queries: int | None) -> None:
    if not 0 < rate <= NS_PER_S:
        raise ConfigError(f"rate: must be above 0 and at most {NS_PER_S} queries a second, got {rate}")
    if duration_s is None and queries is None:
        raise ConfigError("schedule: give a duration, a number of queries, or both")
    if duration_s is not None and not 0 < duration_s < np.inf:
        raise ConfigError(f"duration: must be a positive number of seconds, got {duration_s}")
    if queries is not None and not 1 <= queries <= MAX_QUERIES:
        raise ConfigError(f"queries: must be between 1 and {MAX_QUERIES}, got {queries}")
    if queries is None and duration_s is not None and rate * duration_s > MAX_QUERIES / 2:
        raise ConfigError(
            f"schedule: {rate}/s for {duration_s} s is more than the {MAX_QUERIES // 2} queries of one run"
        )
