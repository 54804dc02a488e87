"""What if: one pipeline on some partitions, at any rate, without a server."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.plan_data import CostToGo, Observed
from sluice.batcher.planner.baselines.aquatope import plan_aquatope
from sluice.batcher.planner.baselines.brute_force import plan_brute_force
from sluice.batcher.planner.baselines.esg import plan_esg
from sluice.batcher.planner.baselines.fast_gshare import plan_fast_gshare
from sluice.batcher.planner.baselines.infless import plan_infless
from sluice.batcher.planner.baselines.orion import plan_orion
from sluice.batcher.planner.build import residency_of
from sluice.batcher.planner.demand import DemandTable
from sluice.batcher.planner.exact import ExactPlanner, plan_exact
from sluice.batcher.planner.problem import Path, PathPlanner, Problem
from sluice.batcher.planner.slo_split import path_of
from sluice.batcher.planner.stage_options import Candidate, pipeline_candidates, problem_of
from sluice.models.errors import ConfigError
from sluice.models.profiles.latency_table import LatencyTable

_PLANNERS: dict[str, Callable[[int], PathPlanner]] = {
    "exact": lambda seed: plan_exact,
    "brute_force": lambda seed: plan_brute_force,
    "esg": lambda seed: plan_esg,
    "orion": lambda seed: plan_orion,
    "infless": lambda seed: plan_infless,
    "fast_gshare": lambda seed: plan_fast_gshare,
    "aquatope": lambda seed: partial(plan_aquatope, generator=np.random.default_rng(seed)),
}
PLANNERS = tuple(_PLANNERS)
PRECISION = 1e-3
"""Of the highest rate."""
_ALTERNATIVES = 8


def planner_named(name: str, seed: int) -> PathPlanner:
    """The planner of that name; `seed` is for those that draw at random."""
    if name not in _PLANNERS:
        raise ConfigError(f"planner {name}: expected one of {', '.join(PLANNERS)}")
    return _PLANNERS[name](seed)


class StageChoices(NamedTuple):
    """A candidate for every stage, and what they come to: of a row, and of the longest way through the pipeline."""

    candidates: tuple[Candidate, ...]
    latency_ns: int
    cost: float


class WhatIf:
    """The one pipeline of a spec, with the latencies of its models and how often its stages run.

    `probabilities` are one a stage: the share of the rows offered to it that it runs. A stage that at most 1 -
    `percentile` of the rows reach takes no time.
    """

    def __init__(
        self,
        spec: SchedulerSpec,
        tables: dict[str, dict[str, LatencyTable]],
        probabilities: Mapping[str, tuple[float, ...]],
        percentile: float = 1.0,
    ) -> None:
        self.spec = spec
        (self.pipeline,) = spec.pipelines
        self.percentile = percentile
        self._tables = tables
        self._probabilities = dict(probabilities)

    def at(self, rate: float) -> "RateScenario":
        """The pipeline at so many rows a second; ConfigError when nothing is known of a model."""
        observed = Observed(self._tables, {self.pipeline.name: rate}, self._probabilities)
        residency = residency_of(self.spec, observed)
        return RateScenario(self, DemandTable(self.spec, observed, residency), residency, rate)

    def highest_rate(self, slo_ns: int) -> float:
        """The highest rate at which some configuration keeps to the objective, by bisection; 0 when none is."""
        if not self.at(0.0).fits(slo_ns):
            return 0.0
        low, high = 0.0, self.at(0.0).capacity
        while high - low > PRECISION * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.at(middle).fits(slo_ns) else (low, middle)
        return low


class RateScenario:
    """What there is to choose from at one rate. `demand` tells what the rate asks of the partitions.

    `residency` are the models that each partition holds, by its name; empty when all are everywhere.
    """

    def __init__(
        self, what_if: WhatIf, demand: DemandTable, residency: Mapping[str, tuple[str, ...]], rate: float
    ) -> None:
        self.rate = rate
        self.residency = dict(residency)
        self.demand = demand
        self.pipeline = what_if.pipeline
        self._percentile = what_if.percentile
        self._candidates = pipeline_candidates(demand, self.pipeline)

    @property
    def overloaded(self) -> list[int]:
        """The stages for whose rate there is no capacity."""
        return [index for index, choices in enumerate(self._candidates) if choices[0].predicted is None]

    @property
    def capacity(self) -> float:
        """Requests a second that no configuration can take: the best batches of one stage would need all the time."""
        busy_s = 0.0
        for stage, reach in zip(self.pipeline.stages, self.demand.reach[self.pipeline.name], strict=True):
            if models := stage.variants or (stage.model and (stage.model,)):
                busy_s = max(busy_s, reach / max(sum(self.demand.capacities(model).values()) for model in models))
        return 1 / busy_s if busy_s else math.inf

    def fits(self, slo_ns: int) -> bool:
        """Whether some configuration keeps to the objective."""
        return not self.overloaded and self.quickest.latency_ns <= slo_ns

    @property
    def quickest(self) -> StageChoices:
        """The configuration of the least latency; of the others at each stage the cheapest that is as quick."""
        problem = self.problem(0)
        choices = [int(np.lexsort((stage.cost, stage.latency_ns))[0]) for stage in problem.stages]
        return _chosen(self._candidates, path_of(problem, choices))

    def problem(self, budget_ns: int) -> Problem:
        """The problem with all candidates, as the planners are given it."""
        return problem_of(self.demand, self.pipeline, self._candidates, budget_ns, self._percentile)

    def best(self, planner: PathPlanner, slo_ns: int) -> StageChoices | None:
        """What a planner finds."""
        paths = planner(self.problem(slo_ns))
        return _chosen(self._candidates, paths[0]) if paths else None

    def alternatives(self, budget_ns: int) -> list[StageChoices]:
        """The cheapest configurations within a time that differ in their figures, cheapest first; a few."""
        candidates = [_distinct(choices) for choices in self._candidates]
        problem = problem_of(self.demand, self.pipeline, candidates, budget_ns, self._percentile)
        return [_chosen(candidates, path) for path in plan_exact(problem, _ALTERNATIVES)]

    @cached_property
    def _within_any_time(self) -> int:
        """Time enough for the cheapest configuration."""
        problem = self.problem(0)
        return path_of(problem, [int(stage.cost.argmin()) for stage in problem.stages]).latency_ns

    def any_time(self, slo_ns: int) -> int:
        """A budget that leaves nothing out."""
        return max(slo_ns, self._within_any_time, self.quickest.latency_ns)

    def front(self, slo_ns: int) -> CostToGo:
        """The least cost of a row against the time for it, whatever the objective."""
        return ExactPlanner(self.problem(self.any_time(slo_ns))).front

    def costs_to_go(self, slo_ns: int) -> tuple[CostToGo, ...]:
        """For each stage what all that follows costs, against the time that is left."""
        return ExactPlanner(self.problem(slo_ns)).rests()


def _chosen(candidates: Sequence[Sequence[Candidate]], path: Path) -> StageChoices:
    chosen = tuple(choices[choice] for choices, choice in zip(candidates, path.choices, strict=True))
    return StageChoices(chosen, path.latency_ns, path.cost)


def _distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Without larger batches that come to the same as a smaller one on the same partitions, since they never fill."""
    first: dict[tuple[str, str, int, float], Candidate] = {}
    for each in candidates:
        first.setdefault((each.option.model, each.option.kind, each.latency_ns, each.cost), each)
    return list(first.values())
