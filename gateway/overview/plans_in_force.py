"""The answer of `GET /v2/sluice/plan`: the plans in force, in the words of `sluice plan`, with what led to them.

It takes milliseconds, and more with many models, so it is put together in a thread.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from sluice.batcher.interface.config import PipelineConfig, SchedulerSpec
from sluice.batcher.interface.plan_data import Observed, PipelinePlan
from sluice.batcher.planner.build import SELDOM, residency_of
from sluice.batcher.planner.demand import demand_table
from sluice.batcher.scheduler.replanner import PlanInForce
from sluice.gateway.overview.plans import figures_of, forecast, planned, rule_in_force
from sluice.gateway.what_if.answer import PER, PlannedConfiguration
from sluice.gateway.what_if.planning import RateScenario, WhatIf
from sluice.models.errors import ConfigError
from sluice.models.spec import public_key
from sluice.models.units import NS_PER_S, ns_to_ms


def report(
    spec: SchedulerSpec, in_force: PlanInForce | None, names: Sequence[str], offset_ns: int, *, with_limits: bool
) -> dict[str, Any]:
    """The plans of pipelines, `names` of the scheduler; `offset_ns` is the time of day at 0 of the clock.

    The highest rate, which takes longest, is only looked for `with_limits`.
    """
    configs = {config.name: config for config in spec.pipelines}
    known = [configs[name] for name in names if name in configs]
    about: dict[str, Any] = {
        "in_force": in_force is not None,
        "built_s": None,
        "planner": spec.planner.name,
        "replan": spec.planner.replan,
        "partitions": {},
        "residency": {},
        "latencies": [],
    }
    if in_force is None:
        return {**about, "pipelines": [_begin(config, None) for config in known]}
    observed = in_force.observed
    scenarios = None if with_limits else _Scenarios(spec, observed)
    found = [_report(spec, in_force, config, scenarios) for config in known]
    used = {(stage["model"], stage["kind"]) for each in found if each["plan"] for stage in each["plan"]["stages"]}
    about["built_s"] = round((in_force.since_ns + offset_ns) / NS_PER_S, 3)
    about["partitions"] = Counter(each.kind for each in spec.partitions if not observed.up or each.name in observed.up)
    about["residency"] = in_force.plan.residency
    about["latencies"] = [
        {"model": public_key(model), "kind": kind, "ms_by_rows": {str(n): ns_to_ms(ns) for n, ns in table.cells}}
        for model, kinds in observed.tables.items()
        for kind, table in kinds.items()
        if (public_key(model), kind) in used
    ]
    return {**about, "pipelines": found}


class _Scenarios:
    """All pipelines at the rates that were observed, which share the demand for models."""

    def __init__(self, spec: SchedulerSpec, observed: Observed) -> None:
        self._spec = spec
        self._observed = observed
        self._residency = residency_of(spec, observed)
        self._demand = demand_table(spec, observed, self._residency)

    def figures(self, config: PipelineConfig, plan: PipelinePlan) -> PlannedConfiguration | None:
        """The figures of a plan; None if the latencies do not allow it any more."""
        what_if = WhatIf.beside_others(self._spec, self._observed, config, 1 - SELDOM)
        rate = self._observed.rates.get(config.name, 0.0)
        try:
            return figures_of(RateScenario(what_if, self._demand, self._residency, rate), config, plan)
        except (ConfigError, KeyError):  # the models or partitions are others by now; the next plan will know
            return None


def _begin(config: PipelineConfig, in_force: PlanInForce | None) -> dict[str, Any]:
    """A pipeline without its plan."""
    plan, reason = planned(in_force, config)
    seen = None if in_force is None else in_force.observed.probabilities.get(config.name, (1.0,) * len(config.stages))
    return {
        "pipeline": public_key(config.name),
        "slo_ms": ns_to_ms(config.slo_ns) if config.slo_ns else None,
        "percentile": config.percentile,
        "rate": None if in_force is None else in_force.observed.rates.get(config.name, 0.0),
        "reason": reason,
        "feasible": plan is not None and plan.feasible,
        "plan": None,
        "highest_rate": None,
        "probabilities": seen and {stage.name: share for stage, share in zip(config.stages, seen, strict=True)},
    }


def _report(
    spec: SchedulerSpec, in_force: PlanInForce, config: PipelineConfig, scenarios: _Scenarios | None
) -> dict[str, Any]:
    """A pipeline with its plan; with its highest rate unless there are `scenarios`."""
    shown = _begin(config, in_force)
    plan, _ = planned(in_force, config)
    if plan is None:
        return shown
    if scenarios is None:
        predicted = forecast(spec, in_force, config, plan)
        shown["highest_rate"] = predicted.highest_rate
        configuration = predicted.configuration
    else:
        configuration = scenarios.figures(config, plan)
    shown["plan"] = _as_planned(config, plan) if configuration is None else msgspec.to_builtins(configuration)
    for stage, chosen in zip(shown["plan"]["stages"], plan.stages, strict=True):
        stage["model"] = public_key(stage["model"])
        stage["rule"] = rule_in_force(chosen)
    return shown


def _as_planned(config: PipelineConfig, plan: PipelinePlan) -> dict[str, Any]:
    """The figures of the plan itself, where the others cannot be found again."""
    stages = [
        {
            "stage": stage.name,
            "model": each.model,
            "kind": each.kind,
            "batch": each.batch,
            "p99_ms": ns_to_ms(each.latency_ns),
        }
        for stage, each in zip(config.stages, plan.stages, strict=True)
    ]
    return {"stages": stages, "p50_ms": None, "p99_ms": ns_to_ms(plan.latency_ns), "cost_per_1000": plan.cost * PER}
