"""Markdown: tables, code spans and paragraphs."""

import textwrap
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a header, one line for each row."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    """The text as a code span; "" stays empty."""
    return f"`{text}`" if text else ""


def paragraph(text: str) -> str:
    """The text as lines of at most 120 characters; links and code spans with blanks may be split."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)
