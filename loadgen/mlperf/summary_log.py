"""`mlperf_log_summary.txt`: the figures of a run for people, and for scripts that search its lines."""

from collections.abc import Iterator

from sluice.loadgen.mlperf.logged_run import MULTI_STREAM, OFFLINE, SERVER, SINGLE_STREAM, LoggedRun, LoggedSettings
from sluice.loadgen.mlperf.marking import NOT_A_RESULT
from sluice.loadgen.mlperf.outcome import PERCENTILES, LatencyFigures, LoggedOutcome

_RULE = "================================================"


def summary_log(run: LoggedRun, found: LoggedOutcome | None, errors: int, warnings: int) -> str:
    """The text of the file; `found` is None for a run in accuracy mode, of which LoadGen's summary tells no figures.

    `errors` and `warnings` count those of the detail log.
    """
    lines = [f"Note     : {NOT_A_RESULT}"] if found is None else list(_lines(run, found))
    return "\n".join((*lines, "", _count(warnings, "warning"), "", _count(errors, "ERROR"))) + "\n"


def _lines(run: LoggedRun, found: LoggedOutcome) -> Iterator[str]:
    yield from (_RULE, "MLPerf Results Summary", _RULE)
    yield f"Note     : {NOT_A_RESULT}"
    yield f"SUT name : {run.system}"
    yield f"Scenario : {run.scenario}"
    yield "Mode     : PerformanceOnly"
    match run.scenario:
        case "Server":
            yield f"Completed samples per second    : {found.completed_per_s:.2f}"
        case "Offline":
            yield f"Samples per second: {found.metric:.2f}"
        case _:
            percentile = run.settings.target_latency_percentile * 100
            yield f"{percentile:.1f}th percentile latency (ns) : {found.target_percentile_ns}"
    yield f"Result is : {'VALID' if found.valid else 'INVALID'}"
    if found.performance_met is not None:
        yield f"  Performance constraints satisfied : {_yes(found.performance_met)}"
    yield f"  Min duration satisfied : {_yes(found.min_duration_met)}"
    yield f"  Min queries satisfied : {_yes(found.min_queries_met)}"
    yield f"  Early stopping satisfied: {_yes(found.early_stopping.met)}"
    if not found.valid:
        yield "Recommendations:"
        yield from (f" * {sentence}" for sentence in found.recommendations)
    if run.scenario != OFFLINE:
        yield "Early Stopping Result:"
        yield from found.early_stopping.lines
    yield from ("", _RULE, "Additional Stats", _RULE)
    if run.scenario == SINGLE_STREAM:
        yield f"QPS w/ loadgen overhead         : {found.scheduled_per_s:.2f}"
        yield f"QPS w/o loadgen overhead        : {found.per_s_without_overhead:.2f}"
        yield ""
    elif run.scenario == SERVER:
        yield f"Scheduled samples per second : {found.scheduled_per_s:.2f}"
    elif run.scenario == MULTI_STREAM:
        yield "Per-query latency:  "
    yield from _latencies(found.query_latency if run.scenario == MULTI_STREAM else found.latency)
    yield from ("", _RULE, "Test Parameters Used", _RULE)
    yield from _parameters(run.settings)


def _latencies(latency: LatencyFigures) -> Iterator[str]:
    yield f"Min latency (ns)                : {latency.min}"
    yield f"Max latency (ns)                : {latency.max}"
    yield f"Mean latency (ns)               : {latency.mean}"
    for percentile, value in zip(PERCENTILES, latency.percentiles, strict=True):
        yield f"{percentile:.2f} percentile latency (ns)   : {value}"


def _parameters(settings: LoggedSettings) -> Iterator[str]:
    yield f"samples_per_query : {settings.samples_per_query}"
    yield f"target_qps : {settings.target_qps:g}"
    yield f"target_latency (ns): {settings.target_latency_ns}"
    yield f"max_async_queries : {settings.max_async_queries}"
    yield f"min_duration (ms): {settings.min_duration_ms}"
    yield f"max_duration (ms): {settings.max_duration_ms}"
    yield f"min_query_count : {settings.min_query_count}"
    yield f"max_query_count : {settings.max_query_count}"
    yield f"qsl_rng_seed : {settings.qsl_rng_seed}"
    yield f"sample_index_rng_seed : {settings.sample_index_rng_seed}"
    yield f"schedule_rng_seed : {settings.schedule_rng_seed}"
    yield f"accuracy_log_rng_seed : {settings.accuracy_log_rng_seed}"
    yield f"accuracy_log_probability : {settings.accuracy_log_probability:g}"
    yield f"accuracy_log_sampling_target : {settings.accuracy_log_sampling_target}"
    yield "print_timestamps : 0"
    yield f"performance_issue_unique : {settings.performance_issue_unique:d}"
    yield f"performance_issue_same : {settings.performance_issue_same:d}"
    yield f"performance_issue_same_index : {settings.performance_issue_same_index}"
    yield f"performance_sample_count : {settings.performance_sample_count}"
    yield f"accuracy_sample_count : {settings.accuracy_sample_count}"


def _yes(met: bool) -> str:
    return "Yes" if met else "NO"


def _count(number: int, kind: str) -> str:
    if not number:
        return f"No {kind.lower()}s encountered during test."
    return f"{number} {kind}{'s' if number > 1 else ''} encountered. See detailed log."
