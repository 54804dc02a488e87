"""Line and scatter plots as text, for terminals."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

Points = Sequence[tuple[float, float]]

_MARKS = "ox+*#@%&"
_LINE = "."


def plot(
    series: Mapping[str, Points],
    *,
    width: int = 64,
    height: int = 16,
    x_label: str = "",
    y_label: str = "",
    log_x: bool = False,
    log_y: bool = False,
    lines: bool = True,
    steps: bool = False,
) -> str:
    """Draw several series, each with its own mark and a legend.

    `width` and `height` are the size of the plot area in characters, without the axes. `lines` joins the points of a
    series in order; `steps` draws a step function, which keeps its value up to the next point. A logarithmic axis shows
    only points above 0. Where marks meet, the later series is shown.
    """
    shown = {
        name: [(x, y) for x, y in points if _finite(x, log_x) and _finite(y, log_y)] for name, points in series.items()
    }
    every = [point for points in shown.values() for point in points]
    if not every:
        return "(nothing to plot)"
    across = _Axis([x for x, _ in every], width, log_x)
    up = _Axis([y for _, y in every], height, log_y)
    field = [[" "] * width for _ in range(height)]
    placed = {name: [(across.cell(x), up.cell(y)) for x, y in points] for name, points in shown.items()}
    if lines:
        for cells in placed.values():
            for start, end in pairwise(cells):
                if steps:
                    corner = end[0], start[1]
                    _draw(field, start, corner)
                    _draw(field, corner, end)
                    field[corner[1]][corner[0]] = _LINE
                else:
                    _draw(field, start, end)
    for index, cells in enumerate(placed.values()):
        for column, row in cells:
            field[row][column] = _MARKS[index % len(_MARKS)]
    return "\n".join(_framed(field, across, up, x_label, y_label, list(series)))


class _Axis:
    """The values of one axis, mapped to a number of cells."""

    def __init__(self, values: Sequence[float], cells: int, logarithmic: bool) -> None:
        self.low, self.high = min(values), max(values)
        self._cells = cells
        self._logarithmic = logarithmic

    def cell(self, value: float) -> int:
        low, high, at = (math.log(v) if self._logarithmic else v for v in (self.low, self.high, value))
        return round((at - low) / (high - low) * (self._cells - 1)) if high > low else 0

    @property
    def middle(self) -> float:
        """The value in the middle of the axis."""
        return math.sqrt(self.low * self.high) if self._logarithmic else (self.low + self.high) / 2


def _finite(value: float, logarithmic: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not logarithmic)


def _draw(field: list[list[str]], start: tuple[int, int], end: tuple[int, int]) -> None:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    for step in range(1, steps):
        column, row = (round(a + (b - a) * step / steps) for a, b in zip(start, end, strict=True))
        field[row][column] = _LINE


def _framed(
    field: list[list[str]], across: _Axis, up: _Axis, x_label: str, y_label: str, names: Sequence[str]
) -> list[str]:
    height, width = len(field), len(field[0])
    numbers = {height // 2: f"{up.middle:.4g}", 0: f"{up.low:.4g}", height - 1: f"{up.high:.4g}"}
    margin = max(map(len, numbers.values()))
    text = [y_label] if y_label else []
    text += [f"{numbers.get(row, ''):>{margin}} |{''.join(field[row])}".rstrip() for row in reversed(range(height))]
    text.append(f"{'':{margin}} +{'-' * width}")
    low, high = f"{across.low:.4g}", f"{across.high:.4g}" if across.high > across.low else ""
    text.append(f"{'':{margin}}  {low}{x_label:^{max(0, width - len(low) - len(high))}}{high}")
    marks = (f"{_MARKS[index % len(_MARKS)]} {name}" for index, name in enumerate(names) if name)
    if legend := "   ".join(marks):
        text.append(f"{'':{margin}}  {legend}")
    return text
