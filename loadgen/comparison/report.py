"""The report of a comparison, as text and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sluice.loadgen.comparison.compared_run import ComparedRun
from sluice.loadgen.comparison.contrast import CONFIDENCE, Comparison, ComparisonVerdict, Contrast
from sluice.loadgen.reports.document import document
from sluice.models.text_table import table_lines


def run_line(label: str, run: ComparedRun) -> str:
    """The line of one run as it ends."""
    latency = run.metrics.latency_ms
    p99 = "no answers" if latency is None else f"p99 {latency.p99:.3f} ms"
    limits = f"  {'; '.join(run.limits)}" if run.limits else ""
    return f"{label}  seed {run.seed}  {run.metrics.goodput_per_s:.1f}/s good  {p99}{limits}"


def comparison_text(names: Mapping[str, str], comparisons: Mapping[str, Comparison], threshold: float) -> str:
    """The report as text; both mappings are by label, where A is the first target, and `names` says what they are."""
    return "\n".join(_lines(names, comparisons, threshold)) + "\n"


def comparison_report(names: Mapping[str, str], comparisons: Mapping[str, Comparison], threshold: float) -> bytes:
    """The report as a JSON object."""
    first = next(iter(comparisons.values()))
    content: dict[str, Any] = {
        "kind": "compare",
        "threshold": threshold,
        "confidence": CONFIDENCE,
        "targets": names,
        "schedules": [pair[0].schedule_digest for pair in first.pairs],
        "comparisons": {
            label: {
                "verdict": comparison.verdict,
                "limits": comparison.limits,
                "figures": {contrast.figure.name: _contrast(contrast) for contrast in comparison.contrasts},
                "pairs": [[_run(run) for run in pair] for pair in comparison.pairs],
            }
            for label, comparison in comparisons.items()
        },
    }
    return document(content)


def _contrast(contrast: Contrast) -> dict[str, object]:
    return {
        "first": contrast.first,
        "second": contrast.second,
        "ratio": contrast.ratio,
        "interval": contrast.interval,
        "verdict": contrast.verdict,
        "undecided": contrast.undecided,
    }


def _run(run: ComparedRun) -> dict[str, object]:
    return {"source": run.source, "seed": run.seed, "limits": run.limits, "metrics": run.metrics}


def _lines(names: Mapping[str, str], comparisons: Mapping[str, Comparison], threshold: float) -> Iterator[str]:
    pairs = next(iter(comparisons.values())).pairs
    for label, name in names.items():
        yield f"{label}  {name}"
    yield f"{len(pairs)} pairs of runs with equal schedules; a difference counts from {threshold * 100:g} % on"
    for label, comparison in comparisons.items():
        yield ""
        yield from table_lines([_heading(label), *(_row(contrast) for contrast in comparison.contrasts)], left=1)
        undecided = [contrast.figure.name for contrast in comparison.contrasts if contrast.undecided]
        if undecided:
            figures = " and ".join(undecided)
            yield f"Note: {figures} may differ by more than {threshold * 100:g} %; more --seeds would tell"
    yield ""
    for label, comparison in comparisons.items():
        yield f"Result: {_result(label, comparison)}"


def _result(label: str, comparison: Comparison) -> str:
    if comparison.limits:
        return f"INVALID, not {label}'s or A's own figures: {comparison.limits[0]}"
    if comparison.verdict is ComparisonVerdict.SAME:
        return f"{label} is the same as A"
    return f"{label} is {comparison.verdict.upper()} than A"


def _heading(label: str) -> Sequence[str]:
    return ("figure", "A", label, f"{label} / A", f"{CONFIDENCE * 100:g} % interval", "verdict")


def _row(contrast: Contrast) -> Sequence[str]:
    form = contrast.figure.form
    return (
        contrast.figure.name,
        form.format(contrast.first),
        form.format(contrast.second),
        f"{contrast.ratio:.3f}",
        f"{contrast.interval.low:.3f} to {contrast.interval.high:.3f}",
        contrast.verdict,
    )
