"""The report of a run as Markdown."""

from collections.abc import Iterator, Sequence

from sluice.loadgen.reports.tables import ReportTable, tables
from sluice.loadgen.reports.words import explanation, title
from sluice.loadgen.run.result import RunResult


def run_markdown(result: RunResult) -> str:
    """The report of one run."""
    return "\n".join(_lines(result, 1)) + "\n"


def runs_markdown(results: Sequence[RunResult]) -> str:
    """The reports of several runs, one after the other."""
    return "\n".join(line for result in results for line in (*_lines(result, 1), "")).rstrip("\n") + "\n"


def _lines(result: RunResult, level: int) -> Iterator[str]:
    yield f"{'#' * level} {title(result)}: {_escaped(result.config.model)}"
    yield ""
    yield explanation(result)
    for note in result.notes:
        yield f"Note: {note}."
    for table in tables(result):
        yield from ("", f"{'#' * (level + 1)} {table.title}", "")
        yield from _table(table)
        if table.note:
            yield from ("", table.note)


def _table(table: ReportTable) -> Iterator[str]:
    yield _row(table.header)
    yield _row(("---", *("---:" for _ in table.header[1:])))
    yield from (_row(row) for row in table.rows)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
