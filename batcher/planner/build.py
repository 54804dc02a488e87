"""Builds the scheduler's plan: its planner on every pipeline, at the rates that were seen."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from sluice.batcher.interface.config import PipelineConfig, SchedulerSpec
from sluice.batcher.interface.plan_data import Observed, PipelinePlan, Plan, StagePlan
from sluice.batcher.interface.planner_config import PlannerConfig, Replan
from sluice.batcher.interface.residency_config import Loading
from sluice.batcher.planner.demand import DemandTable, demand_table
from sluice.batcher.planner.exact import ExactPlanner, from_here
from sluice.batcher.planner.fixed_plan import fixed_plan
from sluice.batcher.planner.group_plan import group_plan
from sluice.batcher.planner.problem.problem import Problem, path_of
from sluice.batcher.planner.registry import DEFAULT, path_planners, planner_of
from sluice.batcher.planner.stage_options import Candidate, pipeline_candidates, problem_of, without_waits
from sluice.batcher.residency.placement import ModelNeed, place_models
from sluice.models.errors import ConfigError

SELDOM = 0.001
"""A stage that no more than this share of the rows reaches does not count in a plan's latency, a 99th percentile.

The plan leaves time for the stage where the objective allows it.
"""

PlanPipeline = Callable[[DemandTable, PipelineConfig, Sequence[Sequence[Candidate]]], PipelinePlan]
"""The plan of one pipeline from the candidates of its stages."""


def build_plan(spec: SchedulerSpec, observed: Observed) -> Plan:
    """The plans of all pipelines that have an objective and whose models are all known on some partition.

    Pure, and the same for the same arguments; milliseconds a pipeline, so a driver runs it beside its loop. Raises
    ConfigError for a planner that is not known.
    """
    plan = _planner_of(spec.planner)
    residency = residency_of(spec, observed)
    demand = demand_table(spec, observed, residency)
    plans: list[PipelinePlan] = []
    failed: dict[str, str] = {}
    for pipeline in spec.pipelines:
        if pipeline.slo_ns:
            try:
                candidates = pipeline_candidates(demand, pipeline)
            except ConfigError:
                continue  # a model that is not loaded anywhere yet: its pipelines go by the stages' own latencies
            try:
                plans.append(plan(demand, pipeline, candidates))
            except Exception as error:  # any error ends only this pipeline's plan
                failed[pipeline.name] = f"{type(error).__name__}: {error}"
    return Plan(tuple(plans), residency, failed)


def residency_of(spec: SchedulerSpec, observed: Observed) -> dict[str, tuple[str, ...]]:
    """The models that each partition is to hold, by demand; empty without a memory bound, when all are everywhere.

    When models are loaded on demand, these are the models that it holds now. Partitions that are gone are left out.
    """
    if not any(partition.memory_bytes for partition in spec.partitions):
        return {}
    if spec.residency.loading is Loading.DEMAND:
        return {name: held for name, held in observed.held.items() if name not in observed.gone}
    demand = demand_table(spec, msgspec.structs.replace(observed, ways={}))  # it is the same memory behind any link
    slowest: dict[str, float] = {}
    for model in spec.models:
        for kind, capacity in demand.capacities(model.key).items():
            slowest[kind] = min(capacity, slowest.get(kind, capacity))
    needs = {
        model.key: ModelNeed(model.most_bytes, _load(demand, model.key, slowest), model.replicas, model.pinned)
        for model in spec.models
    }
    there = [partition for partition in spec.partitions if partition.name not in observed.gone]
    return place_models(needs, there, observed.held, spec.residency.packing).residency


def _load(demand: DemandTable, model: str, slowest: dict[str, float]) -> dict[str, float]:
    """The demand for a model in partition-seconds a second, by kind.

    A model that was never loaded counts as the slowest of the others, until its first latency table corrects that.
    """
    rate = demand.rates[model]
    known = demand.hosts[model]
    capacities = demand.capacities(model) or (slowest if rate else {})
    hosts = {kind: known[kind].partitions if kind in known else demand.partitions[kind] for kind in capacities}
    return {kind: rate * hosts[kind] / capacity for kind, capacity in capacities.items() if capacity}


def _planner_of(config: PlannerConfig) -> PlanPipeline:
    """Plans one pipeline: two planners choose again at every dispatch, all others only here."""
    if config.replan is Replan.DISPATCH and config.name == DEFAULT:
        return _exact_plan
    search = planner_of(config)
    if config.replan is Replan.DISPATCH and config.name == "esg":
        return partial(group_plan, search)
    return partial(fixed_plan, search, path_planners()[config.name])


def _exact_plan(
    demand: DemandTable, pipeline: PipelineConfig, candidates: Sequence[Sequence[Candidate]]
) -> PipelinePlan:
    problem = problem_of(demand, pipeline, candidates, pipeline.slo_ns)
    usual = _without_seldom(problem)
    planner = ExactPlanner(problem)
    paths = planner.paths()
    if not paths and usual is not problem:
        usual_planner = ExactPlanner(usual)
        if paths := usual_planner.paths():
            planner = usual_planner
    path = paths[0] if paths else planner.quickest()
    # Where the waits are too long, no dispatch would find an option in time, though one may be for this request.
    rests = planner.rests() if paths else ExactPlanner(without_waits(demand, problem)).rests()
    stages = []
    for stage, choice, rest in zip(problem.stages, path.choices, rests, strict=True):
        option = stage.options[choice]
        stages.append(
            StagePlan(
                option.model,
                option.batch,
                option.kind,
                int(stage.latency_ns[choice]),
                float(stage.cost[choice]),
                from_here(rest, stage.probability),
            )
        )
    bounded = all(choices[0].predicted for choices in candidates)
    latency_ns = path_of(usual, path.choices).latency_ns
    return PipelinePlan(pipeline.name, tuple(stages), latency_ns, path.cost, bool(paths) and bounded)


def _without_seldom(problem: Problem) -> Problem:
    """The same problem, in which stages that hardly any row reaches take no time."""
    if all(stage.probability > SELDOM for stage in problem.stages if stage.on_path):
        return problem
    stages = (replace(stage, on_path=stage.on_path and stage.probability > SELDOM) for stage in problem.stages)
    return replace(problem, stages=tuple(stages))
