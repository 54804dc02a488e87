"""Draws for each query of a schedule: its stream, its own objective, and when it is given up."""

import math

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.loadgen.traffic.seeds import generator
from sluice.loadgen.traffic.shares import choose
from sluice.models.units import ms_to_ns

SPREAD_LEVELS = 16
"""The number of different objectives of a spread. Each is prepared with every sample that it comes with."""

MOST_MS = 1e9
"""The longest time of a query that options may name, some eleven days; in nanoseconds it is far from the bounds."""

Numbers = npt.NDArray[np.int64]


class Cancellation(msgspec.Struct, frozen=True):
    """The client gives up a `share` of the queries, from 0 to 1, when they are open `after_ms` after they were due."""

    share: float
    after_ms: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"expected a share above 0 % and at most 100 %, got {self.share * 100:g} %")
        if not 0 <= self.after_ms <= MOST_MS:
            raise ValueError(f"expected a time of 0 to {MOST_MS:g} ms, got {self.after_ms:g}")

    def draw(self, queries: int, seed: int) -> Numbers:
        """After how many nanoseconds each query is given up, -1 for never."""
        given_up = generator(seed, "cancellations").random(queries) < self.share
        return np.where(given_up, ms_to_ns(self.after_ms), -1)


class DeadlineSpread(msgspec.Struct, frozen=True):
    """Objectives that are uniform from `low_ms` to `high_ms`, in `SPREAD_LEVELS` levels."""

    low_ms: float
    high_ms: float

    def __post_init__(self) -> None:
        if not 0 < self.low_ms < self.high_ms < math.inf:
            raise ValueError(f"expected LOW..HIGH with 0 < LOW < HIGH, got {self.low_ms:g}..{self.high_ms:g} ms")

    @property
    def levels_ms(self) -> tuple[float, ...]:
        """The different objectives: the middles of equal parts."""
        part_ms = (self.high_ms - self.low_ms) / SPREAD_LEVELS
        return tuple(self.low_ms + (level + 0.5) * part_ms for level in range(SPREAD_LEVELS))

    def draw(self, queries: int, seed: int) -> Numbers:
        """The level of each query."""
        return (generator(seed, "deadlines").random(queries) * SPREAD_LEVELS).astype(np.int64)


def draw_streams(shares: npt.NDArray[np.float64], queries: int, group: int, seed: int) -> Numbers:
    """The stream of each query, by shares; `group` successive queries have the same one."""
    groups = -(-queries // group)
    return np.repeat(choose(shares, generator(seed, "mix").random(groups)), group)[:queries]


def draw_samples(sizes: Numbers, seed: int) -> Numbers:
    """A sample for each query, uniformly with replacement from the number of samples in `sizes`."""
    return (generator(seed, "mix samples").random(len(sizes)) * sizes).astype(np.int64)
