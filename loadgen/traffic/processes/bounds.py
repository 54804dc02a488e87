"""The bounds of an arrival process: a rate, and an end after a time, a number of arrivals, or both."""

import math
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S

Times = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_QUERIES = 20_000_000
"""Upper bound on the queries of one run; each takes some 50 bytes of columns."""


class ArrivalBounds(msgspec.Struct, frozen=True):
    """The mean rate of a process, arrivals a second, and its end: before `duration_s` or after `queries` arrivals.

    Whichever comes first ends it. Raises `ConfigError` when a bound is missing or not positive, or allows more than
    `MAX_QUERIES` arrivals.
    """

    rate: float
    duration_s: float | None = None
    queries: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.rate <= NS_PER_S:
            got = f"got {self.rate:g}" if self.rate else "got none"
            raise ConfigError(f"--rate: expected a number above 0 and at most {NS_PER_S} queries a second, {got}")
        if self.duration_s is None and self.queries is None:
            raise ConfigError("schedule: no end; expected --duration, --queries, or both")
        if self.duration_s is not None and not 0 < self.duration_s < math.inf:
            raise ConfigError(f"--duration: expected a positive number of seconds, got {self.duration_s}")
        if self.queries is not None and not 1 <= self.queries <= MAX_QUERIES:
            raise ConfigError(f"--queries: expected 1 to {MAX_QUERIES}, got {self.queries}")
        if self.queries is None and self.duration_s is not None and self.rate * self.duration_s > MAX_QUERIES / 2:
            raise self._too_long()

    @property
    def end_ns(self) -> float:
        """The time before which arrivals come; infinite without a duration."""
        return math.inf if self.duration_s is None else round(self.duration_s * NS_PER_S)

    @property
    def most(self) -> int:
        """Upper bound on the number of arrivals."""
        return MAX_QUERIES if self.queries is None else self.queries

    def cut(self, chunks: Iterable[Times]) -> Times:
        """The arrivals within the bounds; `chunks` ascend, and are drawn as long as they are needed."""
        kept: list[Times] = []
        count = 0
        for chunk in chunks:
            kept.append(chunk)
            count += len(chunk)
            if count >= self.most or (len(chunk) and chunk[-1] >= self.end_ns):
                break
        arrivals = np.concatenate(kept)[: self.most] if kept else np.empty(0, np.int64)
        if self.duration_s is not None:
            within = int(np.searchsorted(arrivals, int(self.end_ns)))
            if self.queries is None and within == MAX_QUERIES:
                raise self._too_long()
            arrivals = arrivals[:within]
        return arrivals

    def _too_long(self) -> ConfigError:
        return ConfigError(
            f"schedule: too long; expected at most {MAX_QUERIES // 2} queries, "
            f"got {self.rate}/s for {self.duration_s} s"
        )
