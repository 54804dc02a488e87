"""The headroom of pipelines: the factor by which all traffic may grow until one misses its objective."""

import math
from collections.abc import Mapping

import msgspec

from sluice.batcher.interface.config import PipelineConfig, SchedulerSpec
from sluice.batcher.interface.plan_data import Observed
from sluice.batcher.planner.build import SELDOM, residency_of
from sluice.batcher.planner.demand import DemandTable, demand_table
from sluice.batcher.planner.problem.problem import path_of
from sluice.batcher.planner.stage_latency import RHO_MAX
from sluice.batcher.planner.stage_options import pipeline_candidates, problem_of
from sluice.models.errors import ConfigError

MOST_PIPELINES = 16
"""The pipelines that are looked at, those with the highest rates, since each takes as long as several plans."""
STEP = 1.02
"""Factors are powers of this: a headroom is right within 2 %."""
LEAST, MOST = 1e-3, 1e6
"""The bounds of a headroom."""


def headrooms(spec: SchedulerSpec, observed: Observed) -> dict[str, float]:
    """By pipeline, the factor by which the traffic of all pipelines can grow before this one misses its objective.

    Below 1 the traffic is already too much for it. It grows by at most `MOST`. A pipeline that has no traffic or no
    objective, or a model whose latency is not known, has no headroom. Pure, and milliseconds a pipeline.
    """
    asked = [each for each in spec.pipelines if each.slo_ns and observed.rates.get(each.name, 0.0) > 0]
    asked.sort(key=lambda each: -observed.rates[each.name])
    growth = _Growth(spec, observed)
    found = {}
    for pipeline in asked[:MOST_PIPELINES]:
        try:
            found[pipeline.name] = growth.of(pipeline)
        except ConfigError:
            continue
    return found


class _Growth:
    """The demand at rates that have grown, kept for the next pipeline."""

    def __init__(self, spec: SchedulerSpec, observed: Observed) -> None:
        self._spec = spec
        self._observed = observed
        self._residency: Mapping[str, tuple[str, ...]] = residency_of(spec, observed)
        self._demands: dict[int, DemandTable] = {}

    def of(self, pipeline: PipelineConfig) -> float:
        """The highest factor at which a configuration of the pipeline fits, by bisection."""
        busy = self._demand(0).busiest
        low = round(math.log(LEAST, STEP))
        high = round(math.log(min(max(RHO_MAX / busy, 2 * LEAST), MOST), STEP)) if busy else 0
        # Its own partitions may be less busy than the busiest, which others share.
        while high < round(math.log(MOST, STEP)) and self._fits(pipeline, high):
            low, high = high, high + round(math.log(4, STEP))
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(pipeline, middle) else (low, middle)
        return float(STEP**low)

    def _demand(self, power: int) -> DemandTable:
        if power not in self._demands:
            factor = STEP**power
            rates = {name: rate * factor for name, rate in self._observed.rates.items()}
            grown = msgspec.structs.replace(self._observed, rates=rates)
            self._demands[power] = demand_table(self._spec, grown, self._residency)
        return self._demands[power]

    def _fits(self, pipeline: PipelineConfig, power: int) -> bool:
        demand = self._demand(power)
        candidates = pipeline_candidates(demand, pipeline)
        if any(choices[0].predicted is None for choices in candidates):
            return False
        problem = problem_of(demand, pipeline, candidates, pipeline.slo_ns, 1 - SELDOM)
        quickest = [int(stage.latency_ns.argmin()) for stage in problem.stages]
        return path_of(problem, quickest).latency_ns <= pipeline.slo_ns
