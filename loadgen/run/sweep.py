"""Sweeps: one run at each point of a grid, on several seeds."""

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from sluice.loadgen.run.result import RunResult, Verdict
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.models.errors import ConfigError

MAX_RUNS = 10_000


class SweepGrid(msgspec.Struct, frozen=True):
    """The values of each dimension: either `rates` or `concurrencies`, scales of the objective, and policy files."""

    rates: tuple[float, ...] = ()
    concurrencies: tuple[int, ...] = ()
    slo_scales: tuple[float, ...] = (1.0,)
    policies: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        if bool(self.rates) == bool(self.concurrencies):
            raise ConfigError("sweep: expected one of --rates and --concurrencies")

    def points(self) -> Iterator["SweepPoint"]:
        """The points, curve by curve: the load changes fastest."""
        loads = self.rates or self.concurrencies
        for policy, scale, load in itertools.product(self.policies, self.slo_scales, loads):
            yield SweepPoint(policy, scale, load, is_rate=bool(self.rates))


class SweepPoint(NamedTuple):
    """One point of a grid; `load` is a rate in queries a second, or a number of open queries."""

    policy: str
    slo_scale: float
    load: float
    is_rate: bool

    def config(self, base: RunConfig) -> RunConfig:
        """The run at this point; the scale of the objective is left to the caller."""
        if self.is_rate:
            return msgspec.structs.replace(base, rate=self.load, policy_file=self.policy)
        return msgspec.structs.replace(
            base, scenario=ScenarioName.CONCURRENCY, concurrency=int(self.load), policy_file=self.policy
        )


class SweepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The runs at one point: medians over the seeds, and the extremes of the two figures that curves are drawn of.

    Times are in milliseconds; None without an answer.
    """

    policy: str
    slo_scale: float
    slo_ms: float | None
    rate: float | None
    concurrency: int | None
    runs: int
    met: int
    invalid: int
    offered_per_s: float
    completed_per_s: float
    goodput_per_s: float
    goodput_per_s_range: tuple[float, float]
    attainment: float
    p50_ms: float | None
    p99_ms: float | None
    p99_ms_range: tuple[float, float] | None


def sweep(
    run: Callable[[SweepPoint, int], RunResult],
    grid: SweepGrid,
    seeds: int,
    report: Callable[[SweepPoint, RunResult], None],
) -> list[SweepSummary]:
    """Run `seeds` runs at each point; `run` gets the point and the number of its seed, from 0.

    The same number means the same seed at each point, so that points differ in what the grid changes alone. `report`
    is called with every run as it ends. An interrupted run ends the sweep, and its point has the runs so far.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds: expected at least 1, got {seeds}")
    points = list(grid.points())
    if len(points) * seeds > MAX_RUNS:
        raise ConfigError(f"sweep: expected at most {MAX_RUNS} runs, got {len(points)} points with {seeds} seeds each")
    summaries: list[SweepSummary] = []
    for point in points:
        results: list[RunResult] = []
        for number in range(seeds):
            result = run(point, number)
            report(point, result)
            results.append(result.without_rows())
            if result.interrupted:
                return [*summaries, _summary(point, results)]
        summaries.append(_summary(point, results))
    return summaries


def _summary(point: SweepPoint, results: Sequence[RunResult]) -> SweepSummary:
    metrics = [result.metrics for result in results]
    goodput = [each.goodput_per_s for each in metrics]
    latencies = [each.latency_ms for each in metrics if each.latency_ms is not None]
    p99 = [each.p99 for each in latencies]
    return SweepSummary(
        policy=point.policy,
        slo_scale=point.slo_scale,
        slo_ms=results[0].config.slo_ms,
        rate=point.load if point.is_rate else None,
        concurrency=None if point.is_rate else int(point.load),
        runs=len(results),
        met=sum(result.slo_met for result in results),
        invalid=sum(result.verdict is Verdict.INVALID for result in results),
        offered_per_s=statistics.median(each.offered_per_s for each in metrics),
        completed_per_s=statistics.median(each.completed_per_s for each in metrics),
        goodput_per_s=statistics.median(goodput),
        goodput_per_s_range=(min(goodput), max(goodput)),
        attainment=statistics.median(each.attainment for each in metrics),
        p50_ms=statistics.median(each.p50 for each in latencies) if latencies else None,
        p99_ms=statistics.median(p99) if p99 else None,
        p99_ms_range=(min(p99), max(p99)) if p99 else None,
    )
