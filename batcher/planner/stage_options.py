"""The options of a stage: latency and cost of every batch size on every kind of partition at the present rates."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sluice.batcher.interface.config import PipelineConfig, StageConfig
from sluice.batcher.planner.demand import DemandTable, waits_for
from sluice.batcher.planner.problem.graph import Sources, ancestors
from sluice.batcher.planner.problem.problem import Option, Problem, StageProblem
from sluice.batcher.planner.stage_latency import LONGEST_WAIT_NS, StageLatency, stage_latency
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S


class Candidate(NamedTuple):
    """An option of a stage, its latency (the 99th percentile, waits included) and the cost of a row.

    `predicted` is None if the partitions cannot take the rate; then the latency is that of the batch alone.
    """

    option: Option
    predicted: StageLatency | None
    latency_ns: int
    cost: float

    @property
    def rows(self) -> int:
        """The size of a typical batch."""
        return self.option.batch if self.predicted is None else self.predicted.rows


_MEDIAN, _TAIL = 0.5, 0.99

COMBINED = Candidate(Option("", 1, "", 1, 1.0, 0), StageLatency(0, 0, 0.0, 1), 0, 0.0)
"""The one candidate of a combiner, which takes no time on any partition."""


def pipeline_candidates(demand: DemandTable, pipeline: PipelineConfig) -> list[list[Candidate]]:
    """For each stage the candidates that can take the rate; if none can, all candidates.

    Stages that run at the same time wait for each other if there are fewer partitions than stages. Raises ConfigError,
    which names the stage, if no latency of any of its models is known.
    """
    alone = [
        [COMBINED] if stage.model is None else _candidates(demand, stage, (stage.model, rate), pipeline.slo_ns)
        for stage, rate in zip(pipeline.stages, demand.stage_rates[pipeline.name], strict=True)
    ]
    sources = tuple(map(waits_for, pipeline.stages))
    beside = _siblings(sources, tuple(stage.model is not None for stage in pipeline.stages))
    if not any(beside):
        return alone
    waits = _SiblingWaits(demand, sources, demand.reach[pipeline.name], alone)
    return [
        [waits.added(index, each, beside[index]) for each in choices] if beside[index] else choices
        for index, choices in enumerate(alone)
    ]


class _Sibling(NamedTuple):
    """A stage that is neither before nor after another one, which `part` of its time delays.

    It delays a path through the pipeline once, not every stage of the path: stages of one path share the delay.
    """

    stage: int
    part: float


@lru_cache(maxsize=256)
def _siblings(sources: Sources, counted: tuple[bool, ...]) -> tuple[tuple[_Sibling, ...], ...]:
    """For each stage the stages beside it; stages that are not `counted` take no time. O(stages^3)."""
    before = [frozenset(stages) for stages in ancestors(sources)]
    stages = [stage for stage, counts in enumerate(counted) if counts]
    found: list[list[_Sibling]] = [[] for _ in sources]
    for stage in stages:
        beside = [each for each in stages if each != stage and each not in before[stage] and stage not in before[each]]
        # The most stages of one path through a stage, among the stages beside.
        upto: dict[int, int] = {}
        for each in beside:
            upto[each] = 1 + max((upto[other] for other in before[each] if other in upto), default=0)
        onwards: dict[int, int] = {}
        for each in reversed(beside):
            onwards[each] = 1 + max((count for other, count in onwards.items() if each in before[other]), default=0)
        for each in beside:
            found[each].append(_Sibling(stage, 1 / (upto[each] + onwards[each] - 1)))
    return tuple(map(tuple, found))


def _at_once(sources: Sources, stages: Collection[int]) -> int:
    """An upper bound of the stages that may run at the same time, exact unless paths cross."""
    before = ancestors(sources)
    lasts: list[int] = []
    for stage in sorted(stages):
        previous = next((way for way, last in enumerate(lasts) if last in before[stage]), None)
        if previous is None:
            lasts.append(stage)
        else:
            lasts[previous] = stage
    return len(lasts)


class _SiblingWaits:
    """The waits of stages for other stages of the same request; `alone` are all candidates without these waits.

    When a request reaches several stages at once, the batches of all run on the same partitions, and a stage may be the
    last of them. The others are assumed to run in their quickest options, or in one batch with the stage if they have
    the same model.
    """

    def __init__(
        self, demand: DemandTable, sources: Sources, reach: Sequence[float], alone: Sequence[Sequence[Candidate]]
    ) -> None:
        self._demand = demand
        self._sources = sources
        self._reach = reach
        self._quickest: list[dict[str, Candidate]] = []
        for choices in alone:
            slowest_first = sorted(choices, key=lambda each: each.latency_ns, reverse=True)
            self._quickest.append({each.option.kind: each for each in slowest_first})
        self._known: dict[tuple[int, str, str, float], tuple[int, float, int]] = {}

    def added(self, stage: int, candidate: Candidate, beside: Sequence[_Sibling]) -> Candidate:
        """A candidate of a stage, with the waits for the stages beside it."""
        alone = candidate.predicted
        if alone is None:
            return candidate
        wait50_ns = self._wait_ns(stage, candidate.option, alone.rows, beside, _MEDIAN)
        wait99_ns = self._wait_ns(stage, candidate.option, alone.rows99, beside, _TAIL)
        p50_ns = alone.p50_ns + wait50_ns
        # Rows that join a large batch may make it quicker than a typical one.
        p99_ns = max(alone.p99_ns + wait99_ns, p50_ns)
        predicted = alone._replace(p50_ns=p50_ns, p99_ns=p99_ns, beside99_ns=p99_ns - alone.p99_ns)
        return candidate._replace(predicted=predicted, latency_ns=predicted.p99_ns)

    def _wait_ns(self, stage: int, option: Option, rows: int, beside: Sequence[_Sibling], percentile: float) -> int:
        key = stage, option.model, option.kind, percentile
        if key not in self._known:
            self._known[key] = self._met(option, beside, percentile)
        others, work_ns, alike = self._known[key]

        def service_ns(rows: int) -> int:
            return self._demand.service_ns(option.model, option.kind, rows)

        together = rows + alike
        further = -(-together // option.batch) - 1
        larger_ns = max(service_ns(min(together, option.batch)) - service_ns(rows), 0)
        if 1 + others + further <= option.servers:
            return larger_ns
        return larger_ns + round((work_ns + further * service_ns(option.batch)) / option.servers)

    def _met(self, option: Option, beside: Sequence[_Sibling], percentile: float) -> tuple[int, float, int]:
        """The number of stages beside the option that run at once, their time, and the rows of the same model.

        Stages that too few requests reach for this percentile do not count.
        """
        others: list[int] = []
        work_ns = alike = 0.0
        for stage, part in beside:
            other = self._quickest[stage].get(option.kind)
            if other is None or other.predicted is None or self._reach[stage] <= 1 - percentile:
                continue
            if other.option.model == option.model:
                alike += part
            elif share := self._demand.met(option.model, other.option.model, option.kind):
                rows = other.predicted.rows if percentile == _MEDIAN else other.predicted.rows99
                work_ns += part * share * self._demand.service_ns(other.option.model, option.kind, rows)
                others.append(stage)
        return _at_once(self._sources, others), work_ns, math.ceil(alike)


def problem_of(
    demand: DemandTable,
    pipeline: PipelineConfig,
    candidates: Sequence[Sequence[Candidate]],
    budget_ns: int,
    percentile: float = 1.0,
) -> Problem:
    """The problem of choosing one of the candidates of each stage.

    With a `percentile` below 1, stages that more than this share of the requests skip take no time.
    """
    stages = []
    for index, (stage, choices) in enumerate(zip(pipeline.stages, candidates, strict=True)):
        reach = demand.reach[pipeline.name][index]
        stages.append(
            StageProblem(
                stage.name,
                np.array([each.latency_ns for each in choices], np.int64),
                np.array([each.cost for each in choices], np.float64),
                tuple(each.option for each in choices),
                waits_for(stage),
                reach,
                reach > 1 - percentile,
                demand.stage_rates[pipeline.name][index],
            )
        )
    return Problem(tuple(stages), budget_ns)


def without_waits(demand: DemandTable, problem: Problem) -> Problem:
    """The same problem, in which a stage takes the time and the cost of a full batch, as they are once it runs."""
    return replace(problem, stages=tuple(_without_waits(demand, stage) for stage in problem.stages))


def _without_waits(demand: DemandTable, stage: StageProblem) -> StageProblem:
    if not stage.options[0].model:  # a combiner
        return stage
    hand_off_ns = demand.spec.limits.hand_off_ns
    return replace(
        stage,
        latency_ns=np.array([option.service_ns + hand_off_ns for option in stage.options], np.int64),
        cost=np.array(
            [demand.price[each.kind] * each.service_ns / NS_PER_S / each.batch for each in stage.options], np.float64
        ),
    )


def _candidates(demand: DemandTable, stage: StageConfig, moved: tuple[str, float], slo_ns: int) -> list[Candidate]:
    """The candidates of a stage; `moved` rows a second are those of its first variant."""
    variants = stage.variants or (moved[0],)
    found = [
        candidate
        for model in variants
        for kind in demand.hosts[model]
        for candidate in _on_kind(demand, model, kind, moved, slo_ns)
    ]
    if not found:
        models = " or ".join(variants)
        if any(demand.partitions.keys() & demand.tables.get(model, {}) for model in variants):
            raise ConfigError(f"stage '{stage.name}': no partition that is up holds model {models}, or has room for it")
        raise ConfigError(f"stage '{stage.name}': no latencies are known of model {models} on any partition")
    return [each for each in found if each.predicted is not None] or found


def _on_kind(demand: DemandTable, model: str, kind: str, moved: tuple[str, float], slo_ns: int) -> list[Candidate]:
    """The candidates of a model on a kind; without an objective (`slo_ns` 0), batches fill however long it takes."""
    table, hosts = demand.tables[model][kind], demand.hosts[model][kind].partitions
    rate = demand.rate_on(model, kind, moved)
    servers = demand.servers(model, kind, moved)
    wait_ns = demand.models[model].policy.longest_wait_ns(rate)
    within_ns = slo_ns or LONGEST_WAIT_NS

    def service_ns(rows: int) -> int:
        return demand.service_ns(model, kind, rows)

    found = []
    for batch in demand.sizes(model, kind):
        option = Option(model, batch, kind, hosts, demand.share[kind], table.latency_ns(batch))
        predicted = None
        if servers > 0:
            predicted = stage_latency(service_ns, batch, rate, servers, wait_ns, within_ns=within_ns)
            if predicted is not None and kind in demand.ways:
                predicted = predicted._replace(
                    p50_ns=predicted.p50_ns + demand.return_ns(model, kind, predicted.rows),
                    p99_ns=predicted.p99_ns + demand.return_ns(model, kind, predicted.rows99),
                )
        latency_ns = service_ns(batch) + demand.return_ns(model, kind, batch) if predicted is None else predicted.p99_ns
        rows = batch if predicted is None else predicted.rows
        cost = demand.price[kind] * table.latency_ns(rows) / NS_PER_S / rows
        found.append(Candidate(option, predicted, latency_ns, cost))
    return found
