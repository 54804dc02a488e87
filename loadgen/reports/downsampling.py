"""Fewer points for a chart, without hiding any extreme."""

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def envelope(values: Floats, most: int) -> tuple[int, Floats, Floats]:
    """The lowest and highest of each group of successive values, at most `most` groups, and the size of a group.

    A group of values that are not numbers is not a number either.
    """
    size = max(1, math.ceil(len(values) / most))
    padded = np.full(math.ceil(len(values) / size) * size, np.nan)
    padded[: len(values)] = values
    groups = padded.reshape(-1, size)
    unknown = np.isnan(groups)
    low = np.where(unknown, np.inf, groups).min(axis=1)
    high = np.where(unknown, -np.inf, groups).max(axis=1)
    none = unknown.all(axis=1)
    return size, np.where(none, np.nan, low), np.where(none, np.nan, high)


def tail_points(times_ns: Integers, most: int) -> tuple[Floats, Floats]:
    """Points of the distribution of times for a tail axis: -log10 of the share above, and milliseconds.

    Every point is an observed time at its own rank. Ranks are evenly spaced on the axis, and the largest times are all
    there, so that no step of the tail is missed.
    """
    ordered = np.sort(times_ns)
    n = len(ordered)
    if not n:
        return np.empty(0), np.empty(0)
    even = n - n * 10.0 ** -np.linspace(0, math.log10(n), most)
    ranks = np.unique(np.concatenate((even.astype(np.int64), np.arange(max(0, n - most // 4), n))))
    return -np.log10(1 - ranks / n), ordered[ranks] / 1e6


def lateness_points(due_ns: Integers, lateness_ns: Integers, most: int) -> tuple[Floats, Floats]:
    """The largest lateness in each of at most `most` equal spans of a run: ends of spans in seconds, and milliseconds.

    A span without queries is not a number.
    """
    span_ns = max(1, math.ceil((int(due_ns.max()) + 1) / most))
    numbers = due_ns // span_ns
    largest = np.full(int(numbers.max()) + 1, -1, np.int64)
    np.maximum.at(largest, numbers, lateness_ns)
    ends_s = (np.arange(len(largest)) + 1) * span_ns / 1e9
    return ends_s, np.where(largest < 0, np.nan, largest / 1e6)
