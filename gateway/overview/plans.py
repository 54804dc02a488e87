"""The plan in force, in the words of `sluice plan`: the figures of what was chosen, and the highest rate.

The functions that compute them take milliseconds, so they run in a thread, and only for pipelines that somebody looks
at.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from sluice.batcher.interface.config import PipelineConfig, SchedulerSpec
from sluice.batcher.interface.plan_data import FixedOption, GroupSearch, PipelinePlan, StagePlan
from sluice.batcher.planner.build import SELDOM
from sluice.batcher.scheduler.replanner import PlanInForce
from sluice.gateway.overview.pieces import rounded
from sluice.gateway.overview.sampled import Sampled
from sluice.gateway.what_if.answer import PlannedConfiguration
from sluice.gateway.what_if.figures import PlanFigures
from sluice.gateway.what_if.planning import RateScenario, WhatIf
from sluice.models.errors import ConfigError
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.units import ns_to_ms

PRECISION = 0.01
"""Relative precision of the highest rate: that of `sluice plan` would take twice as long."""
NO_OBJECTIVE = "it has no latency objective, so nothing is planned for it"
NO_PLAN = "no plan has been built yet"
NO_LATENCIES = "no partition has loaded models for all of its stages yet"
NOT_FEASIBLE = (
    "no configuration meets the objective at this rate; this one is the quickest, or best for what is admitted"
)


class PlanForecast(msgspec.Struct, frozen=True):
    """The prediction for a `pipeline` of the scheduler by the plan that is in force since `since_ns`.

    `highest_rate` is the highest rate, in rows a second, at which a configuration meets the objective while the other
    pipelines have the rates of the plan: that of `sluice plan`. It and the configuration are None where the present
    latencies do not allow the plan any more.
    """

    pipeline: str
    since_ns: int
    configuration: PlannedConfiguration | None
    highest_rate: float | None

    def is_of(self, plan: PipelinePlan) -> bool:
        """True if the configuration is that of a plan, which may be a later one."""
        if self.configuration is None:
            return False
        ours = [(each.model, each.batch, each.kind) for each in self.configuration.stages]
        return ours == [(each.model, each.batch, each.kind) for each in plan.stages]


class PlanFound(NamedTuple):
    """The plan of a pipeline at the `rate` (rows a second) that it was made for, in force since `since_ns`.

    Without a `plan` there is a `reason`; one that misses its objective has a reason, too.
    """

    plan: PipelinePlan | None
    reason: str
    since_ns: int = 0
    rate: float = 0.0
    forecast: PlanForecast | None = None


class PlanBoard:
    """The plans of pipelines, and the forecasts that have been computed for them."""

    def __init__(self, sampled: Sampled) -> None:
        self._sampled = sampled
        self._forecasts: dict[str, PlanForecast] = {}

    def of(self, pipeline: Pipeline) -> PlanFound | None:
        """The plan of a pipeline; None for one that the scheduler does not know yet."""
        state = self._sampled.state(pipeline)
        if state is None:
            return None
        in_force = self._in_force
        plan, reason = planned(in_force, state.config)
        if in_force is None or plan is None:
            return PlanFound(None, reason)
        name = state.config.name
        rate = in_force.observed.rates.get(name, 0.0)
        return PlanFound(plan, reason, in_force.since_ns, rate, self._forecasts.get(name))

    def headroom(self, pipeline: Pipeline) -> float | None:
        """The factor by which all traffic may grow before the pipeline misses its objective; None if not known."""
        return self._sampled.sources.headrooms().get(pipeline.key)

    def next_forecast(self) -> Callable[[], PlanForecast] | None:
        """Computes a forecast that is missing for a pipeline that somebody looks at, beside the loop; None if none is.

        `take` is to get it.
        """
        scheduler, in_force = self._sampled.sources.scheduler, self._in_force
        if in_force is None:
            return None
        self._forecasts = {name: each for name, each in self._forecasts.items() if name in scheduler.pipelines}
        for name in reversed(self._sampled.chosen):
            pipeline = self._sampled.served.get(name)
            state = None if pipeline is None else self._sampled.state(pipeline)
            if state is None or not state.config.slo_ns:
                continue
            known = self._forecasts.get(state.config.name)
            if known is not None and known.since_ns == in_force.since_ns:
                continue
            plan, _ = planned(in_force, state.config)
            if plan is not None:
                return partial(forecast, scheduler.spec, in_force, state.config, plan)
        return None

    def take(self, predicted: PlanForecast) -> None:
        """Show a forecast from now on."""
        self._forecasts[predicted.pipeline] = predicted

    @property
    def _in_force(self) -> PlanInForce | None:
        return self._sampled.sources.scheduler.served.replanner.in_force


def planned(in_force: PlanInForce | None, config: PipelineConfig) -> tuple[PipelinePlan | None, str]:
    """The plan of a pipeline, or the reason why there is none; a plan that misses its objective has a reason, too."""
    if not config.slo_ns:
        return None, NO_OBJECTIVE
    if in_force is None:
        return None, NO_PLAN
    found = next((each for each in in_force.plan.pipelines if each.pipeline == config.name), None)
    if found is None:
        return None, in_force.plan.failed.get(config.name, NO_LATENCIES)
    return found, "" if found.feasible else NOT_FEASIBLE


def forecast(spec: SchedulerSpec, in_force: PlanInForce, config: PipelineConfig, plan: PipelinePlan) -> PlanForecast:
    """The forecast for a pipeline; takes milliseconds, and more with many models."""
    rate = in_force.observed.rates.get(config.name, 0.0)
    what_if = WhatIf.beside_others(spec, in_force.observed, config, 1 - SELDOM)
    try:
        configuration = figures_of(what_if.at(rate), config, plan)
        highest = what_if.highest_rate(config.slo_ns, PRECISION)
    except (ConfigError, KeyError):  # the models or partitions are others by now; the next plan will know
        return PlanForecast(config.name, in_force.since_ns, None, None)
    return PlanForecast(config.name, in_force.since_ns, configuration, highest)


def rule_in_force(stage: StagePlan) -> dict[str, object] | None:
    """The rule that a planner has given a stage; None where size and kind are chosen at every dispatch."""
    match stage.rule:
        case FixedOption(rows, kind, wait_ns):
            return {"rule": "fixed", "rows": rows, "kind": kind, "wait_ms": rounded(ns_to_ms(wait_ns))}
        case GroupSearch(share):
            return {"rule": "search", "share": rounded(share)}
    return None


def figures_of(scenario: RateScenario, config: PipelineConfig, plan: PipelinePlan) -> PlannedConfiguration | None:
    """The figures of a plan at the rates of a scenario; None if it cannot be chosen there."""
    chosen = scenario.configured([(stage.model, stage.batch, stage.kind) for stage in plan.stages])
    return None if chosen is None else PlanFigures(scenario, config.slo_ns, set()).configuration(chosen)
