"""Live runs beside simulated ones of the same schedules, and how far they may be apart."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec

from sluice.loadgen.run.result import RunResult

Pair = tuple[RunResult, RunResult]
"""A live run and the simulated one of the same schedule."""


@dataclass(frozen=True)
class Figure:
    """One figure of runs and its bound: a difference, relative to the live figure where `relative`."""

    name: str
    of: Callable[[RunResult], float]
    bound: float
    relative: bool
    form: str

    def difference(self, live: float, simulated: float) -> float:
        """How far the simulated figure is from the live one."""
        return (simulated - live) / live if self.relative and live else simulated - live


FIGURES = (
    Figure("attainment", lambda result: result.metrics.attainment, 0.02, False, "{:.1%}"),
    Figure("p50", lambda result: _latency(result, "p50"), 0.10, True, "{:.2f} ms"),
    Figure("p99", lambda result: _latency(result, "p99"), 0.20, True, "{:.2f} ms"),
    Figure("mean batch", lambda result: result.server.mean_batch if result.server else 0.0, 0.10, True, "{:.2f}"),
)


class ComparedFigure(msgspec.Struct, frozen=True):
    """A figure at one load: medians over the seeds, that of the paired differences included."""

    figure: str
    live: float
    simulated: float
    difference: float
    bound: float

    @property
    def within(self) -> bool:
        """Whether the difference is within its bound."""
        return abs(self.difference) <= self.bound


@dataclass(frozen=True)
class LoadComparison:
    """The runs of one load, `share` of the capacity; one pair a seed."""

    share: float
    rate: float
    pairs: Sequence[Pair]

    @property
    def cells(self) -> list[ComparedFigure]:
        """One for each of `FIGURES`."""
        return [self._cell(figure) for figure in FIGURES]

    @property
    def limits(self) -> list[str]:
        """How the client fell short of the schedule in live runs."""
        return [limit for live, _ in self.pairs for limit in live.client_limits]

    def _cell(self, figure: Figure) -> ComparedFigure:
        values = [(figure.of(live), figure.of(simulated)) for live, simulated in self.pairs]
        live, simulated = (median(side) for side in zip(*values, strict=True))
        difference = median(figure.difference(*pair) for pair in values)
        return ComparedFigure(figure.name, live, simulated, difference, figure.bound)


def table(comparisons: Sequence[LoadComparison]) -> str:
    """A Markdown table: a line for each load and figure."""
    return (
        "\n".join(
            (
                "| load | figure | live | simulated | difference | within |",
                "|---|---|---|---|---|---|",
                *_lines(comparisons),
            )
        )
        + "\n"
    )


def _lines(comparisons: Sequence[LoadComparison]) -> Iterator[str]:
    for comparison in comparisons:
        load = f"{comparison.share:.0%}, {comparison.rate:.0f}/s"
        for figure, cell in zip(FIGURES, comparison.cells, strict=True):
            values = " | ".join(figure.form.format(value) for value in (cell.live, cell.simulated))
            unit = "%" if figure.relative else "points"
            bound = f"{'yes' if cell.within else '**no**'} ({cell.bound * 100:g} {unit})"
            yield f"| {load} | {figure.name} | {values} | {cell.difference * 100:+.1f} {unit} | {bound} |"


def comparison_json(capacity: float, comparisons: Sequence[LoadComparison]) -> bytes:
    """Everything as a JSON object: cells by load, and the metrics of every pair of runs."""
    document: dict[str, Any] = {
        "kind": "validate-sim",
        "capacity": capacity,
        "environment": comparisons[0].pairs[0][0].environment,
        "loads": [
            {
                "share": comparison.share,
                "rate": comparison.rate,
                "cells": [{"within": cell.within} | msgspec.structs.asdict(cell) for cell in comparison.cells],
                "client_limits": comparison.limits,
                "runs": [
                    {
                        "seed": live.config.seed,
                        "schedule_sha256": live.schedule_digest,
                        "live": _run(live),
                        "simulated": _run(simulated),
                    }
                    for live, simulated in comparison.pairs
                ],
            }
            for comparison in comparisons
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"


def _run(result: RunResult) -> dict[str, object]:
    return {"metrics": result.metrics, "server": result.server}


def _latency(result: RunResult, name: str) -> float:
    latency = result.metrics.latency_ms
    return float("inf") if latency is None else float(getattr(latency, name))
