"""Plots of experiments as SVG files that stand alone, in light and dark."""

from collections.abc import Iterator
from html import escape

from sluice.loadgen.papers.experiment import Plot
from sluice.loadgen.reports.charts import Axis, linear_axis, log_axis

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 20, 74, 58
_KEY_PX = 7.0
"""Width of a letter in the legend, about."""
_MARKED = 60
"""Lines of more points have no dots."""
_STYLE = """
text { font: 12px Inter, system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #59657a; }
.back { fill: #fff; } .title { font-size: 15px; font-weight: 640; fill: #18202d; }
.grid { stroke: #e2e6ec; fill: none; } .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.c0 { color: #1f4f94; } .c1 { color: #e0632a; } .c2 { color: #1d8a64; } .c3 { color: #c2387f; }
.c4 { color: #8a5a00; } .c5 { color: #7458cf; } .c6 { color: #2f97b7; } .c7 { color: #6d7686; }
.line { stroke: currentColor; } .mark { fill: currentColor; }
@media (prefers-color-scheme: dark) {
  text { fill: #94a0b3; } .back { fill: #151b24; } .title { fill: #e6eaf1; } .grid { stroke: #2a3443; }
  .c0 { color: #8cc4ff; } .c1 { color: #ff9d6b; } .c2 { color: #6fd6a7; } .c3 { color: #f07fbd; }
  .c4 { color: #ffc665; } .c5 { color: #b7a4ff; } .c6 { color: #79d3ea; } .c7 { color: #a8b2c2; }
}
"""


def plot_svg(plot: Plot) -> str:
    """The plot as the text of an SVG file; the same plot gives the same text."""
    drawn = _Drawing(plot)
    label = escape(f"{plot.title}: {plot.y_label} against {plot.x_label}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-label="{label}">\n<style>{_STYLE}</style>\n'
        f'<rect class="back" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>\n' + "\n".join(drawn.parts()) + "\n</svg>\n"
    )


class _Drawing:
    """The parts of a plot, at their places in pixels."""

    def __init__(self, plot: Plot) -> None:
        self._plot = plot
        values = [(x, y) for _, points in plot.lines for x, y in points]
        xs, ys = [x for x, _ in values] or [0.0], [y for _, y in values] or [0.0]
        low = min(0.0, *ys, 0.0)
        if plot.log_y:
            self._y = log_axis(min(ys), max(ys))
        else:
            self._y = linear_axis(max(*ys, low + 1e-9), low)
        if plot.groups:
            self._x = Axis(0.0, float(len(plot.groups)), tuple((i + 0.5, each) for i, each in enumerate(plot.groups)))
        elif plot.log_x:
            self._x = log_axis(min(xs), max(xs))
        else:
            self._x = linear_axis(max(xs), min(0.0, *xs, 0.0))

    def parts(self) -> Iterator[str]:
        """The title, the axes, the legend, and the lines or bars."""
        plot = self._plot
        yield f'<text class="title" x="{_LEFT}" y="26">{escape(plot.title)}</text>'
        yield from self._axes()
        yield from self._legend()
        for number, (label, points) in enumerate(plot.lines):
            yield from self._bars(number, label, points) if plot.groups else self._line(number, label, points)

    def _px(self, x: float) -> float:
        return _LEFT + float(self._x.place(x)) * (_WIDTH - _LEFT - _RIGHT)

    def _py(self, y: float) -> float:
        return _HEIGHT - _BOTTOM - float(self._y.place(y)) * (_HEIGHT - _TOP - _BOTTOM)

    def _axes(self) -> Iterator[str]:
        bottom = _HEIGHT - _BOTTOM
        for value, text in self._y.ticks:
            y = self._py(value)
            yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
        for value, text in self._x.ticks:
            x = self._px(value)
            if not self._plot.groups:
                yield f'<path class="grid" d="M{x:.1f} {_TOP}V{bottom}"/>'
            for line, part in enumerate(self._fitted(text)):
                yield f'<text x="{x:.1f}" y="{bottom + 18 + 14 * line}" text-anchor="middle">{escape(part)}</text>'
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        yield f'<text x="{middle:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(self._plot.x_label)}</text>'
        if self._plot.beside:
            beside = f"beside {self._plot.beside}"
            yield f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 8}" text-anchor="end">{escape(beside)}</text>'
        middle = (_TOP + bottom) / 2
        yield (
            f'<text transform="translate(18 {middle:.1f}) rotate(-90)" text-anchor="middle">'
            f"{escape(self._plot.y_label)}</text>"
        )

    def _fitted(self, text: str) -> tuple[str, ...]:
        """The lines of a label: two, parted at its first hyphen, where the bars of a group leave no room for one."""
        count = len(self._plot.groups)
        first, hyphen, second = text.partition("-")
        if not second or not count or len(text) * _KEY_PX <= (_WIDTH - _LEFT - _RIGHT) / count:
            return (text,)
        return first + hyphen, second

    def _legend(self) -> Iterator[str]:
        if [label for label, _ in self._plot.lines] == [self._plot.y_label]:
            return
        x = float(_LEFT)
        for number, (label, _) in enumerate(self._plot.lines):
            yield f'<path class="line c{number}" d="M{x:.1f} 50h14" stroke-width="4"/>'
            yield f'<text x="{x + 19:.1f}" y="54">{escape(label)}</text>'
            x += 19 + len(label) * _KEY_PX + 14

    def _line(self, number: int, label: str, points: tuple[tuple[float, float], ...]) -> Iterator[str]:
        places = [(self._px(x), self._py(y)) for x, y in points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        yield f'<path class="line c{number}" d="M{path}"/>' if places else ""
        if len(places) <= _MARKED:
            for (px, py), (x, y) in zip(places, points, strict=True):
                title = escape(f"{label}: {x:g}, {y:g}")
                dot = f'<circle class="mark c{number}" cx="{px:.1f}" cy="{py:.1f}" r="3.5">'
                yield f"{dot}<title>{title}</title></circle>"

    def _bars(self, number: int, label: str, points: tuple[tuple[float, float], ...]) -> Iterator[str]:
        count = len(self._plot.lines)
        zero = self._py(0.0)
        for x, y in points:
            left, right = (self._px(x + 0.1 + 0.8 * (number + end) / count) for end in (0, 1))
            top, bottom = sorted((self._py(y), zero))
            title = escape(f"{label}, {self._plot.groups[int(x)]}: {y:g}")
            yield (
                f'<rect class="mark c{number}" x="{left:.1f}" width="{right - left - 1:.1f}" y="{top:.1f}" '
                f'height="{bottom - top:.1f}"><title>{title}</title></rect>'
            )
