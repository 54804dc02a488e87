"""The options of a stage: what every batch size on every kind of partition would take and cost at the present rates."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from batcher.config import Objective, PipelineConfig, PolicyConfig, PolicyName, SchedulerSpec, StageConfig
from batcher.planner.problem import Option, Problem, StageProblem
from batcher.planner.stage_latency import StageLatency, stage_latency
from batcher.plans import Observed
from models.errors import ConfigError
from models.units import NS_PER_S


class Candidate(NamedTuple):
    """An option of a stage, its latency (the 99th percentile, waits included) and the cost of a row.

    `predicted` is None where the partitions cannot take the rate: then the latency is that of the batch alone.
    """

    option: Option
    predicted: StageLatency | None
    latency_ns: int
    cost: float

    @property
    def rows(self) -> int:
        """How large a typical batch is."""
        return self.option.batch if self.predicted is None else self.predicted.rows


COMBINED = Candidate(Option("", 1, "", 1, 1.0, 0), StageLatency(0, 0, 0.0, 1), 0, 0.0)
"""The one candidate of a combiner, which takes no time on any partition."""


class Demand:
    """What all pipelines together ask of the models, and what the partitions can do.

    `rates` are rows a second by model. `reach` is, by pipeline, the share of a request's rows that each stage runs for.
    A stage that may be run by several variants counts for the first of them. A model is spread over the kinds of
    partition that know it in proportion to what they can do of it.
    """

    def __init__(self, spec: SchedulerSpec, observed: Observed) -> None:
        self.spec = spec
        self.tables = observed.tables
        working = observed.up or tuple(partition.name for partition in spec.partitions)
        self.hosts = Counter(partition.kind for partition in spec.partitions if partition.name in working)
        self.price = {partition.kind: partition.price for partition in spec.partitions}
        self.share = {partition.kind: partition.share for partition in spec.partitions}
        self.models = {model.key: model for model in spec.models}
        self.reach = {pipeline.name: _reach(pipeline, observed) for pipeline in spec.pipelines}
        self.stage_rates: dict[str, list[float]] = {}
        self.rates = dict.fromkeys(self.models, 0.0)
        for pipeline in spec.pipelines:
            rate = observed.rates.get(pipeline.name, 0.0)
            self.stage_rates[pipeline.name] = [rate * share for share in self.reach[pipeline.name]]
            for stage, rows in zip(pipeline.stages, self.stage_rates[pipeline.name], strict=True):
                if stage.model is not None:
                    self.rates[stage.model] += rows
        self._capacities = {key: self._by_kind(key) for key in self.models}
        self._totals = {key: sum(kinds.values()) for key, kinds in self._capacities.items()}
        self._busy = dict.fromkeys(self.hosts, 0.0)
        self._lone = dict.fromkeys(self.hosts, 0.0)
        for key, kinds in self._capacities.items():
            for kind in kinds:
                self._busy[kind] += self.utilisation(key, self.rates[key])
                self._lone[kind] += self._lone_load(key, kind, self.rates[key])

    def capacities(self, model: str) -> dict[str, float]:
        """Rows a second that all partitions of a kind together could do of one model, by the kinds that know it."""
        return self._capacities[model]

    def utilisation(self, model: str, rate: float) -> float:
        """The share of all partitions' time that rows of a model take at best; more than 1 is more than they can do."""
        return rate / self._totals[model] if self._totals[model] else 0.0

    def sizes(self, model: str, kind: str) -> list[int]:
        """The batch sizes worth telling apart, ascending."""
        maximum = self.models[model].max_batch
        if self.models[model].policy.name is PolicyName.NONE:
            maximum = 1  # requests are not put together, and most have one row
        return sorted({min(size, maximum) for size, _ in self.tables[model][kind].cells})

    def servers(self, model: str, kind: str, moved: tuple[str, float]) -> float:
        """Partitions of a kind that a model can count on; `moved` are rows that another model has run so far.

        The others take what they need for rows one by one, if that leaves more than a share in proportion to what each
        needs at best. Then batches have grown until all fit, and together no more than all partitions are counted on.
        """
        first, rows = moved
        others = self._busy[kind] - self.utilisation(model, self.rates[model])
        lone = self._lone[kind] - self._lone_load(model, kind, self.rates[model])
        if first != model and kind in self._capacities[first]:
            others -= self.utilisation(first, rows)
            lone -= self._lone_load(first, kind, rows)
        own = self.utilisation(model, self._with(model, moved))
        least = own / (own + max(others, 0.0)) if own else 1.0 - others
        return max(self.hosts[kind] * min(least, 1.0), self.hosts[kind] - max(lone, 0.0), 0.0)

    def rate_on(self, model: str, kind: str, moved: tuple[str, float]) -> float:
        """Rows a second of a model that come to a kind."""
        return self._on(model, kind, self._with(model, moved))

    def _with(self, model: str, moved: tuple[str, float]) -> float:
        """Rows a second of a model: a variant that would take a stage over has them on top of what it runs anyhow."""
        first, rows = moved
        return self.rates[model] + (0.0 if model == first else rows)

    def _lone_load(self, model: str, kind: str, rate: float) -> float:
        """Partitions of a kind that rows of a model keep busy when they come one by one."""
        return self._on(model, kind, rate) * self.service_ns(model, kind, 1) / NS_PER_S

    def _on(self, model: str, kind: str, rate: float) -> float:
        return rate * self._capacities[model][kind] / self._totals[model]

    def service_ns(self, model: str, kind: str, rows: int) -> int:
        """Time of a batch, hand-off included."""
        return self.tables[model][kind].latency_ns(rows) + self.spec.limits.hand_off_ns

    def _by_kind(self, model: str) -> dict[str, float]:
        return {
            kind: self.hosts[kind]
            * max(rows * NS_PER_S / self.service_ns(model, kind, rows) for rows in self.sizes(model, kind))
            for kind in self.tables.get(model, {})
            if self.hosts[kind]
        }


def _reach(pipeline: PipelineConfig, observed: Observed) -> list[float]:
    probabilities = observed.probabilities.get(pipeline.name, (1.0,) * len(pipeline.stages))
    reach: list[float] = []
    for stage, probability in zip(pipeline.stages, probabilities, strict=True):
        reach.append(probability * min((reach[source] for source in _waits_for(stage)), default=1.0))
    return reach


def _waits_for(stage: StageConfig) -> tuple[int, ...]:
    return tuple(sorted(set(stage.sources) | ({stage.when.stage} if stage.when else set())))


def pipeline_candidates(demand: Demand, pipeline: PipelineConfig) -> list[list[Candidate]]:
    """For each stage the candidates that can take the rate; if none can, all: the best for what is admitted.

    Raises ConfigError, which names the stage, when nothing is known of any of its models.
    """
    return [
        [COMBINED] if stage.model is None else _candidates(demand, stage, stage.model, rate)
        for stage, rate in zip(pipeline.stages, demand.stage_rates[pipeline.name], strict=True)
    ]


def problem_of(
    demand: Demand,
    pipeline: PipelineConfig,
    candidates: Sequence[Sequence[Candidate]],
    budget_ns: int,
    percentile: float = 1.0,
) -> Problem:
    """The problem of choosing one of the candidates of each stage; see `pipeline_problem`."""
    stages = []
    for index, (stage, choices) in enumerate(zip(pipeline.stages, candidates, strict=True)):
        reach = demand.reach[pipeline.name][index]
        stages.append(
            StageProblem(
                stage.name,
                np.array([each.latency_ns for each in choices], np.int64),
                np.array([each.cost for each in choices], np.float64),
                tuple(each.option for each in choices),
                _waits_for(stage),
                reach,
                reach > 1 - percentile,
                demand.stage_rates[pipeline.name][index],
            )
        )
    return Problem(tuple(stages), budget_ns)


def pipeline_problem(demand: Demand, pipeline: PipelineConfig, budget_ns: int, percentile: float = 1.0) -> Problem:
    """The problem of one pipeline; with a `percentile` below 1 stages that more requests than that skip take no time.

    A stage for whose rate there is no capacity gets its options without waits: the plan is then the best for what is
    admitted. Raises ConfigError, which names the stage, when nothing is known of any of its models.
    """
    return problem_of(demand, pipeline, pipeline_candidates(demand, pipeline), budget_ns, percentile)


def _candidates(demand: Demand, stage: StageConfig, first: str, rate: float) -> list[Candidate]:
    found = [
        candidate
        for model in stage.variants or (first,)
        for kind in demand.capacities(model)
        for candidate in _on_kind(demand, model, kind, (first, rate))
    ]
    if not found:
        models = " or ".join(stage.variants or (first,))
        raise ConfigError(f"stage '{stage.name}': no latencies are known of model {models} on any partition")
    return [each for each in found if each.predicted is not None] or found


def _on_kind(demand: Demand, model: str, kind: str, moved: tuple[str, float]) -> list[Candidate]:
    """The candidates of a model on a kind; `moved` rows a second are those of the stage's first variant."""
    table, hosts = demand.tables[model][kind], demand.hosts[kind]
    rate = demand.rate_on(model, kind, moved)
    servers = demand.servers(model, kind, moved)
    wait_ns = _longest_wait_ns(demand.models[model].policy, rate)
    found = []
    for batch in demand.sizes(model, kind):
        option = Option(model, batch, kind, hosts, demand.share[kind], table.latency_ns(batch))
        predicted = None
        if servers > 0:
            predicted = stage_latency(lambda rows: demand.service_ns(model, kind, rows), batch, rate, servers, wait_ns)
        latency_ns = demand.service_ns(model, kind, batch) if predicted is None else predicted.p99_ns
        rows = batch if predicted is None else predicted.rows
        cost = demand.price[kind] * table.latency_ns(rows) / NS_PER_S / rows
        found.append(Candidate(option, predicted, latency_ns, cost))
    return found


def _longest_wait_ns(policy: PolicyConfig, rate: float) -> int | None:
    """How long the first row of a batch waits for others while a partition is idle; None: until the batch is full.

    Deferral ends at the deadline, so that without traffic to fill batches nothing is planned for it.
    """
    if policy.name is PolicyName.TIMEOUT:
        return policy.max_delay_ns
    return None if policy.objective is Objective.COST and rate > 0 else 0
