"""The panels that compare several runs."""

from collections.abc import Iterator, Sequence

import numpy as np

from sluice.loadgen.reports.charts import Axis, Chart, legend, linear_axis, log_axis
from sluice.loadgen.reports.panels import panel
from sluice.loadgen.reports.words import milliseconds, rate
from sluice.loadgen.run.result import RunResult


def rate_of(result: RunResult) -> float:
    """The rate at which queries were due; that of the answers where they were due at once."""
    return result.metrics.offered_per_s or result.metrics.completed_per_s


def comparison_panels(results: Sequence[RunResult]) -> Iterator[str]:
    """Latency against rate and goodput against offered rate, a dot for each run."""
    ordered = sorted(results, key=rate_of)
    offered = np.array([rate_of(result) for result in ordered])
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
