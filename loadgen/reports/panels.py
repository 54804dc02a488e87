"""Panels of the report page: a title, a legend, a body and a note each."""

from html import escape

from sluice.loadgen.reports.tables import Table

_LONG = 24
"""Most characters of a cell that stay in one line."""


def panel(title: str, body: str, *, size: str = "", key: str = "", note: str = "") -> str:
    """A panel of the page; `title` and `note` are plain text, the rest is HTML."""
    under = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section class="panel {size}"><div class="head"><h2>{escape(title)}</h2>{key}</div>{body}{under}</section>'


def table_panel(table: Table) -> str:
    """A panel with a table."""
    pairs = not any(table.header)
    head = "" if pairs else f"<thead><tr>{''.join(f'<th scope=col>{escape(cell)}' for cell in table.header)}</thead>"
    rows = "".join(f"<tr><th scope=row>{escape(first)}{''.join(map(_cell, others))}" for first, *others in table.rows)
    body = f'<div class="scroll"><table>{head}<tbody>{rows}</tbody></table></div>'
    return panel(table.title, body, size="half" if pairs else "", note=table.note)


def nothing(text: str) -> str:
    """A sentence in place of a chart."""
    return f'<p class="note">{escape(text)}</p>'


def _cell(text: str) -> str:
    style = " class=long" if len(text) > _LONG else ""
    return f"<td{style}>{escape(text)}"
