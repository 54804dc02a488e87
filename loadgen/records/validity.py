"""Validity of a run: a client that could not keep up measures itself instead of the target.

Queries that waited for a free connection, or were dropped because too many waited, do not make a run invalid. The
target kept the connections busy, so the wait is part of the latency and a dropped query is a miss.
"""

from sluice.loadgen.records.early_stopping import queries_needed
from sluice.loadgen.records.statistics import QueryStatistics

_LATENESS_FLOOR_MS = 1.0
_LATENESS_SHARE_OF_SLO = 0.05


def invalid_reasons(metrics: QueryStatistics, slo_ms: float | None, percentile: float, interrupted: bool) -> list[str]:
    """The reasons why a run is invalid, one sentence each; empty for a valid run."""
    reasons = ["interrupted before its end"] if interrupted else []
    if too_short(metrics, percentile):
        needed = queries_needed(0, percentile)
        reasons.append(
            f"too short: {metrics.judged} queries after the warm-up; a claim about {percentile:g} % needs {needed}"
        )
    return reasons + client_limits(metrics, slo_ms)


def too_short(metrics: QueryStatistics, percentile: float) -> bool:
    """True for a run with too few queries to confirm the percentile, even without a miss."""
    return metrics.judged < queries_needed(0, percentile)


def client_limits(metrics: QueryStatistics, slo_ms: float | None) -> list[str]:
    """The ways in which the client fell short of the schedule, one sentence each."""
    limit_ms = max(_LATENESS_FLOOR_MS, _LATENESS_SHARE_OF_SLO * (slo_ms or 0.0))
    if metrics.lateness_ms is not None and metrics.lateness_ms.p99 > limit_ms:
        return [
            f"limited by the client: it was {metrics.lateness_ms.p99:.2f} ms late or more with 1 % of the queries, "
            f"{limit_ms:g} ms is allowed; try a lower --rate or a core of its own for the client"
        ]
    return []
