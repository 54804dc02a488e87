"""The view of `sluice top`: one frame, for a terminal of any size or as plain lines."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from rich.bar import Bar
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sluice.gateway.cli.client.now import ChosenNow, Now, PartitionNow
from sluice.models.text_table import table_lines, without_controls

_MIB = 1 << 20
_BAR_WIDTH = 12
_GAP = 2
_FLEXIBLE_WIDTH = 24
"""Columns of the terminal that a column of sentences has at least."""
_SPARK = " ▁▂▃▄▅▆▇█"
_LEAST_ROWS = 3
"""Rows of a table that are shown on the smallest terminal."""
_HEADING_ROWS = 3
"""The rows of a section beside those of its table: an empty one, the title, and the columns."""
_FOOT_ROWS = 2
_CHART_MARGIN = 34
"""Columns that a chart needs beside its steps."""
_STATES = {
    "ready": "bold green",
    "starting": "bold yellow",
    "vacant": "bold yellow",
    "resizing": "bold yellow",
    "draining": "bold yellow",
}
_BAD = "bold red"
_UNKNOWN = "-"
_MARK, _NO_MARK = "> ", "  "
_OPTIONAL_OF_PIPELINES = ("failed/s", "p50 ms", "late/s", "headroom", "objective", "refused/s", "in time")


class Trouble(NamedTuple):
    """The server does not answer: the reason, and for how many seconds."""

    reason: str
    for_s: float


class _Section(NamedTuple):
    """A table with a title; `left` columns are left-aligned. `more` rows are not in it.

    Where a terminal is too narrow, columns of `optional` are left out, by their headings, the first ones first, and
    the one of `flexible` is cut. `bars` are values in [0, 1], one a row, that a terminal shows behind the last column,
    and `charts` lines above the table.
    """

    title: str
    rows: Sequence[tuple[str, ...]]
    left: int
    more: int = 0
    flexible: str = ""
    optional: tuple[str, ...] = ()
    bars: Sequence[float | None] = ()
    styles: Mapping[str, str] = {}
    charts: Sequence[Text] = ()


def frame_lines(now: Now) -> list[str]:
    """A whole frame as plain lines, for pipes."""
    lines = [_head(now), *(f"  {reason}" for reason in now.server.reasons), "  ".join(_totals(now))]
    for section in _sections(now, 0):
        lines += ["", section.title, *(f"  {line}".rstrip() for line in table_lines(section.rows, section.left))]
        if section.more:
            lines.append(f"  and {section.more} more")
    return list(map(without_controls, lines))


def frame(now: Now, columns: int, rows: int, trouble: Trouble | None = None) -> Group:
    """A frame that fits a terminal of `columns` by `rows`; with a `trouble`, it is what the server said last."""
    parts: list[RenderableType] = [_coloured_head(now, trouble)]
    parts += [_text(f"  {reason}", _BAD) for reason in now.server.reasons]
    parts += [Text(line, style="dim" if trouble else "") for line in _filled(_totals(now), columns)]
    sections, shown = _fitting(list(_sections(now, columns)), rows - len(parts) - _FOOT_ROWS)
    for section, count in zip(sections, shown, strict=True):
        parts += ["", _text(section.title, "bold"), *section.charts]
        parts += [_table(section, count, columns), *_more(section, count)]
    parts += [Text(""), _foot(now, trouble)]
    for part in parts:
        if isinstance(part, Text):
            part.no_wrap, part.overflow = True, "ellipsis"
    return Group(*parts)


def _fitting(sections: list[_Section], rest: int) -> tuple[list[_Section], list[int]]:
    """The sections that have room in that many rows, and how many rows of each are shown without its heading."""
    if sum(map(_least_height, sections)) > rest:
        sections = [section._replace(charts=()) for section in sections]
    while sections and sum(map(_least_height, sections)) > rest:
        del sections[-1]
    shown = [min(len(section.rows) - 1, _LEAST_ROWS) for section in sections]
    rest -= sum(map(_least_height, sections))
    for index in sorted(range(len(sections)), key=lambda each: len(sections[each].rows)):
        further = max(0, min(len(sections[index].rows) - 1 - shown[index], rest))
        shown[index] += further
        rest -= further
    return sections, shown


def _least_height(section: _Section) -> int:
    further = 1 if section.more or len(section.rows) - 1 > _LEAST_ROWS else 0
    return _HEADING_ROWS + len(section.charts) + min(len(section.rows) - 1, _LEAST_ROWS) + further


def _text(text: str, style: str) -> Text:
    """A text of the server, in one line."""
    return Text(without_controls(text).replace("\n", " "), style=style)


def _table(section: _Section, shown: int, width: int) -> Table:
    """The first rows of a section as a table of at most that width, if its columns that must be there have room."""
    table = Table(box=None, show_header=False, show_edge=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    width -= _BAR_WIDTH + _GAP if section.bars else 0
    columns = _columns(section, width)
    spare = width - _needed(section, columns)
    for index in columns:
        justify: Literal["left", "right"] = "left" if index < section.left else "right"
        table.add_column(justify=justify, no_wrap=True, overflow="ellipsis", width=_least(section, index, spare))
    if section.bars:
        table.add_column(width=_BAR_WIDTH)
    for number, row in enumerate(section.rows[: shown + 1]):
        style = "dim" if number == 0 else ""
        cells: list[RenderableType] = [
            _text(row[index], style or section.styles.get(row[index], "")) for index in columns
        ]
        if section.bars:
            cells.append(_bar(section.bars[number - 1]) if number else Text(""))
        table.add_row(*cells)
    return table


def _columns(section: _Section, width: int) -> list[int]:
    """The columns that have room, without those that are empty."""
    columns = [index for index in range(len(section.rows[0])) if any(row[index] for row in section.rows[1:])]
    for heading in section.optional:
        if _needed(section, columns) <= width:
            break
        columns = [each for each in columns if section.rows[0][each] != heading]
    return columns


def _needed(section: _Section, columns: Sequence[int]) -> int:
    """The width that columns take at least."""
    return sum(_least(section, each) for each in columns) + _GAP * (len(columns) - 1)


def _least(section: _Section, index: int, spare: int = 0) -> int:
    """The width of a column if `spare` is left for the one that may be cut."""
    wide = max(cell_len(row[index]) for row in section.rows)
    return min(wide, _FLEXIBLE_WIDTH + max(spare, 0)) if section.rows[0][index] == section.flexible else wide


def _more(section: _Section, shown: int) -> Iterator[Text]:
    left_out = len(section.rows) - 1 - shown + section.more
    if left_out > 0:
        yield Text(f"and {left_out} more", style="dim")


def _bar(value: float | None) -> RenderableType:
    return Text("") if value is None else Bar(1.0, 0.0, min(max(value, 0.0), 1.0), width=_BAR_WIDTH, color="cyan")


def _head(now: Now) -> str:
    server = now.server
    build = " compiled" if server.compiled else ""
    up = _duration(max(server.now_s - server.started_s, 0.0))
    return f"{server.name} {server.version}{build}  {server.state}  up {up}  {_clock(server.now_s)}"


def _coloured_head(now: Now, trouble: Trouble | None) -> Text:
    head = _text(_head(now), "")
    head.highlight_words([f"  {now.server.state}  "], style=_STATES.get(now.server.state, _BAD))
    if trouble is not None:
        head.stylize("dim")
    return head


def _totals(now: Now) -> list[str]:
    totals = now.totals
    figures = [
        f"{_number(totals.requests_per_s)} requests/s",
        f"{_share(totals.in_time)} in time",
        f"p50 {_number(totals.p50_ms)} ms",
        f"p99 {_number(totals.p99_ms)} ms",
        f"{_number(totals.late_per_s)} late/s",
        f"{_number(totals.refused_per_s)} refused/s",
        f"{_number(totals.failed_per_s)} failed/s",
        f"{_number(totals.in_flight)} in flight",
        f"{_number(totals.queued_rows)} rows queued",
    ]
    if totals.cost_per_1000_good is not None:
        figures.append(f"{totals.cost_per_1000_good:.3g} {now.server.currency} per 1000 good".replace("  ", " "))
    return figures


def _filled(figures: Sequence[str], columns: int) -> list[str]:
    """Figures two spaces apart, in lines of at most that many columns."""
    lines: list[str] = []
    for figure in figures:
        if lines and len(lines[-1]) + _GAP + len(figure) <= columns:
            lines[-1] += f"{'':{_GAP}}{figure}"
        else:
            lines.append(figure)
    return lines


def _sections(now: Now, columns: int) -> Iterator[_Section]:
    if now.pipelines:
        yield _pipelines(now)
    if now.pipeline is not None and now.pipeline.stages:
        yield _stages(now.pipeline, columns)
    if now.partitions:
        yield _partitions(now.partitions, now.partitions_more)
    if now.troubles:
        titles = ("at", "request", "pipeline", "outcome", "ms", "of", "why")
        rows = [
            (
                _clock(each.at_s),
                each.id,
                each.pipeline,
                each.outcome,
                _number(each.total_ms),
                _number(each.deadline_ms),
                each.sentence,
            )
            for each in now.troubles
        ]
        optional = ("of", "at", "ms", "pipeline")
        yield _Section("late, refused or failed", [titles, *rows], len(titles), flexible="why", optional=optional)
    if now.not_served:
        refused = [(each.name, each.version or "", each.reason) for each in now.not_served]
        yield _Section("not served", [("name", "version", "reason"), *refused], 3, now.not_served_more, "reason")


def _pipelines(now: Now) -> _Section:
    chosen = "" if now.pipeline is None else now.pipeline.name
    figures = ("requests/s", "in time", "p50 ms", "p99 ms", "objective", "late/s", "refused/s", "failed/s", "headroom")
    rows = [
        (
            (_MARK if each.name == chosen else _NO_MARK) + each.name,
            _number(each.requests_per_s),
            _share(each.in_time),
            _number(each.p50_ms),
            _number(each.p99_ms),
            _objective(each.objective_ms, each.percentile),
            _number(each.late_per_s),
            _number(each.refused_per_s),
            _number(each.failed_per_s),
            _UNKNOWN if each.headroom is None else f"{each.headroom:.3g}x",
        )
        for each in now.pipelines
    ]
    styles = {f"{_MARK}{chosen}": "bold"}
    headings = f"{_NO_MARK}pipeline", *figures
    return _Section(
        "pipelines", [headings, *rows], 1, now.pipelines_more, optional=_OPTIONAL_OF_PIPELINES, styles=styles
    )


def _stages(chosen: ChosenNow, width: int) -> _Section:
    headings = ("stage", "model", "runs for", "rows/s", "share", "batch", "queued", "ms")
    rows = [
        (
            each.name,
            each.model or f"({each.combiner})",
            _condition(each.when),
            _number(each.rows_per_s),
            _share(each.share),
            _number(each.mean_batch),
            _number(each.queued_requests),
            _number(each.latency_ms),
        )
        for each in chosen.stages
    ]
    title, charts = f"{chosen.name}{_plan(chosen)}", list(_charts(chosen, width))
    return _Section(
        title, [headings, *rows], 3, flexible="runs for", optional=("queued", "batch", "runs for"), charts=charts
    )


def _condition(when: Mapping[str, object] | None) -> str:
    return "all rows" if when is None else f"{when.get('stage', '')}: {when.get('text', '')}"


def _plan(chosen: ChosenNow) -> str:
    plan = chosen.plan
    if plan is None:
        return ""
    if not plan.in_force:
        return f": no plan: {plan.reason}" if plan.reason else ": no plan"
    seen = f"p99 {_number(plan.predicted_p99_ms)} ms predicted, {_number(plan.seen_p99_ms)} seen"
    limit = f"highest rate {_number(plan.highest_rate)}/s"
    return f": plan: {seen}; {limit}" + ("" if plan.headroom is None else f", headroom {plan.headroom:.3g}x")


def _partitions(partitions: Sequence[PartitionNow], more: int) -> _Section:
    headings = ("partition", "kind", "state", "why", "runs", "models", "memory MiB", "free MiB", "busy")
    rows = [
        (
            each.name,
            f"{each.kind} on {each.node}" if each.node else each.kind,
            each.state,
            each.reason,
            "" if each.running is None else f"{each.running.model} x {each.running.rows}",
            _number(each.models),
            _mebibytes(each.memory_bytes),
            _mebibytes(each.memory_free_bytes),
            _share(each.busy),
        )
        for each in partitions
    ]
    return _Section(
        "partitions",
        [headings, *rows],
        5,
        more,
        flexible="why",
        optional=("free MiB", "memory MiB", "models", "kind", "runs"),
        bars=[each.busy for each in partitions],
        styles={each.state: _STATES.get(each.state, _BAD) for each in partitions},
    )


def _charts(chosen: ChosenNow, columns: int) -> Iterator[Text]:
    """Two lines: answers a second, and the p99, over the last seconds."""
    history = chosen.history
    steps = columns - _CHART_MARGIN
    if steps <= 0:
        return
    answers = [sum(each or 0 for each in step) for step in zip(history.good, history.late, strict=False)]
    for title, values, unit in (("answers/s", answers, ""), ("p99", history.p99_ms, " ms")):
        last = values[-steps:]
        known = [each for each in last if each is not None]
        if known:
            yield Text(f"  {title:>9} {_sparkline(last)} up to {_number(max(known))}{unit}", style="cyan")


def _sparkline(values: Sequence[float | None]) -> str:
    most = max((each for each in values if each is not None), default=0.0)
    return "".join(
        " " if each is None else _SPARK[round(each / most * (len(_SPARK) - 1)) if most else 0] for each in values
    )


def _foot(now: Now, trouble: Trouble | None) -> Text:
    if trouble is None:
        return Text("q quit   up, down: choose a pipeline", style="dim")
    said = f"no answer for {_duration(trouble.for_s)}: {trouble.reason}"
    return _text(f"{said}; this is what the server said at {_clock(now.server.now_s)}   q quit", _BAD)


def _objective(objective_ms: float | None, percentile: float | None) -> str:
    if objective_ms is None:
        return _UNKNOWN
    return f"{objective_ms:g}" if percentile is None else f"p{percentile:g} {objective_ms:g}"


def _number(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value * 100:.4g} %"


def _mebibytes(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value / _MIB:.0f}"


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).strftime("%H:%M:%S")


def _duration(seconds: float) -> str:
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole} s" if minutes else f"{whole} s"
