"""Chooses the step to another split of the cores that meets more objectives, or costs less."""

from collections.abc import Iterable, Mapping

import msgspec

from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.plan_data import Observed
from sluice.batcher.interface.planner_config import PlannerConfig
from sluice.batcher.interface.resize_data import Ask, CoreStep, Judgement, Reason, Split
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.demand import demand_table
from sluice.batcher.planner.problem.problem import MAX_LATENCY_NS
from sluice.batcher.planner.stage_latency import RHO_MAX

MARGIN = 0.1
"""Part of the cost, or of the overload, that a step has to save."""
MAX_STEPS = 32
"""Steps that are judged at a time; of equal partitions, one stands for all."""

_ROUNDING = 1 + 1e-9

_replace = msgspec.structs.replace


def judge(spec: SchedulerSpec, observed: Observed) -> Judgement | None:
    """Judge the exact plan at the rates that were seen; None while no latency of a model that it needs is known.

    A pipeline without an objective is missed only if its rate is too high, a pipeline without traffic never.
    """
    pipelines = (
        _replace(each, slo_ns=each.slo_ns or MAX_LATENCY_NS)
        for each in spec.pipelines
        if observed.rates.get(each.name, 0.0) > 0
    )
    spec = _replace(spec, pipelines=tuple(pipelines), planner=PlannerConfig())
    plan = build_plan(spec, observed)
    if len(plan.pipelines) < len(spec.pipelines):
        return None
    busiest = demand_table(spec, observed, plan.residency).busiest
    return Judgement(
        tuple(each.pipeline for each in plan.pipelines if not each.feasible),
        busiest,
        max(busiest / RHO_MAX, 1.0),
        sum(each.cost * observed.rates[each.pipeline] for each in plan.pipelines),
    )


def best_step(
    spec: SchedulerSpec, observed: Observed, later: Mapping[str, float], candidates: Iterable[Split]
) -> Ask | None:
    """The step that the plan asks for; a step that saves money has to meet the objectives at the rates `later` as well.

    Pure. It plans all pipelines for each candidate, so a driver runs it beside its loop. Every step makes fewer
    pipelines miss their objectives, or as many with less overload, or none at less cost, each by a margin: at constant
    rates no step leads back. Where nothing costs anything, fewer cores are cheaper; a split whose partitions cost more
    in total never saves money.
    """
    present = judge(spec, observed)
    if present is None:
        return None
    asks: list[Ask] = []
    for step, partitions in _distinct(spec, observed, candidates):
        changed = {each.name: each for each in partitions}
        other = _replace(spec, partitions=tuple(changed.get(each.name, each) for each in spec.partitions))
        if not present.missed and not (step.free and _price(other) <= _price(spec) * _ROUNDING):
            continue
        after = judge(other, observed)
        if after is None:
            continue
        if present.missed:
            if _relieves(present, after):
                asks.append(Ask(step, Reason.OBJECTIVE, present, after))
        elif not after.missed and _saves(step, present, after):
            crowded = judge(other, _replace(observed, rates=dict(later)))
            if crowded is not None and not crowded.missed:
                asks.append(Ask(step, Reason.COST, present, after))
    return min(asks, key=_preference, default=None)


def _price(spec: SchedulerSpec) -> float:
    return sum(each.price for each in spec.partitions)


def _relieves(before: Judgement, after: Judgement) -> bool:
    if len(after.missed) == len(before.missed):
        return after.overload <= (1 - MARGIN) * before.overload
    return len(after.missed) < len(before.missed)


def _saves(step: CoreStep, before: Judgement, after: Judgement) -> bool:
    if not before.cost:
        return step.cores < 0 and not after.cost
    return after.cost < (1 - MARGIN) * before.cost


def _preference(ask: Ask) -> tuple[int, float, bool, float]:
    overload = ask.after.overload if ask.after.missed else 1.0
    return len(ask.after.missed), overload, not ask.step.free, ask.after.cost


def _distinct(spec: SchedulerSpec, observed: Observed, candidates: Iterable[Split]) -> list[Split]:
    """The candidates that differ in more than the names of partitions, up to `MAX_STEPS`."""
    present = {each.name: each for each in spec.partitions}
    found: dict[object, Split] = {}
    for candidate in candidates:
        alike = tuple(
            (_replace(present[each.name], name=""), _replace(each, name=""), observed.held.get(each.name))
            for each in candidate.partitions
        )
        found.setdefault((candidate.step.free, alike), candidate)
    return list(found.values())[:MAX_STEPS]
