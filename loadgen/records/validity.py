"""Validity of a run: a client that could not keep up measures itself instead of the target.

Queries that waited for a free connection, or were dropped because too many waited, do not make a run invalid. The
target kept the connections busy, so the wait is part of the latency and a dropped query is a miss.
"""

import math

from sluice.loadgen.records.early_stopping import queries_needed
from sluice.loadgen.records.interim import Decision
from sluice.loadgen.records.statistics import QueryStatistics

_LATENESS_FLOOR_MS = 1.0
_LATENESS_SHARE_OF_SLO = 0.05
_MOST_CPU_SHARE = 0.8


def invalid_reasons(
    metrics: QueryStatistics,
    slo_ms: float | None,
    percentile: float,
    interrupted: bool,
    *,
    warmup_s: float = 0.0,
    decision: Decision | None = None,
    cpu_share: float | None = None,
    baseline_lateness_ms: float | None = None,
) -> list[str]:
    """The reasons why a run is invalid, one sentence each; empty for a valid run.

    A run that its misses have ended (`decision`) is as long as its verdict needs. `cpu_share` and
    `baseline_lateness_ms` are those of `client_limits`.
    """
    reasons = ["interrupted before its end"] if interrupted else []
    if too_short(metrics, percentile, decision):
        reasons.append(_shortness(metrics, percentile, warmup_s))
    return reasons + client_limits(metrics, slo_ms, cpu_share, baseline_lateness_ms)


def too_short(metrics: QueryStatistics, percentile: float, decision: Decision | None = None) -> bool:
    """True for a run with too few queries to confirm the percentile, even without a miss."""
    return decision is not Decision.EXCLUDED and metrics.judged < queries_needed(0, percentile)


def client_limits(
    metrics: QueryStatistics,
    slo_ms: float | None,
    cpu_share: float | None = None,
    baseline_lateness_ms: float | None = None,
) -> list[str]:
    """The ways in which the client fell short of the schedule, one sentence each.

    `cpu_share` is the client's CPU time in shares of a core (of its busiest process), and `baseline_lateness_ms` the
    99th percentile of its lateness without load; None where they were not measured.
    """
    reasons = []
    limit_ms = max(_LATENESS_FLOOR_MS, _LATENESS_SHARE_OF_SLO * (slo_ms or 0.0))
    if metrics.lateness_ms is not None and metrics.lateness_ms.p99 > limit_ms:
        idle = "" if baseline_lateness_ms is None else f" ({baseline_lateness_ms:.2f} ms without load)"
        if baseline_lateness_ms is not None and baseline_lateness_ms > limit_ms:
            remedy = "the machine is too busy for any rate: give the client a core of its own"
        else:
            remedy = "try a lower --rate, a core of its own for the client, or more --procs"
        reasons.append(
            f"limited by the client: it was {metrics.lateness_ms.p99:.2f} ms late or more with 1 % of the "
            f"queries{idle}, {limit_ms:g} ms is allowed; {remedy}"
        )
    if cpu_share is not None and cpu_share > _MOST_CPU_SHARE:
        reasons.append(
            f"limited by the client: it used {cpu_share * 100:.0f} % of a core, {_MOST_CPU_SHARE * 100:.0f} % is "
            "allowed; try a lower --rate or more --procs"
        )
    return reasons


def seconds_for(queries: int, offered_per_s: float, warmup_s: float) -> int | None:
    """Whole seconds of a run in which `queries` are due after the warm-up; None when the rate is not known."""
    return math.ceil(warmup_s + queries / offered_per_s) if offered_per_s > 0 else None


def _shortness(metrics: QueryStatistics, percentile: float, warmup_s: float) -> str:
    needed = queries_needed(0, percentile)
    text = f"too short: {metrics.judged} queries after the warm-up; a claim about {percentile:g} % needs {needed}"
    seconds = seconds_for(needed, metrics.offered_per_s, warmup_s)
    return f"{text}; try --duration {seconds} or more" if seconds is not None else f"{text}; try a longer --duration"
