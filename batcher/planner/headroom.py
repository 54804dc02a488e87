"""The headroom of pipelines: the factor by which the traffic of one may grow until it misses its objective."""

import math

from sluice.batcher.interface.config import PipelineConfig, SchedulerSpec
from sluice.batcher.interface.plan_data import Observed
from sluice.batcher.planner.build import SELDOM, residency_of
from sluice.batcher.planner.demand import DemandTable, demand_table
from sluice.batcher.planner.problem.problem import path_of
from sluice.batcher.planner.stage_options import pipeline_candidates, problem_of
from sluice.models.errors import ConfigError

MOST_PIPELINES = 16
"""The pipelines that are looked at, those with the highest rates, since each takes as long as several plans."""
STEP = 1.02
"""Factors are powers of this: a headroom is right within 2 %."""
TWICE = round(math.log(2, STEP))
MOST = 20 * TWICE
"""The largest power, and with the opposite sign the smallest: a factor of a million."""


def headrooms(spec: SchedulerSpec, observed: Observed) -> dict[str, float]:
    """By pipeline, its highest rate over its present rate, while the others keep theirs.

    The highest rate is that at which some configuration still meets the objective; below 1 the traffic is already too
    much. A pipeline that has no traffic or no objective, or a model whose latency is not known, has no headroom. Pure,
    and milliseconds a pipeline.
    """
    asked = [each for each in spec.pipelines if each.slo_ns and observed.rates.get(each.name, 0.0) > 0]
    if not asked:
        return {}
    asked.sort(key=lambda each: -observed.rates[each.name])
    demand = demand_table(spec, observed, residency_of(spec, observed))
    found = {}
    for pipeline in asked[:MOST_PIPELINES]:
        try:
            found[pipeline.name] = _headroom(demand, pipeline, observed.rates[pipeline.name])
        except ConfigError:
            continue
    return found


def _headroom(demand: DemandTable, pipeline: PipelineConfig, rate: float) -> float:
    """The highest factor at which a configuration fits: first by doubling or halving, then by bisection."""
    low = high = 0
    if _fits(demand, pipeline, rate):
        while high < MOST and _fits(demand, pipeline, rate * STEP ** (high + TWICE)):
            high += TWICE
        low, high = high, high + TWICE
    else:
        while low > -MOST and not _fits(demand, pipeline, rate * STEP ** (low - TWICE)):
            low -= TWICE
        low, high = low - TWICE, low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(demand, pipeline, rate * STEP**middle) else (low, middle)
    return float(STEP**low)


def _fits(demand: DemandTable, pipeline: PipelineConfig, rate: float) -> bool:
    grown = demand.with_rate(pipeline.name, rate)
    candidates = pipeline_candidates(grown, pipeline)
    if any(choices[0].predicted is None for choices in candidates):
        return False
    problem = problem_of(grown, pipeline, candidates, pipeline.slo_ns, 1 - SELDOM)
    quickest = [int(stage.latency_ns.argmin()) for stage in problem.stages]
    return path_of(problem, quickest).latency_ns <= pipeline.slo_ns
