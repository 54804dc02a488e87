"""Replay: the recorded times of a trace, stretched to a rate."""

import numpy as np

from sluice.loadgen.traffic.processes.bounds import MAX_QUERIES, ArrivalBounds, Floats, Times
from sluice.models.units import NS_PER_S


def replay(times: Floats, bounds: ArrivalBounds) -> Times:
    """A trace's arrivals, scaled in time to the mean rate of the bounds.

    `times` ascend, in any unit, and are not all equal. The trace starts at its beginning and repeats while the run is
    longer. The rate of a part may differ from that of the whole.
    """
    mean_gap = (times[-1] - times[0]) / (len(times) - 1)
    offsets = (times - times[0]) / mean_gap * (NS_PER_S / bounds.rate)
    length_ns = len(times) * NS_PER_S / bounds.rate
    rounds = MAX_QUERIES // len(times) + 1
    if bounds.queries is not None:
        rounds = min(rounds, -(-bounds.queries // len(times)))
    if bounds.duration_s is not None:
        rounds = min(rounds, int(bounds.end_ns / length_ns) + 1)
    arrivals = (np.arange(rounds)[:, np.newaxis] * length_ns + offsets).astype(np.int64).reshape(-1)
    return bounds.cut([arrivals])
