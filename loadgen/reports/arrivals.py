"""The figures of arrivals as lines of text."""

from collections.abc import Iterator

from sluice.loadgen.traffic.description import ArrivalFigures


def arrival_lines(figures: ArrivalFigures) -> Iterator[str]:
    """The lines that describe arrivals."""
    yield f"  arrivals   {figures.arrivals} in {figures.span_s:.1f} s: {_number(figures.rate)}/s"
    gaps = ", ".join(f"{name} {gap_ms:.3f} ms" for name, gap_ms in figures.gap_ms.items())
    yield f"  gaps       coefficient of variation {_number(figures.cv)}{'; ' if gaps else ''}{gaps}"
    dispersions = ", ".join(f"{_number(idc)} at {window} s" for window, idc in figures.idc.items())
    yield f"  dispersion of counts (variance / mean): {dispersions}"
    yield f"  peak       {figures.peak_per_s} in one second, {_number(figures.peak_ratio)} times the mean"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
