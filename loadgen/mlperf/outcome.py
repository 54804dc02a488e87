"""The figures and the validity of a run by LoadGen's rules (MLCommons inference rules; `results.cc` of LoadGen 6.0)."""

from dataclasses import dataclass

import numpy as np

from sluice.loadgen.mlperf.logged_run import MULTI_STREAM, OFFLINE, SERVER, SINGLE_STREAM, LoggedRun
from sluice.loadgen.records.early_stopping import confirmed, misses_allowed, queries_needed
from sluice.loadgen.traffic.mersenne import Integers
from sluice.models.units import NS_PER_MS, NS_PER_S

PERCENTILES = (50.0, 90.0, 95.0, 97.0, 99.0, 99.9)
NO_ESTIMATE = 0
"""LoadGen's value of an early-stopping estimate that a run is too short for."""
_MULTI_STREAM_PERCENTILE = 99.0
"""A second estimate of the SingleStream scenario, from which MultiStream results are inferred."""


@dataclass(frozen=True)
class LatencyFigures:
    """Latencies in nanoseconds; `percentiles` are those of `PERCENTILES`, by the rule sorted[int(n * p)]."""

    min: int
    max: int
    mean: int
    percentiles: tuple[int, ...]


@dataclass(frozen=True)
class EarlyStopping:
    """The early-stopping test: its lines as LoadGen words them, and the estimates of the closed loops."""

    met: bool
    lines: tuple[str, ...]
    single_stream_ns: int = NO_ESTIMATE
    multi_stream_ns: int = NO_ESTIMATE


@dataclass(frozen=True)
class LoggedOutcome:
    """The figures of a run.

    `target_percentile_ns` is the latency at the scenario's percentile. `performance_met` is None where a scenario has
    no limit on the latency. `metric` is the scenario's result: the completed samples a second (Server), the samples a
    second (Offline), or the early-stopping estimate of the latency in nanoseconds (SingleStream, MultiStream).
    """

    metric: float
    target_percentile_ns: int
    latency: LatencyFigures
    query_latency: LatencyFigures
    over_latency: int
    scheduled_per_s: float
    completed_per_s: float
    per_s_without_overhead: float
    performance_met: bool | None
    min_duration_met: bool
    min_queries_met: bool
    early_stopping: EarlyStopping
    recommendations: tuple[str, ...]
    valid: bool


def outcome(run: LoggedRun) -> LoggedOutcome:
    """Compute the figures of a performance run; it has at least one query."""
    settings = run.settings
    sample_ns, query_ns = np.sort(run.latency_ns), np.sort(run.query_latency_ns)
    judged = query_ns if run.scenario == MULTI_STREAM else sample_ns
    at_percentile = int(judged[int(len(judged) * settings.target_latency_percentile)])
    stopping = _early_stopping(run, judged)
    performance_met = at_percentile <= settings.target_latency_ns if run.scenario == SERVER else None
    # The last query of an Offline run is its first, so its samples have to last as long as the run should.
    lasted_ns = run.end_ns if run.scenario == OFFLINE else int(run.start_ns[-1])
    min_duration_met = lasted_ns >= settings.min_duration_ms * NS_PER_MS
    min_queries_met = run.queries >= settings.min_query_count and len(run.samples) >= settings.min_sample_count
    recommendations = []
    if performance_met is False:
        recommendations.append("Lower the rate: the latency at the target percentile is above the objective.")
    if not min_duration_met:
        recommendations.append("Run longer: the minimum duration is not reached.")
    if not min_queries_met:
        recommendations.append("Run longer: the minimum number of queries is not reached.")
    answered = int(run.answered.sum())
    # One less, because the span reaches to the beginning of the last.
    completed_per_s = _per_s(max(answered - 1, 0), run.end_ns)
    offline_per_s = _per_s(answered, run.end_ns)
    return LoggedOutcome(
        metric={
            SERVER: completed_per_s,
            OFFLINE: offline_per_s,
            SINGLE_STREAM: float(stopping.single_stream_ns),
            MULTI_STREAM: float(stopping.multi_stream_ns),
        }[run.scenario],
        target_percentile_ns=at_percentile,
        latency=_figures(sample_ns),
        query_latency=_figures(query_ns),
        over_latency=int((sample_ns > settings.target_latency_ns).sum()),
        scheduled_per_s=_per_s(len(run.samples) - 1, int(run.start_ns[-1])),
        completed_per_s=completed_per_s,
        per_s_without_overhead=_per_s(1, int(sample_ns.sum()) // len(sample_ns)),
        performance_met=performance_met,
        min_duration_met=min_duration_met,
        min_queries_met=min_queries_met,
        early_stopping=stopping,
        recommendations=(*recommendations, *run.faults),
        valid=not (recommendations or run.faults) and stopping.met,
    )


def _early_stopping(run: LoggedRun, ordered: Integers) -> EarlyStopping:
    percentile = run.settings.target_latency_percentile * 100
    queries = len(ordered)
    if run.scenario == OFFLINE:
        return EarlyStopping(True, ())
    if run.scenario == SERVER:
        misses = int((ordered > run.settings.target_latency_ns).sum())
        if confirmed(queries, misses, percentile):
            return EarlyStopping(True, (" * Run successful.",))
        missing = queries_needed(misses, percentile) - queries
        return EarlyStopping(
            False,
            (
                " * Run unsuccessful.",
                f" * Processed {queries} queries.",
                f" * Would need to run at least {missing} more queries,",
                " with the run being successful if every additional",
                " query were under latency.",
            ),
        )
    needed = queries_needed(1, percentile)
    if queries < needed:
        return EarlyStopping(
            False,
            (
                f" * Only processed {queries} queries.",
                f" * Need to process at least {needed} queries for early stopping.",
            ),
        )
    # The estimate is itself one of the queries that may miss.
    misses = misses_allowed(queries, percentile)
    estimate_ns = int(ordered[queries - misses])
    lines: tuple[str, ...] = (
        f" * Processed at least {needed} queries ({queries}).",
        f" * Would discard {misses - 1} highest latency queries.",
        f" * Early stopping {percentile:.1f}th percentile estimate: {estimate_ns}",
    )
    if run.scenario == MULTI_STREAM:
        return EarlyStopping(True, lines, multi_stream_ns=estimate_ns)
    needed = queries_needed(1, _MULTI_STREAM_PERCENTILE)
    if queries < needed:
        lines += (
            f" * Not enough queries processed for {_MULTI_STREAM_PERCENTILE:.1f}th percentile",
            " early stopping estimate (would need to process at",
            f" least {needed} total queries).",
        )
        return EarlyStopping(True, lines, single_stream_ns=estimate_ns)
    second_ns = int(ordered[queries - misses_allowed(queries, _MULTI_STREAM_PERCENTILE)])
    lines += (f" * Early stopping {_MULTI_STREAM_PERCENTILE:.1f}th percentile estimate: {second_ns}",)
    return EarlyStopping(True, lines, estimate_ns, second_ns)


def _figures(ordered: Integers) -> LatencyFigures:
    return LatencyFigures(
        int(ordered[0]),
        int(ordered[-1]),
        int(ordered.sum()) // len(ordered),
        tuple(int(ordered[int(len(ordered) * (percentile / 100))]) for percentile in PERCENTILES),
    )


def _per_s(count: int, span_ns: int) -> float:
    return count / span_ns * NS_PER_S if span_ns > 0 else 0.0
