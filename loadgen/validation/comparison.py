"""Comparison of live runs with simulated runs of the same schedules, and the bounds on their differences."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec

from sluice.loadgen.run.result import RunResult

Pair = tuple[RunResult, RunResult]
"""A live run and the simulated run of the same schedule."""


@dataclass(frozen=True)
class ComparedMetric:
    """A metric of runs and the bound on its difference, which is relative to the live value where `relative`."""

    name: str
    of: Callable[[RunResult], float]
    bound: float
    relative: bool
    form: str

    def difference(self, live: float, simulated: float) -> float:
        """Difference of the simulated value from the live value."""
        return (simulated - live) / live if self.relative and live else simulated - live


COMPARED_METRICS = (
    ComparedMetric("attainment", lambda result: result.metrics.attainment, 0.02, False, "{:.1%}"),
    ComparedMetric("p50", lambda result: _latency(result, "p50"), 0.10, True, "{:.2f} ms"),
    ComparedMetric("p99", lambda result: _latency(result, "p99"), 0.20, True, "{:.2f} ms"),
    ComparedMetric(
        "mean batch", lambda result: result.server.mean_batch if result.server else 0.0, 0.10, True, "{:.2f}"
    ),
)


class FigureComparison(msgspec.Struct, frozen=True):
    """One metric at one load: medians over the seeds of the values and of the paired differences."""

    figure: str
    live: float
    simulated: float
    difference: float
    bound: float

    @property
    def within(self) -> bool:
        """True when the difference is within its bound."""
        return abs(self.difference) <= self.bound


@dataclass(frozen=True)
class LoadComparison:
    """The runs of one load, a `share` of the capacity, with one pair for each seed."""

    share: float
    rate: float
    pairs: Sequence[Pair]

    @property
    def figures(self) -> list[FigureComparison]:
        """The comparison of each of `COMPARED_METRICS`."""
        return [self._compare(metric) for metric in COMPARED_METRICS]

    @property
    def limits(self) -> list[str]:
        """The ways in which the client fell short of the schedule in live runs."""
        return [limit for live, _ in self.pairs for limit in live.client_limits]

    def _compare(self, metric: ComparedMetric) -> FigureComparison:
        values = [(metric.of(live), metric.of(simulated)) for live, simulated in self.pairs]
        live, simulated = (median(side) for side in zip(*values, strict=True))
        difference = median(metric.difference(*pair) for pair in values)
        return FigureComparison(metric.name, live, simulated, difference, metric.bound)


def comparison_table(comparisons: Sequence[LoadComparison]) -> str:
    """A Markdown table with a line for each load and metric."""
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
        for metric, figure in zip(COMPARED_METRICS, comparison.figures, strict=True):
            values = " | ".join(metric.form.format(value) for value in (figure.live, figure.simulated))
            unit = "%" if metric.relative else "points"
            bound = f"{'yes' if figure.within else '**no**'} ({figure.bound * 100:g} {unit})"
            yield f"| {load} | {metric.name} | {values} | {figure.difference * 100:+.1f} {unit} | {bound} |"


def comparison_json(capacity: float, comparisons: Sequence[LoadComparison]) -> bytes:
    """The comparison as a JSON object: figures by load, and the metrics of every pair of runs."""
    document: dict[str, Any] = {
        "kind": "validate-sim",
        "capacity": capacity,
        "environment": comparisons[0].pairs[0][0].environment,
        "loads": [
            {
                "share": comparison.share,
                "rate": comparison.rate,
                "cells": [{"within": each.within} | msgspec.structs.asdict(each) for each in comparison.figures],
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
