"""Tables as text: plain lines for files and pipes, and for terminals as wide as they are."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = Sequence[str]

_UNBOUNDED = 1 << 20
"""A width that no table needs, so that nothing is wrapped."""
_HEIGHT = 25
_GAP = 2
"""Spaces between columns."""
_CONTROLS = {code: "?" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
_LAST_WIDTH = 24
"""The least width of a last column that is wrapped; a table that does not leave it is not wrapped at all."""


def without_controls(text: str) -> str:
    """A text in which control characters, by which it could change what a terminal shows, are question marks."""
    return text.translate(_CONTROLS)


def table_lines(rows: Sequence[Row], left: int) -> list[str]:
    """Lines with aligned columns, two spaces apart: the first `left` columns left-aligned, the others right-aligned."""
    from io import StringIO

    if not rows:
        return []
    text = StringIO()
    _console(text, _UNBOUNDED, terminal=False).print(_table(rows, left, header=False, styles={}))
    return [line.rstrip() for line in text.getvalue().split("\n")[:-1]]


def print_table(rows: Sequence[Row], left: int, *, header: bool = True, styles: Mapping[str, str] = {}) -> None:
    """Print a table to standard output; on a terminal, the first row is a `header`, and the last column is wrapped.

    `styles` are those of cells with a certain text, such as `{"READY": "green"}`. Only a terminal gets styles, without
    colours where `NO_COLOR` is set. Names are never cut: a terminal that is too narrow wraps the lines by itself.
    """
    if not rows or not sys.stdout.isatty():
        for line in table_lines(rows, left):
            print(line)
        return
    width = shutil.get_terminal_size().columns
    table = _table(rows, left, header=header, styles=styles)
    widths = [max((_width(cell) for cell in column), default=0) for column in zip(*rows, strict=True)]
    names = sum(widths[:-1]) + _GAP * (len(widths) - 1)
    if left >= len(widths) and names + _LAST_WIDTH <= width:
        table.columns[-1].no_wrap = False
    else:
        width = _UNBOUNDED
    _console(sys.stdout, width, terminal=True).print(table)


def _console(file: TextIO, width: int, *, terminal: bool) -> "Console":
    from rich.console import Console

    # With a height as well, the width counts on simple terminals, too.
    return Console(
        file=file, width=width, height=_HEIGHT, force_terminal=terminal, highlight=False, markup=False, emoji=False
    )


def _table(rows: Sequence[Row], left: int, *, header: bool, styles: Mapping[str, str]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, show_edge=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    for index in range(len(rows[0])):
        table.add_column(justify="left" if index < left else "right", no_wrap=True, overflow="fold")
    for number, row in enumerate(rows):
        style = "bold" if header and number == 0 else ""
        table.add_row(*(Text(without_controls(cell), style=style or styles.get(cell, "")) for cell in row))
    return table


def _width(cell: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, cell.split("\n")))
