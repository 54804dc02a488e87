"""The options of a stage: what every batch size on every kind of partition would take and cost at the present rates."""

from collections import Counter

import numpy as np

from batcher.config import Objective, PipelineConfig, SchedulerSpec, StageConfig
from batcher.planner.problem import Option, Problem, StageProblem
from batcher.planner.stage_latency import StageLatency, stage_latency
from batcher.plans import Observed
from models.errors import ConfigError
from models.profile import LatencyTable
from models.units import NS_PER_S

NEARLY_BEST = 0.97
"""A batch size within 3 % of the best rate counts as the best, as it does for the scheduler."""
COMBINED = Option("", 1, "", 1, 1.0, 0)
"""The one option of a combiner: it takes no time on any partition."""


class Demand:
    """What all pipelines together ask of the models, and what the partitions can do.

    `rates` are rows a second by model. `reach` is, by pipeline, the share of a request's rows that each stage runs for.
    A stage that may be run by several variants counts for the first of them.
    """

    def __init__(self, spec: SchedulerSpec, observed: Observed) -> None:
        self.spec = spec
        self.observed = observed
        self.hosts = Counter(partition.kind for partition in spec.partitions)
        self.price = {partition.kind: partition.price for partition in spec.partitions}
        self.share = {partition.kind: partition.share for partition in spec.partitions}
        self.maximum = {model.key: model.max_batch for model in spec.models}
        self.waits = {model.key: model.policy.objective is Objective.COST for model in spec.models}
        self.reach = {pipeline.name: self._reach(pipeline) for pipeline in spec.pipelines}
        self.rates: Counter[str] = Counter()
        for pipeline in spec.pipelines:
            for stage, share in zip(pipeline.stages, self.reach[pipeline.name], strict=True):
                if stage.model is not None:
                    self.rates[stage.model] += observed.rates.get(pipeline.name, 0.0) * share  # type: ignore[assignment]
        self.load = self._load()

    def _reach(self, pipeline: PipelineConfig) -> list[float]:
        probabilities = self.observed.probabilities.get(pipeline.name, (1.0,) * len(pipeline.stages))
        reach: list[float] = []
        for stage, probability in zip(pipeline.stages, probabilities, strict=True):
            waits_for = set(stage.sources) | ({stage.when.stage} if stage.when else set())
            reach.append(probability * min((reach[source] for source in waits_for), default=1.0))
        return reach

    def capacity(self, model: str, kind: str) -> float:
        """Rows a second that all partitions of a kind could do of one model."""
        table = self.observed.tables[model][kind]
        return self.hosts[kind] * max(self._row_rate(table, rows) for rows in self.sizes(model, kind))

    def sizes(self, model: str, kind: str) -> list[int]:
        """The batch sizes worth telling apart, ascending."""
        maximum = self.maximum[model]
        return sorted({min(size, maximum) for size, _ in self.observed.tables[model][kind].cells})

    def _row_rate(self, table: LatencyTable, rows: int) -> float:
        return rows * NS_PER_S / (table.latency_ns(rows) + self.spec.limits.hand_off_ns)

    def _load(self) -> dict[str, dict[str, float]]:
        """Partitions kept busy by model and kind; a model is spread over kinds in proportion to what they can do."""
        load: dict[str, dict[str, float]] = {}
        for model, rate in self.rates.items():
            kinds = [kind for kind in self.observed.tables.get(model, {}) if self.hosts[kind]]
            capacities = {kind: self.capacity(model, kind) for kind in kinds}
            total = sum(capacities.values())
            load[model] = {kind: self.hosts[kind] * rate / total for kind in kinds} if total else {}
        return load

    def servers(self, model: str, kind: str) -> float:
        """Partitions of a kind that are left to a model by the others."""
        others = sum(load.get(kind, 0.0) for key, load in self.load.items() if key != model)
        return max(self.hosts[kind] - others, 0.0)


def pipeline_problem(demand: Demand, pipeline: PipelineConfig, budget_ns: int, percentile: float = 1.0) -> Problem:
    """The problem of one pipeline; with a `percentile` below 1 stages that more requests than that skip take no time.

    A stage for whose rate there is no capacity gets its options without waits: the plan is then the best for what is
    admitted. Raises ConfigError, which names the stage, when nothing is known of any of its models.
    """
    stages = []
    for stage, reach in zip(pipeline.stages, demand.reach[pipeline.name], strict=True):
        waits_for = sorted(set(stage.sources) | ({stage.when.stage} if stage.when else set()))
        rate = demand.observed.rates.get(pipeline.name, 0.0) * reach
        options, latencies, costs = [COMBINED], [0], [0.0]
        if stage.model is not None:
            options, latencies, costs = _options(demand, stage, rate)
        stages.append(
            StageProblem(
                stage.name,
                np.array(latencies, np.int64),
                np.array(costs),
                tuple(options),
                tuple(waits_for),
                reach,
                reach > 1 - percentile,
                rate,
            )
        )
    return Problem(tuple(stages), budget_ns)


def _options(demand: Demand, stage: StageConfig, rate: float) -> tuple[list[Option], list[int], list[float]]:
    options: list[Option] = []
    latencies: list[int | None] = []
    bare: list[int] = []
    costs: list[float] = []
    hand_off_ns = demand.spec.limits.hand_off_ns
    for model in stage.variants or (stage.model or "",):
        # A variant that would take the stage over has its rows on top of what it runs for others.
        moved = 0.0 if model == stage.model else rate
        for kind in demand.observed.tables.get(model, {}):
            if not demand.hosts[kind]:
                continue
            table = demand.observed.tables[model][kind]
            for option, predicted in _on_kind(demand, model, kind, moved):
                options.append(option)
                latencies.append(None if predicted is None else predicted.p99_ns)
                bare.append(option.service_ns + hand_off_ns)
                rows = option.batch if predicted is None else predicted.rows
                costs.append(demand.price[kind] * table.latency_ns(rows) / NS_PER_S / rows)
    if not options:
        raise ConfigError(f"stage '{stage.name}': no latencies are known of model {stage.model} on any partition")
    able = [index for index, latency_ns in enumerate(latencies) if latency_ns is not None]
    if not able:
        return options, bare, costs
    return (
        [options[i] for i in able],
        [latency for latency in latencies if latency is not None],
        [costs[i] for i in able],
    )


def _on_kind(demand: Demand, model: str, kind: str, moved: float) -> list[tuple[Option, StageLatency | None]]:
    """The options of a model on a kind, each with its latency, None where the rate is too much for it."""
    table = demand.observed.tables[model][kind]
    hand_off_ns = demand.spec.limits.hand_off_ns
    servers = demand.servers(model, kind)
    rate = demand.rates[model] + moved
    total = sum(demand.capacity(model, each) for each in demand.observed.tables[model] if demand.hosts[each])
    rate *= demand.capacity(model, kind) / total
    found: list[tuple[Option, StageLatency | None]] = []
    for batch in demand.sizes(model, kind):
        option = Option(model, batch, kind, demand.hosts[kind], demand.share[kind], table.latency_ns(batch))
        predicted = None
        if servers > 0:
            wait_ns = None if demand.waits[model] and rate > 0 else 0
            predicted = stage_latency(lambda rows: table.latency_ns(rows) + hand_off_ns, batch, rate, servers, wait_ns)
        found.append((option, predicted))
    return found
