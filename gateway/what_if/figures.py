"""The figures of a configuration: each stage's latency, cost and arithmetic, and the critical path."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

from sluice.batcher.interface.config import StageConfig
from sluice.batcher.interface.plan_data import CostToGo
from sluice.batcher.planner.problem.problem import Problem, StageProblem
from sluice.batcher.planner.stage_options import Candidate
from sluice.gateway.what_if.answer import PER, Arithmetic, PlannedConfiguration, StageAnswer
from sluice.gateway.what_if.planning import RateScenario, StageChoices
from sluice.models.units import ns_to_ms

_MEDIAN = 0.5


class PlanFigures:
    """Figures of configurations at one rate; `simulated` are the models and kinds with simulated latencies."""

    def __init__(self, now: RateScenario, slo_ns: int, simulated: set[tuple[str, str]]) -> None:
        self._now = now
        self._slo_ns = slo_ns
        self._simulated = simulated

    @cached_property
    def _problem(self) -> Problem:
        return self._now.problem(self._slo_ns)

    @cached_property
    def _costs_to_go(self) -> tuple[CostToGo, ...]:
        return self._now.costs_to_go(self._slo_ns)

    def configuration(self, chosen: StageChoices) -> PlannedConfiguration:
        """All figures; the latencies are None if the rate exceeds the capacity of a stage."""
        stages = self._problem.stages
        pairs = list(zip(chosen.candidates, stages, strict=True))
        begins, ends = _times(stages, [each.latency_ns if stage.on_path else 0 for each, stage in pairs])
        critical = _critical(stages, begins, ends)
        medians = [
            each.predicted.p50_ns if each.predicted and stage.probability > _MEDIAN else 0 for each, stage in pairs
        ]
        bounded = all(each.predicted for each in chosen.candidates)
        return PlannedConfiguration(
            tuple(
                self._stage(index, each, (begins[index], ends[index]), index in critical)
                for index, each in enumerate(chosen.candidates)
            ),
            ns_to_ms(max(_times(stages, medians)[1])) if bounded else None,
            ns_to_ms(chosen.latency_ns) if bounded else None,
            chosen.cost * PER,
        )

    def _stage(self, index: int, candidate: Candidate, span_ns: tuple[int, int], critical: bool) -> StageAnswer:
        problem, stage = self._problem.stages[index], self._now.pipeline.stages[index]
        option, predicted = candidate.option, candidate.predicted
        return StageAnswer(
            stage=stage.name,
            model=option.model,
            kind=option.kind,
            simulated=(option.model, option.kind) in self._simulated,
            batch=option.batch,
            rows=candidate.rows,
            probability=problem.probability,
            rate=problem.rate,
            counted=problem.on_path,
            critical=critical,
            p50_ms=ns_to_ms(predicted.p50_ns) if predicted else None,
            p99_ms=ns_to_ms(predicted.p99_ns) if predicted else None,
            cost_per_1000_rows=candidate.cost * PER,
            utilisation=predicted.utilisation if predicted else None,
            arithmetic=None if stage.model is None else self._arithmetic(index, stage, candidate, span_ns),
        )

    def _arithmetic(
        self, index: int, stage: StageConfig, candidate: Candidate, span_ns: tuple[int, int]
    ) -> Arithmetic | None:
        demand, option, predicted = self._now.demand, candidate.option, candidate.predicted
        if predicted is None:
            return None
        table = demand.tables[option.model][option.kind]
        moved = (stage.model or option.model, self._problem.stages[index].rate)
        begin_ns, end_ns = span_ns
        left_ns = self._slo_ns - end_ns
        rest = self._costs_to_go[index]
        step = bisect_right(rest.within_ns, left_ns) - 1
        return Arithmetic(
            kind_rate=demand.rate_on(option.model, option.kind, moved),
            servers=demand.servers(option.model, option.kind, moved),
            full_ms=ns_to_ms(option.service_ns),
            compute_ms=ns_to_ms(table.latency_ns(candidate.rows)),
            hand_off_ms=ns_to_ms(demand.spec.limits.hand_off_ns),
            rows99=predicted.rows99,
            compute99_ms=ns_to_ms(table.latency_ns(predicted.rows99)),
            fill99_ms=ns_to_ms(predicted.fill99_ns),
            queue99_ms=ns_to_ms(predicted.queue99_ns),
            running99_ms=ns_to_ms(predicted.running99_ns),
            beside99_ms=ns_to_ms(predicted.beside99_ns),
            price_per_s=demand.price[option.kind],
            begin_ms=ns_to_ms(begin_ns),
            left_ms=ns_to_ms(left_ns),
            rest_cost=rest.cost[step] if step >= 0 else None,
        )


def _times(stages: Sequence[StageProblem], spans_ns: Sequence[int]) -> tuple[list[int], list[int]]:
    """The start and end of each stage for the given durations."""
    begins: list[int] = []
    ends: list[int] = []
    for stage, span_ns in zip(stages, spans_ns, strict=True):
        begins.append(max((ends[source] for source in stage.sources), default=0))
        ends.append(begins[-1] + span_ns)
    return begins, ends


def _critical(stages: Sequence[StageProblem], begins: Sequence[int], ends: Sequence[int]) -> set[int]:
    """The stages on the critical path, without those that take no time."""
    at: int | None = max(range(len(stages)), key=ends.__getitem__)
    critical = set()
    while at is not None:
        if ends[at] > begins[at]:
            critical.add(at)
        at = max(stages[at].sources, key=ends.__getitem__, default=None)
    return critical
