"""The report of runs as one page of HTML, which loads nothing and runs no script."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from sluice.loadgen.reports.comparison_panels import comparison_panels, rate_of
from sluice.loadgen.reports.panels import is_half, table_panel
from sluice.loadgen.reports.run_panels import latency_panels, pace_panels
from sluice.loadgen.reports.server_panels import batch_panels, stage_panel
from sluice.loadgen.reports.tables import ReportTable, losses, tables
from sluice.loadgen.reports.words import count, explanation, milliseconds, rate, share, title
from sluice.loadgen.run.result import RunResult, Verdict

_STYLE = Path(__file__).with_name("page.css")
_POINTS = 400
"""Most points of a line, in all runs of a page together for each chart."""
_FEWEST_POINTS = 40
_MOST_RUNS = 24
"""Most runs that a page shows with their own charts."""
_SMALL_COST = 0.01
_MOODS = {Verdict.MET: "met", Verdict.MISSED: "missed", Verdict.NOT_CONFIRMED: "unsure", Verdict.INVALID: "unsure"}
_ICON = (
    '<svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="7" fill="#1f6fb5"/>'
    '<path d="M6 8h3v16H6zM23 8h3v16h-3zM9 11h14v6H9z" fill="#fff"/>'
    '<path d="M10 21c2-2 4-2 6 0s4 2 6 0M10 25c2-2 4-2 6 0s4 2 6 0" fill="none" stroke="#9fd3ff" stroke-width="1.8" '
    'stroke-linecap="round"/></svg>'
)


def run_page(results: Sequence[RunResult]) -> str:
    """The page of one run, or of several with their comparison."""
    first = results[0]
    if len(results) == 1:
        return _page(f"{title(first)}: {first.config.model}", _run_head(first), "\n".join(_run(first, _POINTS)))
    results = sorted(results, key=rate_of)
    points = max(_FEWEST_POINTS, _POINTS // min(len(results), _MOST_RUNS))
    panels = [*comparison_panels(results), table_panel(_overview(results))]
    for result in results[:_MOST_RUNS]:
        panels += [f'<h2 class="run">{_name(result)}{_pill(result)}</h2>', *_run(result, points)]
    met = sum(result.slo_met for result in results)
    invalid = sum(result.verdict is Verdict.INVALID for result in results)
    invalid_note = (
        f"; {invalid} of them {'says' if invalid == 1 else 'say'} nothing about the target" if invalid else ""
    )
    head = (
        f'<div class="brand">{_ICON}<h1>{len(results)} runs</h1>{_about(first)}</div>'
        f'<p class="sentence">{met} of {len(results)} runs met their objective{invalid_note}.</p>'
    )
    return _page(f"{len(results)} runs: {first.config.model}", head, "\n".join(panels))


def _page(name: str, head: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(name)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{_STYLE.read_text()}</style></head>\n"
        f'<body><header><div class="width">{head}</div></header>\n<main class="width">\n{body}\n</main>\n'
        '<footer class="width">Latency counts from the time at which a query was due. Written by the load generator '
        "of Sluice.</footer></body></html>\n"
    )


def _run(result: RunResult, points: int) -> Iterator[str]:
    panels = list(stage_panel(result))
    if len(result.record):
        panels = [*latency_panels(result, points), *panels]
        panels += pace_panels(result, points, sum(map(is_half, panels)))
    yield from panels
    yield from batch_panels(result)
    yield from (table_panel(table) for table in tables(result))


def _run_head(result: RunResult) -> str:
    remarks = "".join(f'<p class="remark">{escape(note)}</p>' for note in result.notes)
    figures = "".join(
        f"<div{' class=bad' if is_bad else ''}><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value, is_bad in _headline(result)
    )
    return (
        f'<div class="brand">{_ICON}<h1>{escape(result.config.model)}</h1>{_pill(result)}{_about(result)}</div>'
        f'<p class="sentence">{escape(explanation(result))}</p>{remarks}<dl class="figures">{figures}</dl>'
    )


def _pill(result: RunResult) -> str:
    return f'<span class="pill {_MOODS[result.verdict]}">{escape(title(result))}</span>'


def _about(result: RunResult) -> str:
    simulated = "simulated, " if result.simulated else ""
    return f'<span class="about">{simulated}{escape(result.config.scenario)} at {escape(result.config.target)}</span>'


def _headline(result: RunResult) -> Iterator[tuple[str, str, bool]]:
    metrics = result.metrics
    yield "good", rate(metrics.goodput_per_s), False
    yield "offered", rate(metrics.offered_per_s), False
    yield "within the objective", share(metrics.attainment), result.verdict is Verdict.MISSED
    if metrics.latency_ms is not None:
        yield "p50", milliseconds(metrics.latency_ms.p50), False
        yield "p99", milliseconds(metrics.latency_ms.p99), False
        yield "p99.9", milliseconds(metrics.latency_ms.p99_9), False
    lost = sum(number for name, number in losses(metrics) if name != "Cancelled")
    yield "without an answer", count(lost), lost > 0
    if result.figures.cost is not None:
        # A thousand answers of a small model cost next to nothing.
        per_1000 = result.figures.cost.per_1000_good
        small = per_1000 < _SMALL_COST
        yield f"cost of {'1 M' if small else '1000'} good", f"{per_1000 * (1000 if small else 1):.3g}", False


def _name(result: RunResult) -> str:
    return escape(f"{result.config.model} at {rate(rate_of(result))}")


def _overview(results: Sequence[RunResult]) -> ReportTable:
    rows = []
    for result in results:
        metrics = result.metrics
        latency = metrics.latency_ms
        rows.append(
            (
                f"{result.config.model}, seed {result.config.seed}",
                rate(metrics.offered_per_s),
                rate(metrics.goodput_per_s),
                share(metrics.attainment),
                "-" if latency is None else milliseconds(latency.p50),
                "-" if latency is None else milliseconds(latency.p99),
                title(result),
            )
        )
    note = "" if len(results) <= _MOST_RUNS else f"The first {_MOST_RUNS} runs follow with their own charts."
    return ReportTable("Runs", ("", "Offered", "Good", "Attained", "p50", "p99", "Verdict"), rows, note)
