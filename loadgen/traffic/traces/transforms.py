"""Changes of traces: a part, another speed, another rate, another burstiness, and models for functions.

The names in brackets are those of AlpaServe's workloads (OSDI '23), which has the same changes.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sluice.loadgen.traffic.processes.renewal import MAX_CV, MIN_CV, gamma_gaps
from sluice.loadgen.traffic.shares import choose, zipf_shares
from sluice.loadgen.traffic.traces.trace import MAX_TRACE, ArrivalTrace, Labels
from sluice.models.errors import ConfigError

_FEWEST_GAPS = 3
"""A window with fewer gaps says nothing about their variation, and stays as it is."""
_ZIPF_EXPONENT = 1.0


class FunctionMapping(enum.StrEnum):
    """A way to divide the functions of a trace among models.

    By turns, in blocks of successive functions, or by chance with shares that fall as 1/rank. Functions count in the
    order of their first arrivals.
    """

    ROUND_ROBIN = "round-robin"
    STRIPE = "stripe"
    ZIPF = "zipf"


def sliced(trace: ArrivalTrace, from_s: float, to_s: float) -> ArrivalTrace:
    """The arrivals from `from_s` on and before `to_s`, with `from_s` as the new 0."""
    if not 0 <= from_s < to_s:
        raise ConfigError(f"--from and --to: expected 0 <= from < to, got {from_s:g} and {to_s:g}")
    first, end = np.searchsorted(trace.t_s, (from_s, to_s)).tolist()
    if first == end:
        last_s = trace.t_s[-1]
        raise ConfigError(f"--from and --to: no arrival from {from_s:g} to {to_s:g} s; the last is at {last_s:g} s")
    return trace.take(np.arange(first, end), trace.t_s[first:end] - from_s)


def time_scaled(trace: ArrivalTrace, factor: float) -> ArrivalTrace:
    """All times multiplied by `factor` [time_scale_factor]: below 1 the trace is faster and its rate higher."""
    if not 0 < factor < math.inf:
        raise ConfigError(f"--time-scale: expected a number above 0, got {factor:g}")
    return replace(trace, t_s=trace.t_s * factor)


def rate_scaled(trace: ArrivalTrace, factor: float, rng: np.random.Generator) -> ArrivalTrace:
    """As many arrivals as before times `factor`, on average, in the same time [rate_scale_factor].

    Below 1 each arrival stays with that chance (thinning). Above 1 each is followed by copies at uniform times before
    the next one, so that bursts remain bursts (replication).
    """
    if not 0 < factor < math.inf:
        raise ConfigError(f"--rate-scale: expected a number above 0, got {factor:g}")
    if len(trace) * factor > MAX_TRACE:
        raise ConfigError(f"--rate-scale: expected at most {MAX_TRACE} arrivals, got {len(trace)} times {factor:g}")
    whole = int(factor)
    counts = whole + (rng.random(len(trace)) < factor - whole)
    rows = np.repeat(np.arange(len(trace)), counts)
    if not len(rows):
        raise ConfigError(f"--rate-scale: no arrival of {len(trace)} is left; expected a larger number")
    gaps = np.diff(trace.t_s, append=trace.t_s[-1])
    is_copy = np.diff(rows, prepend=-1) == 0
    return trace.take(rows, trace.t_s[rows] + np.where(is_copy, rng.random(len(rows)), 0) * gaps[rows])


def refitted(
    trace: ArrivalTrace, window_s: float, cv: float | None, cv_scale: float, rng: np.random.Generator
) -> ArrivalTrace:
    """Gamma-distributed gaps in each window of `window_s` [interval_seconds], and as many arrivals there as before.

    Their coefficient of variation is `cv`, or else the measured one of the window times `cv_scale` [cv_scale_factor].
    The k-th arrival of a window keeps its model, class, size and objective.
    """
    if not 0 < window_s < math.inf:
        raise ConfigError(f"--window: expected a positive number of seconds, got {window_s:g}")
    if cv is not None and not MIN_CV <= cv <= MAX_CV:
        raise ConfigError(f"--cv: expected a number between {MIN_CV} and {MAX_CV}, got {cv:g}")
    if not 0 < cv_scale < math.inf:
        raise ConfigError(f"--cv-scale: expected a number above 0, got {cv_scale:g}")
    t_s = trace.t_s.copy()
    windows, starts, counts = np.unique(t_s // window_s, return_index=True, return_counts=True)
    for window, start, count in zip(windows.tolist(), starts.tolist(), counts.tolist(), strict=True):
        if count <= _FEWEST_GAPS:
            continue
        own = t_s[start : start + count]
        gaps = np.diff(own)
        mean = gaps.mean()
        measured = float(gaps.std() / mean) * cv_scale if mean else MIN_CV
        wanted = measured if cv is None else cv
        ends = np.cumsum(gamma_gaps(min(max(wanted, MIN_CV), MAX_CV), rng)(count + 1))
        start_s = window * window_s
        length_s = min(window_s, trace.t_s[-1] - start_s)  # the last window ends with the trace
        t_s[start : start + count] = start_s + ends[:-1] / ends[-1] * length_s
    return trace.take(np.arange(len(trace)), t_s)


def mapped(
    trace: ArrivalTrace, models: Sequence[str], mapping: FunctionMapping, rng: np.random.Generator
) -> ArrivalTrace:
    """The trace with `models` for its functions, which are what its column `model` names."""
    if trace.model is None:
        raise ConfigError("--models: the trace names no functions; expected a trace with a column model")
    if not models or len(set(models)) != len(models) or not all(models):
        raise ConfigError(f"--models: expected different names, got {','.join(models)!r}")
    functions = len(trace.model.names)
    first_arrivals = np.full(functions, len(trace))
    np.minimum.at(first_arrivals, trace.model.index, np.arange(len(trace)))
    rank = np.empty(functions, np.int64)
    rank[np.argsort(first_arrivals, kind="stable")] = np.arange(functions)
    match mapping:
        case FunctionMapping.ROUND_ROBIN:
            model = rank % len(models)
        case FunctionMapping.STRIPE:
            model = rank * len(models) // functions
        case FunctionMapping.ZIPF:
            shares = zipf_shares(len(models), _ZIPF_EXPONENT)
            model = choose(shares, rng.random(functions)[rank])
    labels = Labels(tuple(models), model.astype(np.int32)[trace.model.index])
    return replace(trace, model=labels.take(np.arange(len(trace))))
