"""What all pipelines together ask of the models, and what the partitions that hold these can do."""

from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import NamedTuple

from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, SchedulerSpec, StageConfig
from sluice.batcher.interface.plan_data import Observed
from sluice.models.units import NS_PER_S


class Equals(NamedTuple):
    """Partitions of a kind that are up and hold the same `models` (None: all); `size` is how many."""

    kind: str
    models: frozenset[str] | None
    size: int

    def hold(self, model: str) -> bool:
        """Whether a model is there."""
        return self.models is None or model in self.models


class DemandTable:
    """What all pipelines together ask of the models, and what the partitions can do.

    `rates` are rows a second by model; `price` is that of a kind's partitions, their mean where they differ. `reach`
    is, by pipeline, the share of a request's rows that each stage runs for. A stage that may be run by several variants
    counts for the first of them. A model is spread over the partitions that hold it in proportion to what they can do
    of it: those that `residency` gives it to, or that may hold it where `residency` does not name them.
    """

    def __init__(
        self, spec: SchedulerSpec, observed: Observed, residency: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        self.spec = spec
        self.tables = observed.tables
        working = frozenset(observed.up or (partition.name for partition in spec.partitions))
        there = [partition for partition in spec.partitions if partition.name in working]
        groups = Counter((partition.kind, _models(partition, residency or {})) for partition in there)
        self._groups = [Equals(*alike, size) for alike, size in groups.items()]
        self.partitions = Counter(partition.kind for partition in there)
        prices: dict[str, list[float]] = {}
        for partition in spec.partitions:
            prices.setdefault(partition.kind, []).append(partition.price)
        self.price = {kind: fmean(each) for kind, each in prices.items()}
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
        self._places = {key: self._find(key) for key in self.models}
        self._hosts = {
            key: {kind: sum(self._groups[group].size for group in places) for kind, places in kinds.items()}
            for key, kinds in self._places.items()
        }
        self._capacities = {key: self._by_kind(key) for key in self.models}
        self._totals = {key: sum(kinds.values()) for key, kinds in self._capacities.items()}
        self._busy = [0.0] * len(self._groups)
        self._lone = [0.0] * len(self._groups)
        for key, kinds in self._capacities.items():
            for kind in kinds:
                busy, lone = self.utilisation(key, self.rates[key]), self._lone_load(key, kind, self.rates[key])
                for group in self._places[key][kind]:
                    self._busy[group] += busy
                    self._lone[group] += lone

    def capacities(self, model: str) -> dict[str, float]:
        """Rows a second that all partitions of a kind together could do of one model, by the kinds that know it."""
        return self._capacities[model]

    def hosts(self, model: str, kind: str) -> int:
        """How many partitions of a kind hold a model."""
        return self._hosts[model].get(kind, 0)

    def utilisation(self, model: str, rate: float) -> float:
        """The share of its partitions' time that rows of a model take at best; more than 1 is more than they can do."""
        return rate / self._totals[model] if self._totals[model] else 0.0

    @property
    def busiest(self) -> float:
        """The share of time that all models together take at best, of the partitions of which that is most."""
        return max(self._busy, default=0.0)

    def sizes(self, model: str, kind: str) -> list[int]:
        """The batch sizes worth telling apart, ascending."""
        maximum = self.models[model].max_batch
        if not self.models[model].policy.combines:
            maximum = 1  # most requests have one row
        return sorted({min(size, maximum) for size, _ in self.tables[model][kind].cells})

    def servers(self, model: str, kind: str, moved: tuple[str, float]) -> float:
        """Partitions of a kind that a model can count on; `moved` are rows that another model has run so far.

        The others take what they need for rows one by one, if that leaves more than a share in proportion to what each
        needs at best. Then batches have grown until all fit, and together no more than all partitions are counted on.
        """
        first, rows = moved
        own = self.utilisation(model, self._with(model, moved))
        own_busy = self.utilisation(model, self.rates[model])
        own_lone = self._lone_load(model, kind, self.rates[model])
        freed = self._places[first].get(kind, ()) if first != model and kind in self._capacities[first] else ()
        counted = 0.0
        for group in self._places[model][kind]:
            others, lone = self._busy[group] - own_busy, self._lone[group] - own_lone
            if group in freed:
                others -= self.utilisation(first, rows)
                lone -= self._lone_load(first, kind, rows)
            least = own / (own + max(others, 0.0)) if own else 1.0 - others
            counted += self._groups[group].size * max(min(least, 1.0), 1.0 - max(lone, 0.0), 0.0)
        return counted

    def rate_on(self, model: str, kind: str, moved: tuple[str, float]) -> float:
        """Rows a second of a model that come to a kind."""
        return self._on(model, kind, self._with(model, moved))

    def met(self, model: str, other: str, kind: str) -> float:
        """The share of all rows of `other` that run on partitions of a kind which hold `model` as well."""
        if kind not in self._capacities[other]:
            return 0.0
        both = self._places[other][kind].intersection(self._places[model][kind])
        return self._on(other, kind, sum(self._groups[group].size for group in both) / self._hosts[other][kind])

    def service_ns(self, model: str, kind: str, rows: int) -> int:
        """Time of a batch, hand-off included."""
        return self.tables[model][kind].latency_ns(rows) + self.spec.limits.hand_off_ns

    def _with(self, model: str, moved: tuple[str, float]) -> float:
        """Rows a second of a model: a variant that would take a stage over has them on top of what it runs anyhow."""
        first, rows = moved
        return self.rates[model] + (0.0 if model == first else rows)

    def _lone_load(self, model: str, kind: str, rate: float) -> float:
        """The share of the time of each partition of a kind that rows of a model take when they come one by one."""
        return self._on(model, kind, rate) * self.service_ns(model, kind, 1) / NS_PER_S / self._hosts[model][kind]

    def _on(self, model: str, kind: str, rate: float) -> float:
        return rate * self._capacities[model][kind] / self._totals[model]

    def _find(self, model: str) -> dict[str, frozenset[int]]:
        """The groups of partitions that hold a model and know how long it takes, by kind."""
        found: dict[str, set[int]] = {}
        for number, group in enumerate(self._groups):
            if group.kind in self.tables.get(model, {}) and group.hold(model):
                found.setdefault(group.kind, set()).add(number)
        return {kind: frozenset(groups) for kind, groups in found.items()}

    def _by_kind(self, model: str) -> dict[str, float]:
        return {
            kind: hosts * max(rows * NS_PER_S / self.service_ns(model, kind, rows) for rows in self.sizes(model, kind))
            for kind, hosts in self._hosts[model].items()
        }


def _models(partition: PartitionConfig, residency: Mapping[str, tuple[str, ...]]) -> frozenset[str] | None:
    """The models that a partition holds, None for all."""
    held = residency.get(partition.name, partition.models)
    return None if held is None else frozenset(held)


def _reach(pipeline: PipelineConfig, observed: Observed) -> list[float]:
    probabilities = observed.probabilities.get(pipeline.name, (1.0,) * len(pipeline.stages))
    reach: list[float] = []
    for stage, probability in zip(pipeline.stages, probabilities, strict=True):
        reach.append(probability * min((reach[source] for source in waits_for(stage)), default=1.0))
    return reach


def waits_for(stage: StageConfig) -> tuple[int, ...]:
    """The stages that have to end before a stage begins, in ascending order."""
    return tuple(sorted(set(stage.sources) | ({stage.when.stage} if stage.when else set())))
