"""Validity of a run: a client that could not keep up measures itself instead of the target.

Queries that waited for a free connection, or were dropped because too many waited, do not make a run invalid. The
target kept the connections busy, so the wait is part of the latency and a dropped query is a miss.
"""

import math

from sluice.loadgen.records.early_stopping import queries_needed
from sluice.loadgen.records.interim import EarlyVerdict
from sluice.loadgen.records.statistics import QueryStatistics

TOO_SHORT = "too short"
"""Beginning of the reasons that a longer run would cure."""
CLIENT_LIMIT = "limited by the client"
"""Beginning of the reasons that are the client's own."""
_LATENESS_FLOOR_MS = 1.0
_LATENESS_SHARE_OF_SLO = 0.05
_MOST_CPU_SHARE = 0.8


def invalid_reasons(
    metrics: QueryStatistics,
    slo_ms: float | None,
    percentile: float,
    interrupted: bool,
    *,
    sample: int | None,
    warmup_s: float = 0.0,
    decision: EarlyVerdict | None = None,
    cpu_share: float | None = None,
    baseline_lateness_ms: float | None = None,
    is_paced: bool = True,
) -> list[str]:
    """The reasons why a run is invalid, one sentence each; empty for a valid run.

    `sample` and `decision` are those of `too_short`, the others those of `client_limits`.
    """
    reasons = ["interrupted before its end"] if interrupted else []
    if too_short(sample, percentile, decision):
        reasons.append(_shortness(sample or 0, metrics, percentile, warmup_s))
    return reasons + client_limits(metrics, slo_ms, cpu_share, baseline_lateness_ms, is_paced=is_paced)


def too_short(sample: int | None, percentile: float, decision: EarlyVerdict | None = None) -> bool:
    """True for a sample of too few queries to confirm the percentile, even without a miss.

    None stands for queries that are no sample of others. A run that its misses have ended (`decision`) is as long as
    its verdict needs.
    """
    if sample is None or decision is EarlyVerdict.EXCLUDED:
        return False
    return sample < queries_needed(0, percentile)


def client_limits(
    metrics: QueryStatistics,
    slo_ms: float | None,
    cpu_share: float | None = None,
    baseline_lateness_ms: float | None = None,
    *,
    is_paced: bool = True,
) -> list[str]:
    """The ways in which the client fell short of the schedule, one sentence each.

    `cpu_share` is the client's CPU time in shares of a core (of its busiest process), and `baseline_lateness_ms` the
    99th percentile of its lateness without load; None where they were not measured. Lateness counts only where queries
    are due one by one (`is_paced`).
    """
    reasons = []
    limit_ms = _lateness_limit_ms(slo_ms)
    if is_paced and metrics.lateness_ms is not None and metrics.lateness_ms.p99 > limit_ms:
        idle = "" if baseline_lateness_ms is None else f" ({baseline_lateness_ms:.2f} ms without load)"
        if too_busy(slo_ms, baseline_lateness_ms):
            remedy = "the machine is too busy for any rate: give the client a core of its own"
        else:
            remedy = "try a lower --rate, a core of its own for the client, or more --procs"
        reasons.append(
            f"{CLIENT_LIMIT}: it was {metrics.lateness_ms.p99:.2f} ms late or more with 1 % of the "
            f"queries{idle}, {limit_ms:g} ms is allowed; {remedy}"
        )
    if cpu_share is not None and cpu_share > _MOST_CPU_SHARE:
        remedy = "try a lower --rate or more --procs"
        if not is_paced:
            remedy = "try a lower --rate if there is one, or more --procs if several queries are open at a time"
        reasons.append(
            f"{CLIENT_LIMIT}: it used {cpu_share * 100:.0f} % of a core, {_MOST_CPU_SHARE * 100:.0f} % is "
            f"allowed; {remedy}"
        )
    return reasons


def too_busy(slo_ms: float | None, baseline_lateness_ms: float | None) -> bool:
    """True for a client that is too late even without load, so that no rate is low enough for it."""
    return baseline_lateness_ms is not None and baseline_lateness_ms > _lateness_limit_ms(slo_ms)


def _lateness_limit_ms(slo_ms: float | None) -> float:
    return max(_LATENESS_FLOOR_MS, _LATENESS_SHARE_OF_SLO * (slo_ms or 0.0))


def seconds_for(queries: int, sample: int, metrics: QueryStatistics, warmup_s: float) -> int | None:
    """Whole seconds of a run that has `queries` in its sample, at the pace at which this run came to `sample`.

    The queries of a sample are fewer than those of the record where they are groups of them, or where the client
    cancelled some. None when the rate is not known.
    """
    per_s = metrics.offered_per_s * sample / max(1, metrics.queries)
    return math.ceil(warmup_s + queries / per_s) if per_s > 0 else None


def _shortness(sample: int, metrics: QueryStatistics, percentile: float, warmup_s: float) -> str:
    needed = queries_needed(0, percentile)
    text = f"{TOO_SHORT}: {sample} queries after the warm-up; a claim about {percentile:g} % needs {needed}"
    seconds = seconds_for(needed, sample, metrics, warmup_s)
    return f"{text}; try --duration {seconds} or more" if seconds is not None else f"{text}; try a longer --duration"
