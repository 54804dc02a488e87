"""Builds the plan that the scheduler goes by: the exact planner on every pipeline, at the rates that were seen."""

from batcher.config import PipelineConfig, SchedulerSpec
from batcher.planner.exact import ExactPlanner
from batcher.planner.problem import Problem
from batcher.planner.residency import ModelNeed, place_models
from batcher.planner.stage_options import Demand, pipeline_problem
from batcher.plans import Front, Observed, PipelinePlan, Plan, StagePlan
from models.errors import ConfigError


def build_plan(spec: SchedulerSpec, observed: Observed) -> Plan:
    """The plans of all pipelines that have an objective and whose models are all known on some partition.

    Pure, and the same for the same arguments; milliseconds a pipeline, so a driver runs it beside its loop.
    """
    demand = Demand(spec, observed)
    plans = []
    for pipeline in spec.pipelines:
        if pipeline.slo_ns:
            try:
                plans.append(_plan_pipeline(pipeline, pipeline_problem(demand, pipeline, pipeline.slo_ns)))
            except ConfigError:
                continue  # a model that is not loaded anywhere yet: its pipelines go by the stages' own latencies
    return Plan(tuple(plans), _residency(spec, demand, observed))


def _residency(spec: SchedulerSpec, demand: Demand, observed: Observed) -> dict[str, tuple[str, ...]]:
    """Where models are to be, by what is asked of them; empty without a bound, when all are everywhere."""
    if not any(partition.memory_bytes for partition in spec.partitions):
        return {}
    needs = {
        model.key: ModelNeed(
            model.memory_bytes,
            {
                kind: demand.rates[model.key] * demand.hosts[kind] / capacity
                for kind, capacity in demand.capacities(model.key).items()
                if capacity
            },
        )
        for model in spec.models
    }
    return place_models(needs, spec.partitions, observed.held).residency


def _plan_pipeline(pipeline: PipelineConfig, problem: Problem) -> PipelinePlan:
    planner = ExactPlanner(problem)
    paths = planner.paths()
    path = paths[0] if paths else planner.quickest()
    stages = []
    for stage, choice, rest in zip(problem.stages, path.choices, planner.rests(), strict=True):
        option = stage.options[choice]
        stages.append(
            StagePlan(
                option.model,
                option.batch,
                option.kind,
                int(stage.latency_ns[choice]),
                float(stage.cost[choice]),
                _from_here(rest, stage.probability),
            )
        )
    return PipelinePlan(pipeline.name, tuple(stages), path.latency_ns, path.cost, bool(paths))


def _from_here(rest: Front, probability: float) -> Front:
    """What is left to pay for a row that has come to a stage, which is more than what a row pays there on average."""
    return Front(rest.within_ns, tuple(cost / probability for cost in rest.cost)) if probability else rest
