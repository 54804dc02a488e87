"""The search space of a plan: one pipeline on some partitions, at any rate, without a server."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from sluice.batcher.interface.config import PipelineConfig, SchedulerSpec
from sluice.batcher.interface.plan_data import CostToGo, Observed
from sluice.batcher.planner.build import residency_of
from sluice.batcher.planner.demand import DemandTable, demand_table
from sluice.batcher.planner.exact import ExactPlanner, plan_exact
from sluice.batcher.planner.problem.problem import Path, PathPlanner, Problem, check_path, path_of
from sluice.batcher.planner.stage_options import Candidate, pipeline_candidates, problem_of
from sluice.models.profiles.latency_table import LatencyTable

PRECISION = 1e-3
"""Relative precision of the highest rate."""
_ALTERNATIVES = 8


class StageChoices(NamedTuple):
    """A candidate for every stage, with the latency of the critical path and the cost of a row."""

    candidates: tuple[Candidate, ...]
    latency_ns: int
    cost: float


class WhatIf:
    """The only pipeline of a spec, with the latencies of its models and the probabilities of its stages.

    `probabilities` has, per stage, the share of the offered rows that it runs. A stage that at most 1 - `percentile` of
    the rows reach counts as instant. See `beside_others` for one of several pipelines.
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
        self._observed = Observed(tables, {}, dict(probabilities))

    @classmethod
    def beside_others(
        cls, spec: SchedulerSpec, observed: Observed, pipeline: PipelineConfig, percentile: float = 1.0
    ) -> "WhatIf":
        """One pipeline of a spec, while the others have the rates that were observed."""
        only = msgspec.structs.replace(spec, pipelines=(pipeline,))
        what_if = cls(only, observed.tables, observed.probabilities, percentile)
        what_if.spec, what_if._observed = spec, observed
        return what_if

    def at(self, rate: float) -> "RateScenario":
        """The pipeline at a rate in rows per second; raises ConfigError if a model has no latencies."""
        rates = {**self._observed.rates, self.pipeline.name: rate}
        observed = msgspec.structs.replace(self._observed, rates=rates)
        residency = residency_of(self.spec, observed)
        return RateScenario(self, demand_table(self.spec, observed, residency), residency, rate)

    def highest_rate(self, slo_ns: int, precision: float = PRECISION) -> float:
        """The highest rate at which a configuration meets the objective, by bisection; 0 if there is none."""
        idle = self.at(0.0)
        if not idle.fits(slo_ns):
            return 0.0
        low, high = 0.0, idle.capacity
        while high - low > precision * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.at(middle).fits(slo_ns) else (low, middle)
        return low


class RateScenario:
    """The choices at one rate. `demand` is the load that the rate puts on the partitions.

    `residency` are the models that each partition holds, by its name; empty if all models are everywhere.
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
        """The stages whose rate exceeds the capacity."""
        return [index for index, choices in enumerate(self._candidates) if choices[0].predicted is None]

    @property
    def capacity(self) -> float:
        """A rate that no configuration can serve: the best batches of one stage would take all the time."""
        busy_s = 0.0
        for stage, reach in zip(self.pipeline.stages, self.demand.reach[self.pipeline.name], strict=True):
            if models := stage.variants or (stage.model and (stage.model,)):
                busy_s = max(busy_s, reach / max(sum(self.demand.capacities(model).values()) for model in models))
        return 1 / busy_s if busy_s else math.inf

    def fits(self, slo_ns: int) -> bool:
        """True if a configuration meets the objective."""
        return not self.overloaded and self.fastest.latency_ns <= slo_ns

    @property
    def fastest(self) -> StageChoices:
        """The configuration with the lowest latency; at each stage the cheapest of equally fast candidates."""
        problem = self.problem(0)
        choices = [int(np.lexsort((stage.cost, stage.latency_ns))[0]) for stage in problem.stages]
        return _chosen(self._candidates, path_of(problem, choices))

    def problem(self, budget_ns: int) -> Problem:
        """The planning problem with all candidates."""
        return problem_of(self.demand, self.pipeline, self._candidates, budget_ns, self._percentile)

    def best(self, planner: PathPlanner, name: str, slo_ns: int) -> StageChoices | None:
        """The choice of a planner; None if it finds nothing. ConfigError, which names it, if its path is wrong."""
        problem = self.problem(slo_ns)
        paths = planner(problem)
        return _chosen(self._candidates, check_path(problem, paths[0], name)) if paths else None

    def configured(self, options: Sequence[tuple[str, int, str]]) -> StageChoices | None:
        """The choice of (model, batch, kind) for each stage; None if it is no option of a stage at this rate."""
        choices: list[int] = []
        for candidates, option in zip(self._candidates, options, strict=True):
            found = (
                index
                for index, each in enumerate(candidates)
                if (each.option.model, each.option.batch, each.option.kind) == option
            )
            if (choice := next(found, None)) is None:
                return None
            choices.append(choice)
        return _chosen(self._candidates, path_of(self.problem(0), choices))

    def alternatives(self, budget_ns: int) -> list[StageChoices]:
        """The cheapest configurations within the budget that differ in their figures, cheapest first."""
        candidates = [_distinct(choices) for choices in self._candidates]
        problem = problem_of(self.demand, self.pipeline, candidates, budget_ns, self._percentile)
        return [_chosen(candidates, path) for path in plan_exact(problem, _ALTERNATIVES)]

    @cached_property
    def _cheapest_latency_ns(self) -> int:
        """A budget that the cheapest configuration meets."""
        problem = self.problem(0)
        return path_of(problem, [int(stage.cost.argmin()) for stage in problem.stages]).latency_ns

    def unbounded_budget(self, slo_ns: int) -> int:
        """A budget that excludes no configuration."""
        return max(slo_ns, self._cheapest_latency_ns, self.fastest.latency_ns)

    def front(self, slo_ns: int) -> CostToGo:
        """The lowest cost of a row against its latency, for any objective."""
        return ExactPlanner(self.problem(self.unbounded_budget(slo_ns))).front

    def costs_to_go(self, slo_ns: int) -> tuple[CostToGo, ...]:
        """For each stage, the cost of all later stages against the remaining time."""
        return ExactPlanner(self.problem(slo_ns)).rests()


def _chosen(candidates: Sequence[Sequence[Candidate]], path: Path) -> StageChoices:
    chosen = tuple(choices[choice] for choices, choice in zip(candidates, path.choices, strict=True))
    return StageChoices(chosen, path.latency_ns, path.cost)


def _distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates without larger batches that never fill and so equal a smaller one on the same partitions."""
    first: dict[tuple[str, str, int, float], Candidate] = {}
    for each in candidates:
        first.setdefault((each.option.model, each.option.kind, each.latency_ns, each.cost), each)
    return list(first.values())
