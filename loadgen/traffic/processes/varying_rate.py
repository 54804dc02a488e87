"""Arrivals at a rate that varies: a renewal process on a clock that runs as fast as the rate."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from sluice.loadgen.traffic.processes.bounds import ArrivalBounds, Floats, Times
from sluice.loadgen.traffic.processes.renewal import CHUNK, DrawGaps
from sluice.models.units import NS_PER_S


class RateCurve(Protocol):
    """A rate over time whose mean is 1."""

    def when(self, elapsed_s: Floats) -> Floats:
        """The seconds at which the integral of the rate reaches these ascending values.

        The values of successive calls ascend.
        """
        ...


def varying(bounds: ArrivalBounds, curve: RateCurve, draw_gaps: DrawGaps) -> Times:
    """Arrivals whose rate is `bounds.rate` times the curve, by inversion of its integral (Çinlar 1975).

    With exponential gaps this is exactly the inhomogeneous Poisson process of that rate.
    """

    def chunks() -> Iterator[Times]:
        last = 0.0
        drawn = 0
        while drawn < bounds.most and last < 2.0**53:
            elapsed = last + np.cumsum(draw_gaps(min(CHUNK, bounds.most - drawn)))
            drawn, last = drawn + len(elapsed), float(elapsed[-1])
            times_ns = curve.when(elapsed / bounds.rate) * NS_PER_S
            yield np.minimum(times_ns, 2.0**62).astype(np.int64)

    return bounds.cut(chunks())
