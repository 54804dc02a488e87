"""The panels of the report page: a title, a legend, a chart and a note each."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.model_statistics import ModelActivity
from sluice.loadgen.records.record import NO_OBJECTIVE, Record, Status
from sluice.loadgen.records.stage_times import StageTimes
from sluice.loadgen.records.statistics import lateness
from sluice.loadgen.reports.charts import Axis, Chart, legend, linear_axis, log_axis, tail_axis
from sluice.loadgen.reports.downsampling import envelope, lateness_points, tail_points
from sluice.loadgen.reports.tables import Table
from sluice.loadgen.reports.words import count, milliseconds, rate, share
from sluice.loadgen.run.result import RunResult
from sluice.models.units import NS_PER_MS, NS_PER_S

Floats = npt.NDArray[np.float64]

_STREAM_COLOURS = 9
_PARTS = (
    ("queue", "queue"),
    ("batch-wait", "batch wait"),
    ("hand-off", "hand-off"),
    ("compute", "compute"),
    ("return", "return"),
)


def panel(title: str, body: str, *, size: str = "", key: str = "", note: str = "") -> str:
    """A panel of the page; `title` and `note` are plain text, the rest is HTML."""
    under = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section class="panel {size}"><div class="head"><h2>{escape(title)}</h2>{key}</div>{body}{under}</section>'


def table_panel(table: Table) -> str:
    """A panel with a table."""
    pairs = len(table.header) == 2
    head = "" if pairs else f"<thead><tr>{''.join(f'<th scope=col>{escape(cell)}' for cell in table.header)}</thead>"
    rows = "".join(
        f"<tr><th scope=row>{escape(first)}{''.join(f'<td>{escape(cell)}' for cell in others)}"
        for first, *others in table.rows
    )
    style = ' class="pairs"' if pairs else ""
    body = f'<div class="scroll"><table{style}>{head}<tbody>{rows}</tbody></table></div>'
    return panel(table.title, body, size="half" if pairs else "", note=table.note)


def run_panels(result: RunResult, points: int) -> Iterator[str]:
    """The charts of one run, each with at most about `points` points a line."""
    if len(result.record):
        yield _tail(result, points)
        yield from _series(result, points)
        yield from _streams(result, points)
        yield _lateness(result, points)
    yield from _stages(result)
    yield from _batches(result)


def _tail(result: RunResult, points: int) -> str:
    record = _measured(result)
    ok = record.status == Status.OK
    x, due = tail_points((record.done_ns - record.due_ns)[ok], points)
    service_x, service = tail_points((record.done_ns - record.sent_ns)[ok], points)
    slo_ms = _objective_ms(record)
    if not len(due):
        return panel("Latency by percentile", _nothing("No query was answered."), size="half")
    values = [due.min(), service.min(), due.max(), *([slo_ms] if slo_ms else [])]
    chart = Chart(
        tail_axis(len(due) and int(ok.sum())),
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


def _series(result: RunResult, points: int) -> Iterator[str]:
    series, record = result.figures.series, result.record
    seconds = len(series)
    size, offered_low, offered = envelope(series.offered.astype(np.float64), points)
    _, good_low, good = envelope(series.good.astype(np.float64), points)
    _, _, failed = envelope(series.failed.astype(np.float64), points)
    # Each group of seconds is drawn over its whole length.
    edges = np.minimum(np.arange(len(offered) + 1) * size, seconds).astype(np.float64)
    x = linear_axis(float(seconds))
    x = Axis(0.0, float(max(seconds, 1)), tuple((v, f"{t} s") for v, t in x.ticks if v <= seconds))
    note = "" if size == 1 else f"Each point spans {size} s: lines reach from the lowest to the highest second."
    warmup = result.config.warmup_s
    rates = Chart(x, linear_axis(float(max(offered.max(), 1))), "Queries a second over the run", "1/s")
    steps = np.repeat(edges, 2)[1:-1]
    rates.band(steps, np.zeros(len(steps)), np.repeat(good_low, 2), "good-area")
    if size > 1:
        rates.band(steps, np.repeat(good_low, 2), np.repeat(good, 2), "soft good")
        rates.band(steps, np.repeat(offered_low, 2), np.repeat(offered, 2), "soft muted")
    rates.line(steps, np.repeat(good, 2), "good thin")
    rates.line(steps, np.repeat(offered, 2), "muted thin")
    keys = [("muted", "offered"), ("good", "good")]
    if failed.max() > 0:
        rates.line(steps, np.repeat(failed, 2), "failed")
        keys.append(("failed", "failed"))
    if warmup:
        rates.upright(warmup, "dashed thin muted")
    yield panel("Queries a second", rates.html(), size="half", key=legend(keys), note=note)
    yield _latency_series(result, points, x, _objective_ms(record))
    most, low, high = envelope(series.outstanding.astype(np.float64), points)
    middle = (np.arange(len(high)) + 1) * float(most)
    waiting = Chart(
        x, linear_axis(float(max(high.max(), 1))), "Queries outstanding at the end of each second", height="low"
    )
    if most > 1:
        waiting.band(middle, low, high, "soft good")
    waiting.line(middle, high, "good")
    yield panel("Outstanding queries", waiting.html(), size="half")


def _latency_series(result: RunResult, points: int, x: Axis, slo_ms: float | None) -> str:
    series = result.figures.series
    size, p50_low, p50 = envelope(series.p50_ms, points)
    _, p99_low, p99 = envelope(series.p99_ms, points)
    if np.isnan(p99).all():
        return panel("Latency", _nothing("No query was answered."), size="half")
    low, high = float(np.nanmin(p50_low)), float(np.nanmax(p99))
    chart = Chart(
        x, log_axis(min(low, slo_ms or low), max(high, slo_ms or high)), "Latency from due over the run", "ms"
    )
    middle = (np.arange(len(p99)) + 0.5) * size
    keys = [("p50", "p50"), ("p99", "p99")]
    if slo_ms:
        chart.level(slo_ms, "dashed objective")
        keys.append(("dashed objective", f"objective {milliseconds(slo_ms)}"))
    if size > 1:
        chart.band(middle, p50_low, p50, "soft p50")
        chart.band(middle, p99_low, p99, "soft p99")
    chart.line(middle, p50, "p50")
    chart.line(middle, p99, "p99")
    if result.config.warmup_s:
        chart.upright(result.config.warmup_s, "dashed thin muted")
    return panel("Latency by second", chart.html(), size="half", key=legend(keys))


def _streams(result: RunResult, points: int) -> Iterator[str]:
    if len(result.streams) < 2:
        return
    record = _measured(result)
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


def _lateness(result: RunResult, points: int) -> str:
    record = result.record
    late_ns, known = lateness(record)
    if not known.any():
        return panel("Lateness of the client", _nothing("No query left the client."), size="half")
    ends_s, largest = lateness_points(record.due_ns[known], late_ns[known], points)
    x = linear_axis(float(ends_s[-1]))
    x = Axis(0.0, float(ends_s[-1]), tuple((v, f"{t} s") for v, t in x.ticks if v <= ends_s[-1]))
    lowest = 0.01
    chart = Chart(
        x, log_axis(lowest, max(float(np.nanmax(largest)), 1.0)), "Largest lateness of the client", "ms", "low"
    )
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
        size="half",
        key=f'<div class="legend">{escape(said)}</div>',
        note="The largest of each span: from due until the client sent the query or it waited for a connection.",
    )


def _stages(result: RunResult) -> Iterator[str]:
    if result.figures.stages:
        sampled = len(result.record.stages)
        rows = [
            (stage.stage, _reached(stage, sampled), _stage_parts(stage), stage.total_ms)
            for stage in result.figures.stages
        ]
        note = f"Means of the {count(sampled)} answers that told their stages, in milliseconds."
    else:
        models = () if result.server is None else result.server.models
        rows = [
            (model.model, f"{count(model.requests)} requests", _model_parts(model), sum(_model_parts(model)))
            for model in models
            if not model.is_pipeline
        ]
        note = "Means of all requests, from the server's statistics; the queue includes the wait for a batch to fill."
    if not rows:
        return
    largest = max(total for *_, total in rows) or 1.0
    body = "".join(_stack(name, detail, parts, total, largest) for name, detail, parts, total in rows)
    keys = legend((f"block {style}", name) for style, name in _PARTS)
    yield panel("Server time by stage", f'<div class="stacks">{body}</div>', size="half", key=keys, note=note)


def _reached(stage: StageTimes, sampled: int) -> str:
    return f"{stage.partition}, {share(stage.queries / sampled)} of queries, batches of {stage.batch_rows:.3g}"


def _stage_parts(stage: StageTimes) -> tuple[float, ...]:
    return stage.queue_ms, stage.batch_wait_ms, stage.hand_off_ms, stage.compute_ms, stage.return_ms


def _model_parts(model: ModelActivity) -> tuple[float, ...]:
    return model.queue_ms, 0.0, model.input_ms, model.compute_ms, model.output_ms


def _stack(name: str, detail: str, parts: Sequence[float], total: float, largest: float) -> str:
    bars = "".join(
        f'<b class="{style}" style="width:{part / largest * 100:.2f}%" title="{title} {milliseconds(part)}"></b>'
        for (style, title), part in zip(_PARTS, parts, strict=True)
        if part > 0
    )
    return (
        f'<div class="name">{escape(name)}<small>{escape(detail)}</small></div>'
        f'<div class="stack">{bars}</div><div class="sum">{escape(milliseconds(total))}</div>'
    )


def _batches(result: RunResult) -> Iterator[str]:
    models = () if result.server is None else result.server.models
    for model in models:
        if not model.is_pipeline and model.batch_sizes:
            yield _batch_sizes(model)


def _batch_sizes(model: ModelActivity) -> str:
    sizes = model.batch_sizes
    batches = sum(number for _, number in sizes)
    rows = sum(size * number for size, number in sizes)
    shares = [(size, number / batches, size * number / rows) for size, number in sizes]
    highest = max(max(of_batches, of_rows) for _, of_batches, of_rows in shares) * 100
    room = 1 / len(shares)
    stride = max(1, len(shares) // 8)
    feet = Axis(0, 1, tuple(((i + 0.5) * room, str(size)) for i, (size, *_) in enumerate(shares) if i % stride == 0))
    chart = Chart(feet, linear_axis(highest), f"Batch sizes of {model.model}", "%", "low")
    for i, (size, of_batches, of_rows) in enumerate(shares):
        left = i * room + room * 0.14
        chart.bar(left, room * 0.35, of_batches * 100, "p50", f"{size} rows: {share(of_batches)} of batches")
        chart.bar(left + room * 0.37, room * 0.35, of_rows * 100, "p99", f"{size} rows: {share(of_rows)} of rows")
    keys = legend(
        [
            ("block p50", f"of batches, mean {model.mean_batch:.2f}"),
            ("block p99", f"met by a row, mean {model.met_batch:.2f}"),
        ]
    )
    return panel(f"Batch sizes: {model.model}", chart.html(), size="half", key=keys)


def comparison_panels(results: Sequence[RunResult]) -> Iterator[str]:
    """Latency against rate and goodput against offered rate, a dot for each run."""
    ordered = sorted(results, key=lambda result: result.metrics.offered_per_s)
    offered = np.array([result.metrics.offered_per_s for result in ordered])
    known = [result.metrics.latency_ms for result in ordered]
    p50 = np.array([np.nan if d is None else d.p50 for d in known])
    p99 = np.array([np.nan if d is None else d.p99 for d in known])
    objectives = {slo_ms for result in ordered if (slo_ms := result.config.slo_ms) is not None}
    x = linear_axis(float(offered.max(initial=1.0)))
    x = Axis(x.low, x.high, tuple((value, f"{text}/s") for value, text in x.ticks))
    titles = [
        f"{rate(o)}: p50 {milliseconds(a)}, p99 {milliseconds(b)}" for o, a, b in zip(offered, p50, p99, strict=True)
    ]
    if not np.isnan(p99).all():
        low, high = float(np.nanmin(p50)), float(np.nanmax(p99))
        chart = Chart(
            x, log_axis(min(low, *objectives, low), max(high, *objectives, high)), "Latency against rate", "ms", "tall"
        )
        keys = [("p50", "p50"), ("p99", "p99")]
        for slo_ms in sorted(objectives):
            chart.level(slo_ms, "dashed objective")
            keys.append(("dashed objective", f"objective {milliseconds(slo_ms)}"))
        for values, style in ((p50, "p50"), (p99, "p99")):
            chart.line(offered, values, style)
            chart.dots(offered, values, style, titles)
        yield panel("Latency against rate", chart.html(), size="half", key=legend(keys))
    good = np.array([result.metrics.goodput_per_s for result in ordered])
    chart = Chart(x, linear_axis(float(offered.max(initial=1.0))), "Goodput against offered rate", "1/s", "tall")
    chart.line([0, x.high], [0, x.high], "dashed thin muted")
    chart.line(offered, good, "good")
    chart.dots(
        offered, good, "good", [f"{rate(o)} offered, {rate(g)} good" for o, g in zip(offered, good, strict=True)]
    )
    keys = [("good", "good"), ("dashed muted", "all of what was offered")]
    yield panel("Goodput against offered rate", chart.html(), size="half", key=legend(keys))


def _measured(result: RunResult) -> Record:
    return result.record.select(result.record.due_ns >= round(result.config.warmup_s * NS_PER_S))


def _objective_ms(record: Record) -> float | None:
    """The objective of all queries; None when they have several or none."""
    if not len(record) or record.slo_ns.min() != record.slo_ns.max() or record.slo_ns[0] == NO_OBJECTIVE:
        return None
    return int(record.slo_ns[0]) / NS_PER_MS


def _nothing(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def joined(parts: Iterable[str]) -> str:
    """HTML of parts, one after the other."""
    return "\n".join(parts)
