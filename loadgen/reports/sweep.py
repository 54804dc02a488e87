"""Reports of `sweep`: a table, the data of its curves as CSV, and JSON with every run."""

import csv
import io
from collections.abc import Sequence

import msgspec

from sluice.loadgen.reports.document import document
from sluice.loadgen.run.sweep import SweepGrid, SweepSummary
from sluice.models.text_table import table_lines

_TITLES = ("policy", "objective", "load", "runs", "met", "invalid", "good/s", "within", "p50 ms", "p99 ms")


def sweep_text(summaries: Sequence[SweepSummary]) -> str:
    """The table of a sweep, with one line a point."""
    rows = [_TITLES, *(_row(each) for each in summaries)]
    if not any(each.policy for each in summaries):
        rows = [row[1:] for row in rows]
    return "".join(f"{line}\n" for line in table_lines(rows, left=1))


def sweep_csv(summaries: Sequence[SweepSummary]) -> str:
    """The data of the curves: one line a point, with a line of names first; a figure that there is not is empty."""
    content = io.StringIO()
    names = [name for name in SweepSummary.__struct_fields__ if not name.endswith("_range")]
    ranges = [name for name in SweepSummary.__struct_fields__ if name.endswith("_range")]
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow([*names, *(f"{name.removesuffix('range')}{end}" for name in ranges for end in ("min", "max"))])
    for each in summaries:
        values = [getattr(each, name) for name in names]
        ends = [end for name in ranges for end in (getattr(each, name) or (None, None))]
        writer.writerow(["" if value is None else value for value in (*values, *ends)])
    return content.getvalue()


def sweep_json(grid: SweepGrid, summaries: Sequence[SweepSummary], runs: Sequence[bytes]) -> bytes:
    """The report of a sweep as a JSON object; `runs` are the JSON objects of its runs, in the order of the points."""
    return document(
        {"kind": "sweep", "grid": grid, "points": list(summaries), "runs": [msgspec.Raw(run) for run in runs]}
    )


def _row(each: SweepSummary) -> tuple[str, ...]:
    load = f"{each.rate:g}/s" if each.rate is not None else f"{each.concurrency} open"
    return (
        each.policy,
        "-" if each.slo_ms is None else f"{each.slo_ms:g} ms",
        load,
        str(each.runs),
        str(each.met),
        str(each.invalid),
        f"{each.goodput_per_s:.1f}",
        f"{each.attainment * 100:.2f} %",
        *("-" if value is None else f"{value:.3f}" for value in (each.p50_ms, each.p99_ms)),
    )
