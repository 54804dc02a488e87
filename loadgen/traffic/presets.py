"""Presets: the light, normal and heavy load of ESG (HPDC '24), and the objectives of its evaluation.

The gaps between requests are uniform from 40 to 67.2 ms, from 20 to 33.6 ms, and from 10 to 16.8 ms. The objective of a
pipeline is 0.8 (strict), 1.0 (moderate) or 1.2 (relaxed) times the time that it takes alone.
"""

import math
from typing import NamedTuple

from sluice.loadgen.traffic.arrivals import ArrivalProcess, Arrivals


class Preset(NamedTuple):
    """Arrivals with a rate of their own."""

    arrivals: Arrivals
    rate: float


def _uniform_gaps(shortest_ms: float, longest_ms: float) -> Preset:
    mean_ms = (shortest_ms + longest_ms) / 2
    cv = (longest_ms - shortest_ms) / 2 / math.sqrt(3) / mean_ms
    return Preset(Arrivals(ArrivalProcess.UNIFORM, cv=cv), 1e3 / mean_ms)


PRESETS = {
    "light": _uniform_gaps(40, 67.2),
    "normal": _uniform_gaps(20, 33.6),
    "heavy": _uniform_gaps(10, 16.8),
}
SLO_SCALES = {"strict": 0.8, "moderate": 1.0, "relaxed": 1.2}
"""Factors of the objective."""
