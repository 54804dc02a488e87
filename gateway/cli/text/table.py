"""Tables as text, for terminals."""

from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[tuple[str, ...]], left: int) -> Iterator[str]:
    """Lines with aligned columns, two spaces apart: the first `left` columns left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
