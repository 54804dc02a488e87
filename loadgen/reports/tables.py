"""The tables of a run's report, for Markdown and for the page of HTML."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sluice.loadgen.records.figures import Cost, CostSource, GroupBy, Intervals
from sluice.loadgen.records.statistics import Distribution, QueryStatistics
from sluice.loadgen.reports.words import NO_INTERVALS, count, milliseconds, rate, share
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.base import Figure

_COST_SOURCES = {
    CostSource.PRICE: "by the price of an hour",
    CostSource.METRICS: "by the server's metrics",
    CostSource.SAMPLE: "by the sampled answers",
}
_ENVIRONMENT = {"numpy": "NumPy", "cpus": "CPUs", "load_average": "Load average"}
_GROUPS = {GroupBy.STREAM: "By stream", GroupBy.MODEL: "By model", GroupBy.OBJECTIVE: "By objective"}


class ReportTable(NamedTuple):
    """A table with its title and a note under it; the first column is text, the others are figures."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def tables(result: RunResult) -> Iterator[ReportTable]:
    """The tables of a run that have rows, in the order in which they are read."""
    yield _queries(result)
    yield _circumstances(result)
    yield _latency(result)
    yield from _groups(result)
    yield from _stages(result)
    yield from _models(result)
    if result.record.reasons:
        rows = [(reason, count(number)) for reason, number in result.record.reasons.items()]
        yield ReportTable("Failures", ("Reason", "Queries"), rows)


def _queries(result: RunResult) -> ReportTable:
    metrics = result.metrics
    rows = [
        ("Queries after the warm-up", count(metrics.queries)),
        ("Answered", count(metrics.ok)),
        ("Answered within the objective", count(metrics.good)),
    ]
    rows += [(name, count(number)) for name, number in losses(metrics) if number]
    rows += [
        ("Offered", rate(metrics.offered_per_s)),
        ("Completed", rate(metrics.completed_per_s)),
        ("Good", rate(metrics.goodput_per_s)),
    ]
    rows += [(f"Score: {figure.name}", _figure(figure)) for figure in result.score.figures]
    if result.figures.intervals is not None:
        rows += _interval_rows(result.figures.intervals)
    if result.figures.cost is not None:
        rows.append(_cost_row(result.figures.cost))
    if result.accuracy is not None:
        rows.append((f"Accuracy of {count(result.answered_rows)} answered rows", f"{result.accuracy:.4f}"))
    if result.client_cpu_us_per_query is not None:
        rows.append(("CPU of the client a query", f"{result.client_cpu_us_per_query:.1f} µs"))
    if result.client_cpu_share is not None:
        rows.append(("CPU of the client", f"{result.client_cpu_share * 100:.0f} % of a core"))
    if result.baseline_lateness_ms is not None:
        rows.append(("Lateness of the client without load (p99)", milliseconds(result.baseline_lateness_ms)))
    note = "" if result.figures.intervals is not None else f"Confidence intervals: {NO_INTERVALS}."
    return ReportTable("Queries", ("", ""), rows, note)


def _figure(figure: Figure) -> str:
    if figure.value is None:
        return "-"
    if figure.unit == "/s":
        return rate(figure.value)
    return milliseconds(figure.value) if figure.unit == "ms" else f"{figure.value:.4g} {figure.unit}".rstrip()


def losses(metrics: QueryStatistics) -> tuple[tuple[str, int], ...]:
    """The queries without an answer by the way in which they ended."""
    return (
        ("Refused", metrics.shed),
        ("Failed", metrics.error),
        ("Timed out", metrics.timeout),
        ("Dropped by the client", metrics.dropped),
        ("Cancelled", metrics.cancelled),
    )


def _interval_rows(intervals: Intervals) -> Iterator[tuple[str, str]]:
    if (goodput := intervals.goodput_per_s) is not None:
        yield "Good, 95 % interval", f"{rate(goodput.low)} to {rate(goodput.high)}"
    yield "Attainment, 95 % interval", f"{share(intervals.attainment.low)} to {share(intervals.attainment.high)}"
    for name, interval in (("p50", intervals.p50_ms), ("p99", intervals.p99_ms)):
        if interval is not None:
            yield f"{name}, 95 % interval", f"{milliseconds(interval.low)} to {milliseconds(interval.high)}"


def _cost_row(cost: Cost) -> tuple[str, str]:
    return f"Cost of 1000 good answers, {_COST_SOURCES[cost.source]}", f"{cost.per_1000_good:.4g}"


def _latency(result: RunResult) -> ReportTable:
    metrics = result.metrics
    rows = [
        _distribution("From due", metrics.latency_ms),
        _distribution("From sent", metrics.service_ms),
        _distribution("Waiting for a connection", metrics.waiting_ms),
        _distribution("Lateness of the client", metrics.lateness_ms),
    ]
    header = ("ms", "mean", "p50", "p90", "p95", "p97", "p99", "p99.9", "max")
    return ReportTable("Latency", header, rows, "Percentiles are elements of the sorted times, as MLPerf takes them.")


def _distribution(name: str, d: Distribution | None) -> tuple[str, ...]:
    if d is None:
        return (name, *("-" for _ in range(8)))
    return (name, *(f"{value:.3f}" for value in (d.mean, d.p50, d.p90, d.p95, d.p97, d.p99, d.p99_9, d.max)))


def _groups(result: RunResult) -> Iterator[ReportTable]:
    for by, caption in _GROUPS.items():
        rows = [
            (
                group.name,
                count(group.metrics.queries),
                rate(group.metrics.offered_per_s),
                rate(group.metrics.goodput_per_s),
                share(group.metrics.attainment),
                *_ends(group.metrics.latency_ms),
            )
            for group in result.figures.groups
            if group.by is by
        ]
        if rows:
            yield ReportTable(caption, ("", "Queries", "Offered", "Good", "Attained", "p50 ms", "p99 ms"), rows)


def _ends(latency: Distribution | None) -> tuple[str, str]:
    return ("-", "-") if latency is None else (f"{latency.p50:.3f}", f"{latency.p99:.3f}")


def _stages(result: RunResult) -> Iterator[ReportTable]:
    sampled = len(result.record.stages)
    rows = [
        (
            stage.title,
            share(stage.queries / sampled),
            *(f"{value:.3f}" for value in (*stage.times_ms, stage.total_ms)),
            f"{stage.batch_rows:.2f}",
        )
        for stage in result.figures.stages
    ]
    if rows:
        header = ("ms", "Reached by", "queue", "batch wait", "hand-off", "compute", "return", "sum", "Batch met")
        note = f"Means of the {count(sampled)} answers that have times of stages."
        yield ReportTable("Server time by stage", header, rows, note)


def _models(result: RunResult) -> Iterator[ReportTable]:
    models = () if result.server is None else result.server.models
    rows = [
        (
            model.model + (" (pipeline)" if model.is_pipeline else ""),
            count(model.requests),
            "-" if model.is_pipeline else count(model.batches),
            "-" if model.is_pipeline else f"{model.mean_batch:.2f}",
            "-" if model.is_pipeline else f"{model.met_batch:.2f}",
            *(f"{value:.3f}" for value in (model.queue_ms, model.input_ms, model.compute_ms, model.output_ms)),
        )
        for model in models
    ]
    if rows:
        header = ("", "Requests", "Batches", "Rows", "Rows met", "queue ms", "input ms", "compute ms", "output ms")
        note = (
            "From the server's statistics, warm-up included. Rows: mean size of a batch; rows met: mean size of the "
            "batch that a row was in. The queue includes the wait for a batch to fill."
        )
        yield ReportTable("Models of the server", header, rows, note)


def _circumstances(result: RunResult) -> ReportTable:
    config = result.config
    rows = [
        ("Target", config.target + (" (simulated)" if result.simulated else "")),
        ("Model", config.model),
        ("Scenario", str(config.scenario)),
        ("Arrivals", config.arrivals.describe()),
        ("Seed", str(config.seed)),
        ("Schedule (SHA-256)", result.schedule_digest[:16]),
        ("Warm-up, left out", f"{config.warmup_s:g} s"),
    ]
    rows += [(_ENVIRONMENT.get(name, name.capitalize()), value) for name, value in result.environment.items()]
    return ReportTable("Circumstances", ("", ""), rows)
