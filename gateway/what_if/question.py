"""The question of `sluice plan` and its answer: the plan, its alternatives and the limits."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sluice.batcher.planner.registry import DEFAULT, planner_named
from sluice.batcher.planner.stage_latency import RHO_MAX
from sluice.gateway.what_if.answer import (
    PER,
    Bottleneck,
    FrontPoint,
    Infeasible,
    LimitingFactor,
    PlanAnswer,
    PlannedConfiguration,
    RunnerUp,
    TableSource,
    TableUsed,
    percent,
)
from sluice.gateway.what_if.figures import PlanFigures
from sluice.gateway.what_if.planning import PRECISION, RateScenario, StageChoices, WhatIf
from sluice.models.units import ns_to_ms

_EXACT = "exact"
"""The name of the planner whose plans the answer is compared with."""
_EQUAL = 1e-9
"""Costs with a smaller relative difference are equal."""


class PlanQuestion(NamedTuple):
    """A question; `assumptions` and `tables` are repeated in the answer."""

    slo_ns: int
    rate: float
    planner: str = DEFAULT
    planner_settings: Mapping[str, object] = {}
    assumptions: tuple[str, ...] = ()
    tables: tuple[TableUsed, ...] = ()


def answer_question(what_if: WhatIf, question: PlanQuestion) -> PlanAnswer:
    """Find the plan, its alternatives and the limits; raises ConfigError if a model has no latencies."""
    slo_ns = question.slo_ns
    now = what_if.at(question.rate)
    simulated = {(each.model, each.kind) for each in question.tables if each.source is TableSource.SIMULATED}
    exact = now.alternatives(slo_ns) if now.fits(slo_ns) else []
    chosen = exact[0] if exact else None
    if exact and question.planner != _EXACT:
        chosen = now.best(planner_named(question.planner, question.planner_settings), question.planner, slo_ns)
    plan = PlanFigures(now, slo_ns, simulated).configuration(chosen or (exact[0] if exact else now.fastest))
    highest = what_if.highest_rate(slo_ns)
    return PlanAnswer(
        pipeline=now.pipeline.name,
        slo_ms=ns_to_ms(slo_ns),
        rate=question.rate,
        percentile=what_if.percentile * 100,
        planner=question.planner,
        partitions=dict(now.demand.partitions),
        residency=now.residency,
        simulated=bool(simulated),
        assumptions=question.assumptions,
        tables=question.tables,
        feasible=chosen is not None,
        plan=plan,
        front=() if now.overloaded else _front(now, slo_ns),
        runner_up=None if chosen is None else _runner_up(now, chosen, exact, slo_ns),
        bottleneck=_bottleneck(now),
        highest_rate=highest or None,
        limited_by=_limit(what_if, highest) if highest else None,
        lowest_slo_ms=None if now.overloaded else ns_to_ms(now.fastest.latency_ns),
        exact_cost_per_1000=exact[0].cost * PER if exact else None,
        infeasible=None if chosen else _infeasible(now, question, plan, highest, found=bool(exact)),
    )


def _front(now: RateScenario, slo_ns: int) -> tuple[FrontPoint, ...]:
    front = now.front(slo_ns)
    points = zip(front.within_ns, front.cost, strict=True)
    return tuple(FrontPoint(ns_to_ms(within_ns), cost * PER) for within_ns, cost in points)


def _runner_up(now: RateScenario, chosen: StageChoices, exact: Sequence[StageChoices], slo_ns: int) -> RunnerUp | None:
    """The best configuration with other figures: one that fits, else one that does not."""
    others = [*exact, *now.alternatives(now.unbounded_budget(slo_ns))]
    other = next((each for each in others if each[1:] != chosen[1:]), None)
    if other is None:
        return None
    stages = tuple(
        f"{stage.name}={new.option.model}*{new.option.batch}@{new.option.kind}"
        for stage, new, old in zip(now.pipeline.stages, other.candidates, chosen.candidates, strict=True)
        if new.option != old.option
    )
    return RunnerUp(stages, ns_to_ms(other.latency_ns), other.cost * PER, _why_lost(other, chosen, slo_ns))


def _why_lost(other: StageChoices, chosen: StageChoices, slo_ns: int) -> str:
    if other.latency_ns > slo_ns:
        return f"too slow by {ns_to_ms(other.latency_ns - slo_ns):.3f} ms"
    slower_ms = ns_to_ms(other.latency_ns - chosen.latency_ns)
    if abs(other.cost - chosen.cost) <= _EQUAL * max(other.cost, chosen.cost):
        if slower_ms > 0:
            return f"equal cost, slower by {slower_ms:.3f} ms"
        return f"equal cost, faster by {-slower_ms:.3f} ms; the planner missed it"
    if other.cost < chosen.cost:
        return f"cheaper by {1 - other.cost / chosen.cost:.1%}; the planner missed it"
    if not chosen.cost:
        return "more expensive: the plan costs nothing"
    return f"more expensive by {other.cost / chosen.cost - 1:.1%}"


def _bottleneck(now: RateScenario) -> Bottleneck:
    """The stage whose rows take most of the partitions' time; without traffic, the one that would."""
    demand = now.demand
    shares = [
        (demand.utilisation(stage.model, reach), index)
        for index, (stage, reach) in enumerate(zip(now.pipeline.stages, demand.reach[now.pipeline.name], strict=True))
        if stage.model is not None
    ]
    share, index = max(shares, key=lambda each: (each[0], -each[1]))
    stage = now.pipeline.stages[index]
    model = stage.model or ""
    capacity = sum(demand.capacities(model).values())
    return Bottleneck(stage.name, model, capacity, share * now.rate, demand.busiest)


def _limit(what_if: WhatIf, highest: float) -> LimitingFactor:
    beyond = what_if.at(highest * (1 + 2 * PRECISION))
    return LimitingFactor.CAPACITY if beyond.overloaded else LimitingFactor.LATENCY


def _infeasible(
    now: RateScenario, question: PlanQuestion, plan: PlannedConfiguration, highest: float, *, found: bool
) -> Infeasible:
    nearest_rate = highest or None
    if now.overloaded:
        bottleneck = _bottleneck(now)
        return Infeasible(
            bottleneck.stage,
            f"at {now.rate:.10g} requests/s all stages together take {percent(bottleneck.total_utilisation)} of the "
            f"partitions' time with their best batches, expected at most {RHO_MAX:.0%}; stage '{bottleneck.stage}' "
            f"takes most of it: {percent(bottleneck.utilisation)}",
            None,
            None if nearest_rate is None else now.rate - nearest_rate,
            None,
            nearest_rate,
        )
    quickest_ms = ns_to_ms(now.fastest.latency_ns)
    if found:
        reason = (
            f"planner {question.planner} finds no configuration that fits although one exists; the best one is shown"
        )
        return Infeasible("", reason, None, None, quickest_ms, nearest_rate)
    excess_ms = quickest_ms - ns_to_ms(question.slo_ns)
    most = max((stage for stage in plan.stages if stage.critical), key=lambda stage: stage.p99_ms or 0.0)
    return Infeasible(
        most.stage,
        f"the fastest configuration takes {quickest_ms:.3f} ms, {excess_ms:.3f} ms too long; "
        f"stage '{most.stage}' takes most of it: {most.p99_ms:.3f} ms",
        excess_ms,
        None,
        quickest_ms,
        nearest_rate,
    )
