"""The panels of one run from the client's side: latency, series, streams and lateness."""

from collections.abc import Iterator
from html import escape

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.record import NO_OBJECTIVE, Record, Status
from sluice.loadgen.records.statistics import lateness
from sluice.loadgen.reports.charts import Axis, Chart, legend, linear_axis, log_axis, tail_axis
from sluice.loadgen.reports.downsampling import envelope, lateness_points, tail_points
from sluice.loadgen.reports.panels import nothing, panel
from sluice.loadgen.reports.words import milliseconds
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.table import SCENARIOS
from sluice.models.units import NS_PER_MS

Floats = npt.NDArray[np.floating]

_STREAM_COLOURS = 9
_FEW = 4
"""Smallest end of a scale of queries, so that its ticks are whole."""


def latency_panels(result: RunResult, points: int) -> Iterator[str]:
    """Latency and rates of a run with queries, with at most about `points` points a line."""
    x = _seconds(float(len(result.figures.series)))
    yield _tail(result, points)
    yield _rates(result, points, x)
    if not _at_once(result):
        yield _latencies(result, points, x)
    yield from _streams(result, points)


def pace_panels(result: RunResult, points: int, halves: int) -> Iterator[str]:
    """The pace of client and target in a run with queries: queries outstanding, and the client's lateness if it counts.

    `halves` panels of half the width come before; the last of an odd number takes the whole width.
    """
    is_paced = SCENARIOS[result.config.scenario].is_paced
    last = "half" if halves % 2 != is_paced else ""
    series = result.figures.series
    size, low, high = envelope(series.outstanding.astype(np.float64), points)
    y = linear_axis(float(max(high.max(), _FEW)))
    chart = Chart(_seconds(float(len(series))), y, "Queries outstanding at the end of each second", height="low")
    _spread(chart, (np.arange(len(high)) + 1) * float(size), low, high, "good")
    yield panel("Outstanding queries", chart.html(), size="half" if is_paced else last)
    if is_paced:
        yield _lateness(result, points // 2, last)


def _tail(result: RunResult, points: int) -> str:
    record = result.record.after(result.config.warmup_s)
    ok = record.status == Status.OK
    x, due = tail_points((record.done_ns - record.due_ns)[ok], points)
    service_x, service = tail_points((record.done_ns - record.sent_ns)[ok], points)
    slo_ms = _objective_ms(record)
    if not len(due):
        return panel("Latency by percentile", nothing("No query was answered."), size="half")
    values = [due.min(), service.min(), due.max(), *([slo_ms] if slo_ms else [])]
    chart = Chart(
        tail_axis(int(ok.sum())),
        log_axis(min(values), max(values)),
        f"Latency from due by percentile, up to {milliseconds(due.max())}",
        "ms",
    )
    keys = [("p50", "from sent"), ("p99", "from due")]
    wanted = -np.log10(1 - result.config.percentile / 100)
    chart.upright(wanted, "dashed thin muted")
    if slo_ms:
        chart.level(slo_ms, "dashed objective")
        keys.append(("dashed objective", f"objective {milliseconds(slo_ms)}"))
    chart.line(service_x, service, "p50", steps=True)
    chart.line(x, due, "p99", steps=True)
    return panel("Latency by percentile", chart.html(), size="half", key=legend(keys))


def _at_once(result: RunResult) -> bool:
    offered = result.figures.series.offered
    return len(offered) > 1 and not offered[1:].any()


def _rates(result: RunResult, points: int, x: Axis) -> str:
    series = result.figures.series
    # Where all queries were due at once, only the answers have a rate.
    at_once = _at_once(result)
    size, offered_low, offered = envelope((series.completed if at_once else series.offered).astype(np.float64), points)
    _, good_low, good = envelope((series.completed if at_once else series.good).astype(np.float64), points)
    _, failed_low, failed = envelope(series.failed.astype(np.float64), points)
    # Each group of seconds is drawn over its whole length.
    edges = np.minimum(np.arange(len(offered) + 1) * float(size), x.high)
    steps = np.repeat(edges, 2)[1:-1]
    chart = Chart(x, linear_axis(float(max(offered.max(), _FEW))), "Queries a second over the run", "1/s")
    chart.band(steps, np.zeros(len(steps)), np.repeat(good_low, 2), "good-area")
    _spread(chart, steps, np.repeat(offered_low, 2), np.repeat(offered, 2), "muted thin")
    _spread(chart, steps, np.repeat(good_low, 2), np.repeat(good, 2), "good thin")
    keys = [("good", "answered")] if at_once else [("muted", "offered"), ("good", "good")]
    if failed.max() > 0:
        _spread(chart, steps, np.repeat(failed_low, 2), np.repeat(failed, 2), "failed")
        keys.append(("failed", "failed"))
    _warmup(chart, result)
    return panel("Queries a second", chart.html(), size="half", key=legend(keys), note=_grouped(size))


def _latencies(result: RunResult, points: int, x: Axis) -> str:
    series, slo_ms = result.figures.series, _objective_ms(result.record)
    size, p50_low, p50 = envelope(series.p50_ms, points)
    _, p99_low, p99 = envelope(series.p99_ms, points)
    if np.isnan(p99).all():
        return panel("Latency by second", nothing("No query was answered."), size="half")
    low, high = float(np.nanmin(p50_low)), float(np.nanmax(p99))
    y = log_axis(min(low, slo_ms or low), max(high, slo_ms or high))
    chart = Chart(x, y, "Latency from due over the run", "ms")
    middle = (np.arange(len(p99)) + 0.5) * size
    keys = [("p50", "p50"), ("p99", "p99")]
    if slo_ms:
        chart.level(slo_ms, "dashed objective")
        keys.append(("dashed objective", f"objective {milliseconds(slo_ms)}"))
    _spread(chart, middle, p50_low, p50, "p50")
    _spread(chart, middle, p99_low, p99, "p99")
    _warmup(chart, result)
    return panel("Latency by second", chart.html(), size="half", key=legend(keys), note=_grouped(size))


def _spread(chart: Chart, x: Floats, low: Floats, high: Floats, style: str) -> None:
    """One line; or two with the area between them, where a point stands for several seconds that differ."""
    if not np.array_equal(low, high, equal_nan=True):
        chart.band(x, low, high, f"soft {style}")
        chart.line(x, low, f"{style} thin")
    chart.line(x, high, style)


def _grouped(size: int) -> str:
    return "" if size == 1 else f"Each point stands for {size} seconds: lines show the lowest and the highest of them."


def _warmup(chart: Chart, result: RunResult) -> None:
    if result.config.warmup_s:
        chart.upright(result.config.warmup_s, "dashed thin muted")


def _seconds(seconds: float) -> Axis:
    """A scale that ends after that number of seconds."""
    ticks = linear_axis(seconds).ticks
    return Axis(0.0, seconds, tuple((value, f"{text} s") for value, text in ticks if value <= seconds))


def _streams(result: RunResult, points: int) -> Iterator[str]:
    if len(result.streams) < 2:
        return
    record = result.record.after(result.config.warmup_s)
    ok = record.status == Status.OK
    latency_ns = record.done_ns - record.due_ns
    lines = [
        (number, stream.name, *tail_points(latency_ns[ok & (record.stream == number)], points // 2))
        for number, stream in enumerate(result.streams)
    ]
    lines = [line for line in lines if len(line[3])]
    if not lines:
        return
    low, high = min(line[3].min() for line in lines), max(line[3].max() for line in lines)
    chart = Chart(tail_axis(int(ok.sum())), log_axis(low, high), "Latency from due by percentile of each stream", "ms")
    for number, _, x, times in lines:
        chart.line(x, times, f"s{number % _STREAM_COLOURS}", steps=True)
    keys = [(f"s{number % _STREAM_COLOURS}", name) for number, name, _, _ in lines]
    yield panel("Latency by stream", chart.html(), size="half", key=legend(keys))


def _lateness(result: RunResult, points: int, size: str) -> str:
    record = result.record
    late_ns, known = lateness(record)
    if not known.any():
        return panel("Lateness of the client", nothing("No query left the client."), size=size)
    ends_s, largest = lateness_points(record.due_ns[known], late_ns[known], points)
    x = _seconds(float(len(result.figures.series)))
    lowest = 0.01
    y = log_axis(lowest, max(float(np.nanmax(largest)), 1.0))
    chart = Chart(x, y, "Largest lateness of the client", "ms", "low")
    base = np.full(len(largest), lowest)
    starts = np.concatenate(([0.0], ends_s[:-1]))
    both = np.stack((starts, ends_s), axis=1).reshape(-1)
    chart.band(both, np.repeat(base, 2), np.repeat(np.maximum(largest, lowest), 2), "soft muted")
    chart.line(both, np.repeat(largest, 2), "muted thin")
    p99 = result.metrics.lateness_ms
    said = "" if p99 is None else f"p99 {milliseconds(p99.p99)}"
    return panel(
        "Lateness of the client",
        chart.html(),
        size=size,
        key=f'<div class="legend">{escape(said)}</div>',
        note="The largest of each span: from due until the client sent the query or it waited for a connection.",
    )


def _objective_ms(record: Record) -> float | None:
    """The objective of all queries; None when they have several or none."""
    if not len(record) or record.slo_ns.min() != record.slo_ns.max() or record.slo_ns[0] == NO_OBJECTIVE:
        return None
    return int(record.slo_ns[0]) / NS_PER_MS
