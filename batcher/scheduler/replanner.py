"""Replanning: watches the input of plans, and orders a new plan when it has changed."""

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.fleet.speed import outdate
from sluice.batcher.interface.decisions import BuildPlan
from sluice.batcher.interface.plan_data import Observed, Plan, Way
from sluice.batcher.state import UNAVAILABLE_NS, ModelState, PipelineState, StageState
from sluice.models.units import INFINITE_NS, NS_PER_S

REVIEW_NS = NS_PER_S
"""Time between two reviews of the rates."""
RETRY_NS = NS_PER_S
"""A plan that was given up is ordered again after this time, and after twice as long each time."""
RETRIES = 6
"""The most orders of a plan that is given up each time, until its input moves."""
RATE_CHANGE = 0.25
"""Relative change of a pipeline's rate that calls for a new plan."""
CHANCE = 3
"""A rate must change by this many standard deviations of a second's count, since small counts vary."""
PROBABILITY_CHANGE = 0.05
CORRECTION_CHANGE = 0.2


class PlanInForce(NamedTuple):
    """The plan that the pipelines follow, what it was made from, and when it was applied (ns)."""

    plan: Plan
    observed: Observed
    since_ns: int


class Replanner:
    """Decides when a new plan is built, and applies plans to the pipelines.

    One plan is built at a time. From `next_ns` on, any wake-up calls `review`: rates and latencies change only with
    events. With `for_objectives`, plans do not place models, and only pipelines with an
    objective use them. With `once`, a plan at a rate stands until partitions or models change. `in_force` is None
    before the first plan.
    """

    def __init__(
        self, fleet: Fleet, pipelines: dict[str, PipelineState], *, for_objectives: bool = False, once: bool = False
    ) -> None:
        self._for_objectives = for_objectives
        self._moved = _came_up if once else _moved
        self._needed = not for_objectives or _have_objectives(pipelines.values())
        self._fleet = fleet
        self._pipelines = pipelines
        self.in_force: PlanInForce | None = None
        self._branching = _branching(pipelines)
        self._planned: Observed | None = None
        self._building: int | None = None
        self._next_build = 1
        self._outdated = False
        self._void: int | None = None
        self._refused: set[str] = set()
        self._due_ns: int | None = None
        self._given_up = 0  # plans in a row
        self._retry_ns: int | None = None
        self._reviewed_ns = 0
        self.next_ns = 0

    @property
    def wake_ns(self) -> int | None:
        """When a review needs a wake-up: for an outdated or given up plan, refused requests or a lost partition.

        None without any of these, and while a plan is being built.
        """
        if self._due_ns is None or self._building is not None:
            return None
        return max(self._due_ns, self.next_ns)

    def refused(self, pipeline: str) -> None:
        """Record that a request was refused for want of a model on any partition: a plan may place it."""
        self._refused.add(pipeline)
        self._due_ns = 0

    def changed(self) -> None:
        """Request a new plan after a change of partitions or of their models."""
        self._outdated = True
        self._due_ns = self.next_ns = 0
        self.stand_in()

    def redefined(self) -> None:
        """Request a new plan after a change of the pipelines or models; a plan in progress is dropped."""
        self._void = self._building
        self._needed = not self._for_objectives or _have_objectives(self._pipelines.values())
        self._branching = _branching(self._pipelines)
        self.changed()

    def stand_in(self) -> None:
        """Until the next plan, replace missing variants by variants on some partition."""
        for pipeline in self._pipelines.values():
            for stage in pipeline.stages:
                if stage.config.variants and stage.model is not None and not stage.model.served:
                    held = (self._fleet.models[key] for key in stage.config.variants)
                    if (variant := next((model for model in held if model.served), None)) is not None:
                        _run(stage, variant)
                        outdate(pipeline)

    def review(self, now_ns: int) -> BuildPlan | None:
        """The order to build a new plan, if one is due."""
        if self._building is not None:
            self.next_ns = now_ns + REVIEW_NS
            return None
        if not self._needed:
            self.next_ns = now_ns + REVIEW_NS
            self._due_ns = None
            return None
        elapsed_ns = now_ns - self._reviewed_ns
        if elapsed_ns < REVIEW_NS and not self._outdated:
            self.next_ns = self._reviewed_ns + REVIEW_NS
            return None
        observed = self.observe(now_ns, elapsed_ns if elapsed_ns >= REVIEW_NS else None)
        moved = self._outdated or self._planned is None or self._moved(self._planned, observed, self._refused)
        if moved:
            self._given_up, self._retry_ns = 0, None
        elif self._retry_ns is not None and now_ns >= self._retry_ns:
            moved, self._retry_ns = True, None
        if elapsed_ns >= REVIEW_NS:
            self._reviewed_ns = now_ns
            self._refused.clear()
        self.next_ns = now_ns + REVIEW_NS
        upcoming = [gone_ns for gone_ns in self._gone_ns().values() if gone_ns > now_ns]
        if self._retry_ns is not None:
            upcoming.append(self._retry_ns)
        self._due_ns = 0 if self._refused else min(upcoming, default=None)
        if not moved:
            return None
        self._outdated = False
        self._planned = observed
        self._building = self._next_build
        self._next_build += 1
        return BuildPlan(self._building, observed)

    def built(self, build: int, plan: Plan | None, now_ns: int) -> Plan | None:
        """Apply a plan and return it; None if it was given up, or is for an earlier set of pipelines.

        One that was given up is ordered again, at most `RETRIES` times.
        """
        assert build == self._building, f"plan {build} was not asked for"
        self._building = None
        if build == self._void:
            self.next_ns = 0
            return None
        if plan is None:
            if self._given_up < RETRIES:
                self._retry_ns = now_ns + (RETRY_NS << self._given_up)
                self._due_ns = self._retry_ns if self._due_ns is None else min(self._due_ns, self._retry_ns)
                self._given_up += 1
            return None
        self._given_up, self._retry_ns = 0, None
        for planned in plan.pipelines:
            pipeline = self._pipelines[planned.pipeline]
            for stage, stage_plan in zip(pipeline.stages, planned.stages, strict=True):
                stage.cost_to_go = stage_plan.rest
                stage.rule = stage_plan.rule
                stage.plan_changes += 1
                if stage.model is not None and stage_plan.model != stage.model.config.key:
                    chosen = self._fleet.models[stage_plan.model]
                    if chosen.served:
                        _run(stage, chosen)
            outdate(pipeline)
        if self._planned is not None:
            self.in_force = PlanInForce(plan, self._planned, now_ns)
        return plan

    def _gone_ns(self) -> dict[str, int]:
        """When plans stop counting on each lost partition."""
        return {
            name: 0 if partition.lost_ns is None else partition.lost_ns + UNAVAILABLE_NS
            for name, partition in self._fleet.partitions.items()
            if not partition.ready and (partition.is_scaled or partition.lost_ns is not None)
        }

    def _ways(self) -> dict[str, Way]:
        """The ways to the partitions on other nodes; those to equal partitions are taken to be as slow."""
        ways = {
            group: Way(group.link.text, group.round_trip_ns, group.ns_per_byte)
            for group in self._fleet.groups
            if group.link.distance
        }
        return {
            name: ways[partition.group]
            for name, partition in self._fleet.partitions.items()
            if ways and partition.group in ways
        }

    def observe(self, now_ns: int, elapsed_ns: int | None = None) -> Observed:
        """The input of a plan, with the rates over `elapsed_ns`, or without it the rates of the last plan."""
        rates = {} if self._planned is None else dict(self._planned.rates)
        if elapsed_ns is not None:
            rates = {
                name: pipeline.rate.take(pipeline.arrived_rows, elapsed_ns)
                for name, pipeline in self._pipelines.items()
            }
        held = {group: tuple(sorted(group.models)) for group in self._fleet.groups}
        return Observed(
            {
                key: {kind: estimate.table for kind, estimate in model.estimates.items()}
                for key, model in self._fleet.models.items()
                if model.estimates
            },
            rates,
            {name: tuple(stage.run_probability for stage in self._pipelines[name].stages) for name in self._branching},
            {
                name: () if partition.group is None else held[partition.group]
                for name, partition in self._fleet.partitions.items()
            },
            tuple(
                name for name, partition in self._fleet.partitions.items() if partition.ready and not partition.closed
            ),
            tuple(name for name, gone_ns in self._gone_ns().items() if gone_ns <= now_ns),
            self._ways(),
        )


class NoReplanner:
    """Replaces `Replanner` in a scheduler without a planner: no plan is ever built."""

    def __init__(self) -> None:
        self.in_force: PlanInForce | None = None
        self.wake_ns: int | None = None
        self.next_ns = INFINITE_NS

    def refused(self, pipeline: str) -> None:
        """No plan can place the model."""

    def changed(self) -> None:
        """No plan can be outdated."""

    def redefined(self) -> None:
        """No plan can be outdated."""

    def stand_in(self) -> None:
        """Stages run their configured variants."""

    def review(self, now_ns: int) -> BuildPlan | None:
        """No plan is built."""

    def built(self, build: int, plan: Plan | None, now_ns: int) -> Plan | None:
        """Not called: only a scheduler with a planner asks for plans."""
        raise AssertionError("a scheduler without a planner asks for no plan")


def _run(stage: StageState, model: ModelState) -> None:
    """Run the stage with `model`, one of its variants, for requests that reach it from now on."""
    stage.model = model
    stage.plan_changes += 1


def _have_objectives(pipelines: Iterable[PipelineState]) -> bool:
    return any(pipeline.config.slo_ns for pipeline in pipelines)


def _branching(pipelines: dict[str, PipelineState]) -> list[str]:
    """The pipelines with stages that do not run for all rows."""
    return [
        name for name, pipeline in pipelines.items() if any(stage.config.when is not None for stage in pipeline.stages)
    ]


def _came_up(before: Observed, now: Observed, refused: Collection[str]) -> bool:
    """True if partitions have gone, or a pipeline has its first rows."""
    return now.gone != before.gone or any(rate and not before.rates.get(name) for name, rate in now.rates.items())


def _moved(before: Observed, now: Observed, refused: Collection[str]) -> bool:
    """True if the input of a plan has changed by more than a threshold.

    Every change of the rate counts for pipelines with `refused` requests and a rate near zero.
    """
    if now.gone != before.gone:
        return True
    for name, rate in now.rates.items():
        known = before.rates.get(name, 0.0)
        if rate == known:
            continue
        by_chance = 0.0 if name in refused and known < 1 else CHANCE * math.sqrt(max(rate, known, 1.0))
        if abs(rate - known) > max(RATE_CHANGE * known, by_chance):
            return True
    for name, probabilities in now.probabilities.items():
        pairs = zip(probabilities, before.probabilities.get(name, ()), strict=False)
        if any(abs(new - old) > PROBABILITY_CHANGE for new, old in pairs):
            return True
    for key, tables in now.tables.items():
        for kind, table in tables.items():
            known_table = before.tables.get(key, {}).get(kind)
            if known_table is table:
                continue
            if known_table is None or len(known_table.cells) != len(table.cells):
                return True
            cells = zip(table.cells, known_table.cells, strict=True)
            if any(abs(new - old) > CORRECTION_CHANGE * old for (_, new), (_, old) in cells):
                return True
    return False
