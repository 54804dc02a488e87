"""The panels of one run from the server's side: times by stage and sizes of batches."""

import math
from collections.abc import Iterator, Sequence
from html import escape

from sluice.loadgen.records.model_statistics import ModelActivity
from sluice.loadgen.records.stage_times import StageTimes
from sluice.loadgen.reports.charts import Axis, Chart, legend, linear_axis
from sluice.loadgen.reports.panels import panel
from sluice.loadgen.reports.words import count, milliseconds, share
from sluice.loadgen.run.result import RunResult

_MANY = 8
"""More stages than these take the whole width."""
_PARTS = (
    ("queue", "queue"),
    ("batch-wait", "batch wait"),
    ("hand-off", "hand-off"),
    ("compute", "compute"),
    ("return", "return"),
)


def stage_panel(result: RunResult) -> Iterator[str]:
    """Times by stage, where the server tells them."""
    if result.figures.stages:
        sampled = len(result.record.stages)
        rows = [
            (stage.title, _reached(stage, sampled), stage.times_ms, stage.total_ms) for stage in result.figures.stages
        ]
        note = f"Means of the {count(sampled)} answers that have times of stages, in milliseconds."
    else:
        models = () if result.server is None else result.server.models
        rows = [
            (model.model, f"{count(model.requests)} requests", _model_parts(model), math.fsum(_model_parts(model)))
            for model in models
            if not model.is_pipeline
        ]
        note = "Means of all requests, from the server's statistics; the queue includes the wait for a batch to fill."
    if not rows:
        return
    largest = max(total for *_, total in rows) or 1.0
    body = "".join(_stack(name, detail, parts, total, largest) for name, detail, parts, total in rows)
    keys = legend((f"block {style}", name) for style, name in _PARTS)
    body = f'<div class="stacks">{body}</div>'
    yield panel("Server time by stage", body, size="" if len(rows) > _MANY else "half", key=keys, note=note)


def _reached(stage: StageTimes, sampled: int) -> str:
    return f"{share(stage.queries / sampled)} of queries, batches of {stage.batch_rows:.3g}"


def _model_parts(model: ModelActivity) -> tuple[float, float, float, float, float]:
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


def batch_panels(result: RunResult) -> Iterator[str]:
    """Sizes of batches by model, where the server tells them."""
    models = () if result.server is None else result.server.models
    panels = [_batch_sizes(model) for model in models if not model.is_pipeline and model.batch_sizes]
    if panels:
        yield f'<div class="row">{"".join(panels)}</div>'


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
            ("block p50", f"batches, mean {model.mean_batch:.2f}"),
            ("block p99", f"as rows met, mean {model.met_batch:.2f}"),
        ]
    )
    return panel(f"Batch sizes: {model.model}", chart.html(), key=keys)
