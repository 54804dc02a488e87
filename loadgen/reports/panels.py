"""Panels of the report page: a title, a legend, a body and a note each."""

from html import escape

from sluice.loadgen.reports.tables import ReportTable


def panel(title: str, body: str, *, size: str = "", key: str = "", note: str = "") -> str:
    """A panel of the page; `title` and `note` are plain text, the rest is HTML."""
    under = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section class="panel {size}"><div class="head"><h2>{escape(title)}</h2>{key}</div>{body}{under}</section>'


def is_half(html: str) -> bool:
    """True for a panel of half the width."""
    return html.startswith('<section class="panel half"')


def table_panel(table: ReportTable) -> str:
    """A panel with a table, or with facts where the columns have no names."""
    if not any(table.header):
        facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in table.rows)
        return panel(table.title, f'<dl class="facts">{facts}</dl>', note=table.note)
    head = "".join(f"<th scope=col>{escape(cell)}" for cell in table.header)
    rows = "".join(
        f"<tr><th scope=row>{escape(first)}{''.join(f'<td>{escape(cell)}' for cell in others)}"
        for first, *others in table.rows
    )
    body = f'<div class="scroll"><table><thead><tr>{head}</thead><tbody>{rows}</tbody></table></div>'
    return panel(table.title, body, note=table.note)


def nothing(text: str) -> str:
    """A sentence in place of a chart."""
    return f'<p class="note">{escape(text)}</p>'
