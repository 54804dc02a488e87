"""Shares: how often each of several things is chosen."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def zipf_shares(count: int, exponent: float) -> Floats:
    """Shares of `count` ranks that fall as 1/rank to the power of `exponent` (Zipf); they add up to 1."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum())


def choose(shares: Floats, uniform: Floats) -> npt.NDArray[np.int64]:
    """The number of the share that each uniform number from 0 to 1 falls into, by inversion."""
    limits = np.cumsum(shares)
    return np.minimum(np.searchsorted(limits / limits[-1], uniform, side="right"), len(shares) - 1)
