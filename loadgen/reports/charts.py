"""Charts as SVG inside HTML, without scripts.

The shapes stretch with the page, and the labels do not: a chart is an SVG of 1000 by 1000 units without a fixed aspect,
with its labels placed in percent beside it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
import numpy.typing as npt

from sluice.loadgen.reports.words import count

Floats = npt.NDArray[np.float64]

_SIZE = 1000.0
_STEPS = (1, 2, 2.5, 5, 10)
_TICKS = 4
_LOG_TICKS = 7
_NEAR_END = 0.97
"""Place from which a label would reach beyond the chart."""


@dataclass(frozen=True)
class Axis:
    """A scale from values to 0 … 1, with its labelled ticks; a logarithmic one takes positive values."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def place(self, values: npt.ArrayLike) -> Floats:
        """Places of values, clipped to the scale."""
        array = np.asarray(values, np.float64)
        if self.is_log:
            array = np.log(np.maximum(array, self.low))
            low, high = math.log(self.low), math.log(self.high)
        else:
            low, high = self.low, self.high
        return np.asarray(np.clip((array - low) / (high - low), 0.0, 1.0))


def linear_axis(high: float, low: float = 0.0) -> Axis:
    """A linear scale from `low` to a round number at or above `high`, with about four steps."""
    span = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / _TICKS))
    step = next(power * factor for factor in _STEPS if span / (power * factor) <= _TICKS)
    steps = max(1, math.ceil(span / step - 1e-9))
    ticks = tuple((low + step * i, _plain(low + step * i)) for i in range(steps + 1))
    return Axis(low, low + step * steps, ticks)


def log_axis(low: float, high: float) -> Axis:
    """A logarithmic scale between 1 or 3 times powers of ten that enclose both values."""
    low, high = max(low, 1e-6), max(high, 1e-6)
    decades = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 2)
    marks = [factor * 10.0**decade for decade in decades for factor in (1, 3)]
    first = max(i for i, mark in enumerate(marks) if mark <= low * (1 + 1e-9))
    last = min(i for i, mark in enumerate(marks) if mark >= high * (1 - 1e-9))
    marks = marks[first : max(last, first + 2) + 1]
    stride = math.ceil(len(marks) / _LOG_TICKS)
    return Axis(marks[0], marks[-1], tuple((mark, _plain(mark)) for mark in marks[::stride]), is_log=True)


def tail_axis(queries: int) -> Axis:
    """A scale for -log10(1 - q), which gives each further nine of the share q the same room."""
    high = max(2.0, math.log10(max(queries, 1)))
    shares = [(math.log10(2), "50")]
    nines = range(1, int(high) + 1)
    shares += [(float(each), f"{100 - 10.0 ** (2 - each):.{max(0, each - 2)}f}") for each in nines]
    return Axis(0.0, high, tuple((place, f"{label} %") for place, label in shares))


def _plain(value: float) -> str:
    return count(value) if abs(value) >= 1000 else f"{value:.4g}"


@dataclass
class Chart:
    """A chart that shapes are added to; the first shape lies below the others.

    `height` is `low`, `tall` or "" for the usual one. `unit` stands above the vertical axis, and `label` says to those
    who cannot see the chart what it shows.
    """

    x: Axis
    y: Axis
    label: str
    unit: str = ""
    height: str = ""
    _shapes: list[str] = field(default_factory=list)

    def line(self, x: npt.ArrayLike, y: npt.ArrayLike, style: str, *, steps: bool = False) -> None:
        """A line through points; one that is not a number interrupts it. With `steps` it goes right before it rises."""
        points = self._points(x, y)
        parts = []
        down = False
        before = 0.0
        for (px, py), known in points:
            if not known:
                down = False
                continue
            if down and steps:
                parts.append(f"L{px:.1f} {before:.1f}")
            # A point without neighbours is a dot.
            parts.append(f"L{px:.1f} {py:.1f}" if down else f"M{px:.1f} {py:.1f}h0")
            down, before = True, py
        self._shapes.append(f'<path class="curve {style}" d="{"".join(parts)}"/>')

    def band(self, x: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike, style: str) -> None:
        """The area between two lines, interrupted where either is not a number."""
        lower, upper = self._points(x, low), self._points(x, high)
        runs: list[list[int]] = [[]]
        for i, ((_, known), (_, also)) in enumerate(zip(lower, upper, strict=True)):
            if known and also:
                runs[-1].append(i)
            elif runs[-1]:
                runs.append([])
        path = "".join(
            "M" + "L".join(f"{px:.1f} {py:.1f}" for (px, py) in self._outline(lower, upper, run)) + "Z"
            for run in runs
            if run
        )
        self._shapes.append(f'<path class="area {style}" d="{path}"/>')

    def level(self, y: float, style: str) -> None:
        """A line across the chart."""
        place = _SIZE * (1 - float(self.y.place(y)))
        self._shapes.append(f'<path class="curve {style}" d="M0 {place:.1f}H{_SIZE:.0f}"/>')

    def upright(self, x: float, style: str) -> None:
        """A line from the bottom to the top."""
        place = _SIZE * float(self.x.place(x))
        self._shapes.append(f'<path class="curve {style}" d="M{place:.1f} 0V{_SIZE:.0f}"/>')

    def dots(self, x: npt.ArrayLike, y: npt.ArrayLike, style: str, titles: Iterable[str]) -> None:
        """Dots, each with a text that appears when it is pointed at."""
        for ((px, py), known), title in zip(self._points(x, y), titles, strict=True):
            if known:
                self._shapes.append(
                    f'<path class="dot {style}" d="M{px:.1f} {py:.1f}h0"><title>{escape(title)}</title></path>'
                )

    def bar(self, x: float, width: float, y: float, style: str, title: str) -> None:
        """A bar from the bottom, `x` and `width` in shares of the width of the chart."""
        height = _SIZE * float(self.y.place(y))
        self._shapes.append(
            f'<rect class="bar {style}" x="{x * _SIZE:.1f}" width="{width * _SIZE:.1f}" y="{_SIZE - height:.1f}" '
            f'height="{height:.1f}"><title>{escape(title)}</title></rect>'
        )

    def html(self) -> str:
        """The chart as HTML."""
        grid = "".join(f'<path class="grid" d="M0 {_SIZE * (1 - p):.1f}H{_SIZE:.0f}"/>' for p, _ in self._ticks(self.y))
        grid += "".join(f'<path class="grid" d="M{_SIZE * p:.1f} 0V{_SIZE:.0f}"/>' for p, _ in self._ticks(self.x))
        sides = "".join(f'<i style="top:{100 * (1 - p):.2f}%">{escape(text)}</i>' for p, text in self._ticks(self.y))
        feet = "".join(
            f'<i{" class=last" if p > _NEAR_END else ""} style="left:{100 * p:.2f}%">{escape(text)}</i>'
            for p, text in self._ticks(self.x)
        )
        unit = f'<span class="unit">{escape(self.unit)}</span>' if self.unit else ""
        return (
            f'<div class="chart {self.height}">{unit}<div class="sides" aria-hidden="true">{sides}</div>'
            f'<svg viewBox="0 0 {_SIZE:.0f} {_SIZE:.0f}" preserveAspectRatio="none" role="img" '
            f'aria-label="{escape(self.label)}">{grid}{"".join(self._shapes)}</svg>'
            f'<div class="feet" aria-hidden="true">{feet}</div></div>'
        )

    def _ticks(self, axis: Axis) -> list[tuple[float, str]]:
        return [(float(axis.place(value)), text) for value, text in axis.ticks]

    def _points(self, x: npt.ArrayLike, y: npt.ArrayLike) -> list[tuple[tuple[float, float], bool]]:
        known = ~np.isnan(np.asarray(y, np.float64))
        px = (_SIZE * self.x.place(x)).tolist()
        py = (_SIZE * (1 - self.y.place(np.where(known, y, self.y.low)))).tolist()
        return list(zip(zip(px, py, strict=True), known.tolist(), strict=True))

    @staticmethod
    def _outline(
        lower: Sequence[tuple[tuple[float, float], bool]],
        upper: Sequence[tuple[tuple[float, float], bool]],
        run: Sequence[int],
    ) -> list[tuple[float, float]]:
        return [upper[i][0] for i in run] + [lower[i][0] for i in reversed(run)]


def legend(items: Iterable[tuple[str, str]]) -> str:
    """A legend of (style, text)."""
    entries = "".join(f'<span class="item"><b class="key {style}"></b>{escape(text)}</span>' for style, text in items)
    return f'<div class="legend">{entries}</div>'
