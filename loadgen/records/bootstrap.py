"""Confidence intervals of a run's figures and of the ratios between runs, by the bootstrap."""

import math
from statistics import NormalDist

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.models.units import NS_PER_S

MIN_BLOCK_S = 10.0
MIN_BLOCKS = 20
_RESAMPLES = 2000
_CELLS = 2048
"""Cells of ordered values. A quantile is first found among the cells and then inside one of them."""
_AT_ONCE = 100
"""Resamples whose cells are counted at once, which bounds the memory."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Blocks = npt.NDArray[np.int32]


class Interval(msgspec.Struct, frozen=True):
    """A confidence interval, of 95 % unless said otherwise."""

    low: float
    high: float


def quantile_interval(due_ns: Integers, values: npt.NDArray[np.generic], quantile: float, seed: int) -> Interval | None:
    """The interval of a quantile (0 to 1) of the queries' values, from the blocks of time that they were due in.

    Both arrays have shape (queries,), in order of due time. Queries near in time share a queue, so resampling single
    queries gives intervals that are far too narrow: whole blocks of time are drawn instead (Künsch, "The Jackknife and
    the Bootstrap for General Stationary Observations", Annals of Statistics 17, 1989). A block lasts at least 10 s, and
    longer in a longer run. None for a run with less than 20 blocks.

    O(queries log queries), and independent of the number of queries for each resample.
    """
    blocks = _block_numbers(due_ns)
    if blocks is None:
        return None
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    draws = _drawn_blocks(blocks, seed)
    estimate = float(ordered[int(len(ordered) * quantile)])
    return _widened(estimate, _quantiles(ordered, blocks[order], quantile, draws), draws.shape[1])


def mean_interval(due_ns: Integers, values: npt.NDArray[np.generic], seed: int) -> Interval | None:
    """The interval of the mean of the queries' values, such as of the share that met the objective.

    Arguments, method and result are those of `quantile_interval`.
    """
    blocks = _block_numbers(due_ns)
    if blocks is None:
        return None
    draws = _drawn_blocks(blocks, seed)
    sums = draws @ np.bincount(blocks, weights=values.astype(np.float64))
    return _widened(float(values.mean()), sums / (draws @ np.bincount(blocks)), draws.shape[1])


def ratio_interval(ratios: Floats, seed: int, confidence: float = 0.95) -> Interval:
    """The interval of the geometric mean of positive ratios, one of each pair of runs; shape (pairs,), at least 2."""
    draws = _draws(len(ratios), seed)
    logarithms = np.log(ratios)
    interval = _widened(float(logarithms.mean()), draws @ logarithms / len(ratios), len(ratios), confidence)
    return Interval(math.exp(interval.low), math.exp(interval.high))


def _block_numbers(due_ns: Integers) -> Blocks | None:
    """The number of the block of each query; None for a run that is too short for enough blocks."""
    if not len(due_ns):
        return None
    span_s = float(due_ns[-1] - due_ns[0]) / NS_PER_S
    # The best length grows with the cube root of the run's (Künsch).
    block_s = MIN_BLOCK_S * max(1.0, span_s / (MIN_BLOCK_S * MIN_BLOCKS)) ** (1 / 3)
    blocks = int(span_s / block_s)
    if blocks < MIN_BLOCKS:
        return None
    numbers = due_ns - due_ns[0]
    numbers //= int(block_s * NS_PER_S)
    # What is left of the span after whole blocks belongs to the last.
    return np.asarray(np.minimum(numbers, blocks - 1, out=numbers), np.int32)


def _drawn_blocks(blocks: Blocks, seed: int) -> Floats:
    """The number of times that each resample draws each block; resamples without queries are left out."""
    counts = np.bincount(blocks)
    draws = _draws(len(counts), seed)
    return np.asarray(draws[draws @ counts > 0], np.float64)


def _draws(units: int, seed: int) -> Floats:
    """The number of times that each resample draws each unit; shape (resamples, units)."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(units, np.full(units, 1 / units), size=_RESAMPLES).astype(np.float64)


def _quantiles(ordered: npt.NDArray[np.generic], blocks: Blocks, quantile: float, draws: Floats) -> Floats:
    """The quantile of each resample by MLPerf's rule, sorted[int(n * p)]: exact, without building the resamples."""
    resamples, units = draws.shape
    size = -(-len(ordered) // _CELLS)
    starts = range(0, len(ordered), size)
    inside = np.stack([np.bincount(blocks[start : start + size], minlength=units) for start in starts])
    until = np.cumsum(inside, axis=0).T
    found = np.empty(resamples)
    for resample in range(resamples):
        if resample % _AT_ONCE == 0:
            some = draws[resample : resample + _AT_ONCE] @ until
        below = some[resample % _AT_ONCE]
        rank = np.floor(below[-1] * quantile)
        cell = int(np.searchsorted(below, rank, side="right"))
        before = below[cell - 1] if cell else 0.0
        members = slice(cell * size, (cell + 1) * size)
        weights = np.cumsum(draws[resample, blocks[members]])
        found[resample] = ordered[members][np.searchsorted(weights, rank - before, side="right")]
    return found


def _widened(estimate: float, replicates: Floats, units: int, confidence: float = 0.95) -> Interval:
    """The percentile interval, widened about the estimate for a small number of units.

    A bootstrap of few units is too narrow: it uses the normal distribution where Student's belongs, and the variance of
    the sample for the population's (Hesterberg, "What Teachers Should Know About the Bootstrap", American Statistician
    69, 2015, section 4: the expanded percentile interval).
    """
    tail = (1 - confidence) / 2
    low, high = np.quantile(replicates, (tail, 1 - tail))
    wider = _student(units - 1, confidence) / NormalDist().inv_cdf(1 - tail) * math.sqrt(units / (units - 1))
    return Interval(estimate + (float(low) - estimate) * wider, estimate + (float(high) - estimate) * wider)


def _student(freedom: int, confidence: float) -> float:
    """The value t of Student's distribution between whose negative and itself `confidence` lies."""
    low, high = 0.0, 1e4
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _between(middle, freedom) < confidence else (low, middle)
    return high


def _between(t: float, freedom: int) -> float:
    """The probability between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, cosine if freedom > 1 else 0.0) if odd else (1.0, 1.0)
    for i in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (i - 1) / i
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
