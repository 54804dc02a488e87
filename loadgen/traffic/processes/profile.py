"""Profiles: steps and ramps of the rate, written as `100@10s,100..400@5s`."""

import math
import re
from collections.abc import Sequence
from itertools import accumulate

import msgspec
import numpy as np

from sluice.loadgen.traffic.processes.bounds import Floats
from sluice.models.errors import ConfigError
from sluice.models.units import unit_of

MAX_SEGMENTS = 10_000
_SEGMENT = re.compile(r"(?P<first>[^@.]+(?:\.\d+)?)(?:\.\.(?P<last>[^@]+))?@(?P<time>[^@]+)")


class RateSegment(msgspec.Struct, frozen=True):
    """A part of a profile, in which the rate goes from `first` to `last` arrivals a second on a straight line."""

    first: float
    last: float
    duration_s: float

    @property
    def arrivals(self) -> float:
        """The mean number of arrivals in the segment."""
        return (self.first + self.last) / 2 * self.duration_s


def parse_profile(text: str) -> tuple[RateSegment, ...]:
    """Read segments `RATE@TIME` or `RATE..RATE@TIME`, separated by commas; raises ValueError that names the part."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MAX_SEGMENTS:
        raise ValueError(f"expected at most {MAX_SEGMENTS} parts, got {len(parts)}")
    segments = tuple(map(_segment, parts))
    if not sum(segment.arrivals for segment in segments) > 0:
        raise ValueError(f"expected a rate above 0 in at least one part, got '{text:.80}'")
    return segments


def _segment(text: str) -> RateSegment:
    unit = unit_of("_s")
    assert unit is not None
    match = _SEGMENT.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        first = float(match["first"])
        last = first if match["last"] is None else float(match["last"])
        duration_s = float(unit.number(match["time"]))
    except ValueError:
        raise ValueError(f"expected RATE@TIME or RATE..RATE@TIME, such as 100@10s, got '{text:.80}'") from None
    if not (0 <= first < math.inf and 0 <= last < math.inf and duration_s > 0):
        raise ValueError(f"expected rates of at least 0 and a time above 0, got '{text:.80}'")
    return RateSegment(first, last, duration_s)


class ProfileCurve:
    """The rate of a profile, divided by its mean; it starts over at its end."""

    def __init__(self, segments: Sequence[RateSegment]) -> None:
        if not segments or not sum(segment.arrivals for segment in segments) > 0:
            raise ConfigError("--profile: expected at least one part with a rate above 0")
        self.duration_s = sum(segment.duration_s for segment in segments)
        self.mean_rate = sum(segment.arrivals for segment in segments) / self.duration_s
        self._first = np.array([segment.first for segment in segments]) / self.mean_rate
        self._slope = np.array([(each.last - each.first) / each.duration_s for each in segments]) / self.mean_rate
        self._starts_s = np.array([0.0, *accumulate(segment.duration_s for segment in segments)])
        self._integrals = np.array([0.0, *accumulate(segment.arrivals for segment in segments)]) / self.mean_rate

    def when(self, elapsed_s: Floats) -> Floats:
        """As in `RateCurve`: the root of a quadratic equation in each segment."""
        rounds, rest = np.divmod(elapsed_s, self.duration_s)
        part = np.clip(np.searchsorted(self._integrals, rest, side="right") - 1, 0, len(self._first) - 1)
        rest -= self._integrals[part]
        first = self._first[part]
        # first·t + slope·t²/2 = rest, in the form that has no cancellation and no division by a slope of 0.
        root = np.sqrt(np.maximum(first**2 + 2 * self._slope[part] * rest, 0))
        into_s = np.divide(2 * rest, first + root, out=np.zeros_like(rest), where=first + root > 0)
        return np.asarray(
            rounds * self.duration_s + np.minimum(self._starts_s[part] + into_s, self._starts_s[part + 1])
        )
