"""Statistics of samples taken at equal intervals."""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean


def percentile(samples: Sequence[float], percent: float) -> float:
    """The sample above that part of the others: of n in order, number floor(n * percent / 100), from 0."""
    return sorted(samples)[min(int(len(samples) * percent / 100), len(samples) - 1)]


def variation(samples: Sequence[float]) -> float:
    """The standard deviation over the mean; infinite if the mean is 0 and samples differ."""
    mean = fmean(samples)
    deviation = sqrt(fmean([(sample - mean) ** 2 for sample in samples]))
    if deviation == 0:
        return 0.0
    return deviation / mean if mean else float("inf")


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rho of two series of equal length, equal samples at their mean rank; 0 if one is constant."""
    return _correlation(_ranks(one), _ranks(other))


def autocorrelation(samples: Sequence[float], lag: int) -> float:
    """The correlation of a series with itself `lag` samples earlier; 0 if it is constant."""
    mean = fmean(samples)
    power = sum((sample - mean) ** 2 for sample in samples)
    if power == 0:
        return 0.0
    return sum((a - mean) * (b - mean) for a, b in zip(samples, samples[lag:], strict=False)) / power


def forecast(samples: Sequence[float], lag: int) -> float:
    """The sample `lag` steps ahead, by least squares of each sample on the one `lag` earlier: AR(1) at that lag."""
    before, after = samples[:-lag], samples[lag:]
    mean_before, mean_after = fmean(before), fmean(after)
    power = sum((x - mean_before) ** 2 for x in before)
    if power == 0:
        return mean_after
    slope = sum((x - mean_before) * (y - mean_after) for x, y in zip(before, after, strict=True)) / power
    return mean_after + slope * (samples[-1] - mean_before)


def _ranks(samples: Sequence[float]) -> list[float]:
    order = sorted(range(len(samples)), key=samples.__getitem__)
    breaks = [place for place, (a, b) in enumerate(pairwise(order), 1) if samples[a] != samples[b]]
    ranks = [0.0] * len(samples)
    for start, stop in pairwise([0, *breaks, len(samples)]):
        for index in order[start:stop]:
            ranks[index] = (start + stop + 1) / 2
    return ranks


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    mean_one, mean_other = fmean(one), fmean(other)
    power = sum((x - mean_one) ** 2 for x in one) * sum((y - mean_other) ** 2 for y in other)
    if power == 0:
        return 0.0
    return sum((x - mean_one) * (y - mean_other) for x, y in zip(one, other, strict=True)) / sqrt(power)
