"""`mlperf_log_detail.txt`: settings, events and figures of a run, one line of JSON each."""

import datetime
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

from sluice.loadgen.mlperf.logged_run import MULTI_STREAM, OFFLINE, SERVER, SINGLE_STREAM, LoggedRun, LoggedSettings
from sluice.loadgen.mlperf.marking import NOT_A_RESULT, NOT_A_RESULT_KEY
from sluice.loadgen.mlperf.outcome import PERCENTILES, LatencyFigures, LoggedOutcome
from sluice.models.units import NS_PER_MS, NS_PER_S

MARKER = ":::MLLOG "
_POINT, _START, _END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"

Value = str | float | bool | list[int]


@dataclass(frozen=True)
class DetailLine:
    """One line of the log; the time is in milliseconds from the start of the run."""

    key: str
    value: Value
    time_ms: float = 0.0
    event: str = _POINT
    error: bool = False
    warning: bool = False


def detail_lines(run: LoggedRun, found: LoggedOutcome | None) -> list[DetailLine]:
    """The lines of the log; `found` is None in accuracy mode."""
    lines = [
        DetailLine("loadgen_version", "Sluice"),
        DetailLine(NOT_A_RESULT_KEY, NOT_A_RESULT, warning=True),
        *(DetailLine(key, value) for key, value in _settings(run)),
        *_events(run),
    ]
    if found is not None:
        ended_ms = run.end_ns / NS_PER_MS
        lines += [DetailLine(key, value, ended_ms) for key, value in _results(run, found)]
        lines.append(DetailLine("num_errors", sum(line.error for line in lines), ended_ms))
    return lines


def detail_log(lines: list[DetailLine]) -> str:
    """The text of the file."""
    process = os.getpid()
    return "".join(
        MARKER
        + json.dumps(
            {
                "key": line.key,
                "value": line.value,
                "time_ms": round(line.time_ms, 6),
                "namespace": "mlperf::logging",
                "event_type": line.event,
                "metadata": {
                    "is_error": line.error,
                    "is_warning": line.warning,
                    "file": "detail_log.py",
                    "line_no": 0,
                    "pid": process,
                    "tid": process,
                },
            }
        )
        + "\n"
        for line in lines
    )


def _settings(run: LoggedRun) -> Iterator[tuple[str, Value]]:
    settings = run.settings
    mode = "AccuracyOnly" if run.accuracy_mode else "PerformanceOnly"
    if run.began_s is not None:
        yield "test_datetime", f"{_time_of_day(run.began_s):%Y-%m-%dT%H:%M:%SZ}"
    yield "sut_name", run.system
    yield "qsl_name", run.data_set
    yield "qsl_reported_total_count", settings.accuracy_sample_count
    yield "qsl_reported_performance_count", settings.performance_sample_count
    yield "requested_scenario", run.scenario
    yield "requested_test_mode", mode
    match run.scenario:
        case "Server":
            yield "requested_server_target_qps", settings.target_qps
            yield "requested_server_target_latency_ns", settings.target_latency_ns
            yield "requested_server_target_latency_percentile", settings.target_latency_percentile
            yield "requested_server_max_async_queries", settings.max_async_queries
        case "SingleStream":
            yield "requested_single_stream_target_latency_percentile", settings.target_latency_percentile
        case "MultiStream":
            yield "requested_multi_stream_target_latency_percentile", settings.target_latency_percentile
            yield "requested_multi_stream_samples_per_query", settings.samples_per_query
    # What LoadGen is asked for as queries of the Offline scenario are samples of its one query.
    least = settings.min_sample_count if run.scenario == OFFLINE else settings.min_query_count
    yield from _limits(settings, "requested", least)
    yield from _choices(settings, "requested")
    yield "requested_performance_sample_count_override", settings.performance_sample_count
    yield "requested_accuracy_sample_count_override", settings.accuracy_sample_count
    yield "requested_sample_concatenate_permutation", settings.sample_concatenate_permutation
    yield "effective_scenario", run.scenario
    yield "effective_test_mode", mode
    yield "effective_samples_per_query", settings.samples_per_query
    yield "effective_target_qps", settings.target_qps
    yield "effective_target_latency_ns", settings.target_latency_ns
    yield "effective_target_latency_percentile", settings.target_latency_percentile
    yield "effective_max_async_queries", settings.max_async_queries
    yield "effective_target_duration_ms", 0 if run.scenario == OFFLINE else settings.min_duration_ms
    yield from _limits(settings, "effective", settings.min_query_count)
    yield "effective_min_sample_count", settings.min_sample_count
    yield from _choices(settings, "effective")
    yield "effective_performance_sample_count", settings.performance_sample_count
    yield "effective_accuracy_sample_count", settings.accuracy_sample_count
    yield "effective_sample_concatenate_permutation", settings.sample_concatenate_permutation


def _limits(settings: LoggedSettings, prefix: str, min_queries: int) -> Iterator[tuple[str, Value]]:
    yield f"{prefix}_min_duration_ms", settings.min_duration_ms
    yield f"{prefix}_max_duration_ms", settings.max_duration_ms
    yield f"{prefix}_min_query_count", min_queries
    yield f"{prefix}_max_query_count", settings.max_query_count


def _choices(settings: LoggedSettings, prefix: str) -> Iterator[tuple[str, Value]]:
    yield f"{prefix}_qsl_rng_seed", settings.qsl_rng_seed
    yield f"{prefix}_sample_index_rng_seed", settings.sample_index_rng_seed
    yield f"{prefix}_schedule_rng_seed", settings.schedule_rng_seed
    yield f"{prefix}_accuracy_log_rng_seed", settings.accuracy_log_rng_seed
    yield f"{prefix}_accuracy_log_probability", settings.accuracy_log_probability
    yield f"{prefix}_accuracy_log_sampling_target", settings.accuracy_log_sampling_target
    yield f"{prefix}_print_timestamps", False
    yield f"{prefix}_performance_issue_unique", settings.performance_issue_unique
    yield f"{prefix}_performance_issue_same", settings.performance_issue_same
    yield f"{prefix}_performance_issue_same_index", settings.performance_issue_same_index


def _events(run: LoggedRun) -> Iterator[DetailLine]:
    ended_ms = run.end_ns / NS_PER_MS
    for loaded in run.loaded:
        yield DetailLine("loaded_qsl_set", list(loaded))
    yield DetailLine("generated_query_count", run.queries)
    yield DetailLine("generated_samples_per_query", run.group)
    yield DetailLine("generated_query_duration", int(run.start_ns[-1]))
    for fault in run.faults:
        yield DetailLine("error_runtime", fault, ended_ms, error=True)
    if run.unanswered:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in run.failures.items())
        text = f"{run.unanswered} of {len(run.samples)} samples had no answer"
        yield DetailLine("error_runtime", f"{text}: {reasons}" if reasons else text, ended_ms, error=True)
    if run.began_s is not None:
        yield DetailLine("power_begin", _power_time(run.began_s), 0.0, _START)
        yield DetailLine("power_end", _power_time(run.began_s + run.end_ns / NS_PER_S), ended_ms, _END)


def _results(run: LoggedRun, found: LoggedOutcome) -> Iterator[tuple[str, Value]]:
    yield "result_validity", "VALID" if found.valid else "INVALID"
    if found.performance_met is not None:
        yield "result_perf_constraints_met", found.performance_met
    yield "result_min_duration_met", found.min_duration_met
    yield "result_min_queries_met", found.min_queries_met
    yield "early_stopping_met", found.early_stopping.met
    if not found.valid:
        yield "result_invalid_reason", " ".join(found.recommendations)
    yield "early_stopping_result", " ".join(found.early_stopping.lines)
    yield "result_query_count", run.queries
    if run.scenario == SERVER:
        yield "result_overlatency_query_count", found.over_latency
        yield "result_scheduled_samples_per_sec", found.scheduled_per_s
        yield "result_completed_samples_per_sec", found.completed_per_s
    elif run.scenario == OFFLINE:
        yield "result_samples_per_second", found.metric
    elif run.scenario == SINGLE_STREAM:
        yield "result_qps_with_loadgen_overhead", found.scheduled_per_s
        yield "result_qps_without_loadgen_overhead", found.per_s_without_overhead
        yield "early_stopping_latency_ss", found.early_stopping.single_stream_ns
        yield "early_stopping_latency_ms", found.early_stopping.multi_stream_ns
    elif run.scenario == MULTI_STREAM:
        yield from _latencies(found.query_latency, "query_latency", "per_query_latency")
        yield "early_stopping_latency_ms", found.early_stopping.multi_stream_ns
    yield from _latencies(found.latency, "latency", "latency")


def _latencies(latency: LatencyFigures, name: str, percentile_name: str) -> Iterator[tuple[str, Value]]:
    yield f"result_min_{name}_ns", latency.min
    yield f"result_max_{name}_ns", latency.max
    yield f"result_mean_{name}_ns", latency.mean
    for percentile, value in zip(PERCENTILES, latency.percentiles, strict=True):
        yield f"result_{percentile:.2f}_percentile_{percentile_name}_ns", value


def _time_of_day(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _power_time(seconds: float) -> str:
    time = _time_of_day(seconds)
    return f"{time:%m-%d-%Y %H:%M:%S}.{time.microsecond // 1000:03}"
