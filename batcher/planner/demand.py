"""The demand of all pipelines together for the models, and the capacity of the partitions that hold these."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, ScheduledModel, SchedulerSpec, StageConfig
from sluice.batcher.interface.plan_data import Observed, Way, kind_over
from sluice.batcher.planner.stage_latency import RHO_MAX
from sluice.batcher.state import occupied_ns, way_ns
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S


class Equals(NamedTuple):
    """Partitions of a kind that are up and hold the same `models` (None: all); `size` is their number."""

    kind: str
    models: frozenset[str] | None
    size: int

    def hold(self, model: str) -> bool:
        """True if they hold the model."""
        return self.models is None or model in self.models


class Hosts(NamedTuple):
    """The partitions of a kind that hold a model, by the numbers of their `groups`.

    `capacity` is in rows a second, of all of them in the best batches.
    """

    groups: frozenset[int]
    partitions: int
    capacity: float


class Load(NamedTuple):
    """The share of a partition's time that all models take: in their best batches (`busy`), and row by row (`lone`).

    `extra` is what a model with little traffic gets in addition to its share in proportion, up to `unplanned` in all.
    """

    busy: float
    lone: float
    extra: float

    @property
    def unplanned(self) -> float:
        """The share of a partition's time that no plan counts on."""
        return _unplanned(self.busy)

    def least_share(self, in_proportion: float) -> float:
        """The share of a model whose share in proportion may be next to nothing."""
        return min(in_proportion + self.extra, self.unplanned)


@dataclass(frozen=True, eq=False)
class DemandTable:
    """The demand for each model at the rates that were seen, and the capacity for it.

    `rates` are rows a second by model, `stage_rates` by pipeline and stage. `price` and `share` are those of a kind's
    partitions, the price their mean where they differ. `reach` is, by pipeline, the share of a request's rows that each
    stage runs for. A stage that may be run by several variants counts for the first of them. A model is spread over its
    `hosts`, by kind, in proportion to their capacity. `loads` are those of each of the `groups` of partitions.
    Partitions on other nodes are of kinds of their own (`kind_over`), to which `ways` lead.
    """

    spec: SchedulerSpec
    tables: Mapping[str, Mapping[str, LatencyTable]]
    groups: tuple[Equals, ...]
    price: Mapping[str, float]
    share: Mapping[str, float]
    models: Mapping[str, ScheduledModel]
    reach: Mapping[str, Sequence[float]]
    stage_rates: Mapping[str, Sequence[float]]
    rates: Mapping[str, float]
    hosts: Mapping[str, Mapping[str, Hosts]]
    loads: tuple[Load, ...]
    ways: Mapping[str, Way]

    @property
    def partitions(self) -> Counter[str]:
        """The number of partitions of each kind that are up."""
        counted: Counter[str] = Counter()
        for group in self.groups:
            counted[group.kind] += group.size
        return counted

    @property
    def busiest(self) -> float:
        """The share of time that all models together take at best, of the partitions of which that is most."""
        return max((load.busy for load in self.loads), default=0.0)

    def capacities(self, model: str) -> dict[str, float]:
        """Rows a second that all partitions of a kind together could do of one model, by the kinds that know it."""
        return {kind: hosts.capacity for kind, hosts in self.hosts[model].items()}

    def utilisation(self, model: str, rate: float) -> float:
        """The share of its partitions' time that rows of a model take at best; above 1 they cannot do it."""
        return _utilisation(self.hosts[model], rate)

    def sizes(self, model: str, kind: str) -> list[int]:
        """The batch sizes with different latencies, ascending."""
        return _sizes(self.models[model], self.tables[model][kind])

    def servers(self, model: str, kind: str, moved: tuple[str, float]) -> float:
        """Partitions of a kind that a model can count on; `moved` are rows that another model has run so far.

        The other models take the time that their rows need one by one, if that leaves more than a share in proportion
        to the needs of each at best. Otherwise batches grow until all fit, and the shares add up to all partitions. A
        share in proportion vanishes with the rate. It is bounded from below, by time that no plan counts on.
        """
        first, rows = moved
        own = self.utilisation(model, self._with(model, moved))
        own_busy = self.utilisation(model, self.rates[model])
        own_lone = self._lone(model, kind, self.rates[model])
        freed = self.hosts[first][kind].groups if first != model and kind in self.hosts[first] else ()
        counted = 0.0
        for group in sorted(self.hosts[model][kind].groups):
            others, lone = self.loads[group].busy - own_busy, self.loads[group].lone - own_lone
            if group in freed:
                others -= self.utilisation(first, rows)
                lone -= self._lone(first, kind, rows)
            in_proportion = own / (own + max(others, 0.0)) if own else 0.0
            least = max(in_proportion, self.loads[group].least_share(in_proportion))
            counted += self.groups[group].size * max(min(least, 1.0), 1.0 - max(lone, 0.0))
        return counted

    def rate_on(self, model: str, kind: str, moved: tuple[str, float]) -> float:
        """Rows a second of a model that come to a kind."""
        return _part_on(self.hosts[model], kind, self._with(model, moved))

    def met(self, model: str, other: str, kind: str) -> float:
        """The share of all rows of `other` that run on partitions of a kind which hold `model` as well."""
        hosts = self.hosts[other].get(kind)
        if hosts is None:
            return 0.0
        both = hosts.groups & self.hosts[model][kind].groups
        return _part_on(self.hosts[other], kind, sum(self.groups[group].size for group in both) / hosts.partitions)

    def service_ns(self, model: str, kind: str, rows: int) -> int:
        """Time that a batch takes of a partition, dispatch overhead included."""
        run_ns = self.tables[model][kind].latency_ns(rows)
        return _occupied_ns(self.models[model], self.ways.get(kind), rows, run_ns) + self.spec.limits.hand_off_ns

    def return_ns(self, model: str, kind: str, rows: int) -> int:
        """By how much later the answers of a batch are there than it takes of a partition: the rest of its way."""
        if (way := self.ways.get(kind)) is None:
            return 0
        run_ns, config = self.tables[model][kind].latency_ns(rows), self.models[model]
        return (
            run_ns + way_ns(way.round_trip_ns, way.ns_per_byte, config, rows) - _occupied_ns(config, way, rows, run_ns)
        )

    def _with(self, model: str, moved: tuple[str, float]) -> float:
        """Rows a second of a model; a variant that would take a stage over has its rows in addition to its own."""
        first, rows = moved
        return self.rates[model] + (0.0 if model == first else rows)

    def _lone(self, model: str, kind: str, rate: float) -> float:
        return _lone_load(self.hosts[model], kind, rate, self.service_ns(model, kind, 1))


def demand_table(
    spec: SchedulerSpec, observed: Observed, residency: Mapping[str, tuple[str, ...]] | None = None
) -> DemandTable:
    """The demand and the capacity at the rates and latencies that were seen.

    Models are on the partitions that `residency` gives them to, or that may hold them where `residency` does not name
    the partition.
    """
    groups = _groups(spec, observed, residency or {})
    models = {model.key: model for model in spec.models}
    reach = {pipeline.name: _reach(pipeline, observed) for pipeline in spec.pipelines}
    stage_rates = {name: [observed.rates.get(name, 0.0) * share for share in shares] for name, shares in reach.items()}
    rates = _rates(spec, stage_rates)
    tables, ways = _with_ways(spec, observed)
    hosts = {
        key: _hosts(model, groups, tables.get(key, {}), ways, spec.limits.hand_off_ns) for key, model in models.items()
    }
    prices: dict[str, list[float]] = {}
    for partition in spec.partitions:
        prices.setdefault(_kind(partition, observed), []).append(partition.price)
    return DemandTable(
        spec=spec,
        tables=tables,
        groups=groups,
        price={kind: fmean(each) for kind, each in prices.items()},
        share={_kind(partition, observed): partition.share for partition in spec.partitions},
        models=models,
        reach=reach,
        stage_rates=stage_rates,
        rates=rates,
        hosts=hosts,
        loads=_loads(len(groups), hosts, rates, tables, spec.limits.hand_off_ns),
        ways=ways,
    )


def _kind(partition: PartitionConfig, observed: Observed) -> str:
    """The kind of a partition; partitions on other nodes are of other kinds, by the links to them."""
    way = observed.ways.get(partition.name)
    return partition.kind if way is None else kind_over(partition.kind, way.link)


def _with_ways(
    spec: SchedulerSpec, observed: Observed
) -> tuple[Mapping[str, Mapping[str, LatencyTable]], dict[str, Way]]:
    """The latency tables for kinds with and without ways, and the ways by kind: the slowest of each."""
    if not observed.ways:
        return observed.tables, {}
    ways: dict[str, Way] = {}
    kinds: dict[str, str] = {}
    for partition in spec.partitions:
        if (way := observed.ways.get(partition.name)) is not None:
            kind = _kind(partition, observed)
            known = ways.get(kind, way)
            round_trip_ns = max(way.round_trip_ns, known.round_trip_ns)
            ways[kind] = Way(way.link, round_trip_ns, max(way.ns_per_byte, known.ns_per_byte))
            kinds[kind] = partition.kind
    tables = {
        key: {**known_of, **{kind: known_of[alike] for kind, alike in kinds.items() if alike in known_of}}
        for key, known_of in observed.tables.items()
    }
    return tables, ways


def _occupied_ns(model: ScheduledModel, way: Way | None, rows: int, run_ns: int) -> int:
    """The time that a batch takes of a partition, which its way may bound."""
    return run_ns if way is None else occupied_ns(way.round_trip_ns, way.ns_per_byte, model, rows, run_ns)


def _groups(spec: SchedulerSpec, observed: Observed, residency: Mapping[str, tuple[str, ...]]) -> tuple[Equals, ...]:
    working = frozenset(observed.up or (partition.name for partition in spec.partitions))
    there = [partition for partition in spec.partitions if partition.name in working]
    alike = Counter((_kind(partition, observed), _models(partition, residency)) for partition in there)
    return tuple(Equals(kind, models, size) for (kind, models), size in alike.items())


def _rates(spec: SchedulerSpec, stage_rates: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Rows a second by model, those of all stages added up."""
    rates = dict.fromkeys((model.key for model in spec.models), 0.0)
    for pipeline in spec.pipelines:
        for stage, rows in zip(pipeline.stages, stage_rates[pipeline.name], strict=True):
            if stage.model is not None:
                rates[stage.model] += rows
    return rates


def _hosts(
    model: ScheduledModel,
    groups: Sequence[Equals],
    tables: Mapping[str, LatencyTable],
    ways: Mapping[str, Way],
    hand_off_ns: int,
) -> dict[str, Hosts]:
    """The partitions that hold a model and know how long it takes, by kind."""
    found: dict[str, set[int]] = {}
    for number, group in enumerate(groups):
        if group.kind in tables and group.hold(model.key):
            found.setdefault(group.kind, set()).add(number)
    hosts = {}
    for kind, numbers in found.items():
        table, way = tables[kind], ways.get(kind)
        count = sum(groups[number].size for number in numbers)
        best = max(
            rows * NS_PER_S / (_occupied_ns(model, way, rows, table.latency_ns(rows)) + hand_off_ns)
            for rows in _sizes(model, table)
        )
        hosts[kind] = Hosts(frozenset(numbers), count, count * best)
    return hosts


def _loads(
    groups: int,
    hosts: Mapping[str, Mapping[str, Hosts]],
    rates: Mapping[str, float],
    tables: Mapping[str, Mapping[str, LatencyTable]],
    hand_off_ns: int,
) -> tuple[Load, ...]:
    """For each group of partitions the load of all models that they hold."""
    needs: list[list[tuple[float, float]]] = [[] for _ in range(groups)]
    for key, kinds in hosts.items():
        for kind, those in kinds.items():
            best = _utilisation(kinds, rates[key])
            alone = _lone_load(kinds, kind, rates[key], tables[key][kind].latency_ns(1) + hand_off_ns)
            for group in sorted(those.groups):
                needs[group].append((best, alone))
    return tuple(map(_load, needs))


def _load(needs: Sequence[tuple[float, float]]) -> Load:
    """The load of models that need these shares of the time, in their best batches and row by row."""
    busy = sum(best for best, _ in needs)
    unplanned = _unplanned(busy)
    wants = [max(min(alone, unplanned) - best / busy, 0.0) for best, alone in needs if best]
    return Load(busy, sum(alone for _, alone in needs), _equal_part(unplanned, wants))


def _unplanned(busy: float) -> float:
    return max(min(1.0 - RHO_MAX, 1.0 - busy), 0.0)


def _equal_part(whole: float, wants: Sequence[float]) -> float:
    """The most that each may take of the whole if all that want less leave the rest to the others (max-min fairness).

    It is continuous in what each wants: next to nothing wanted is as good as nothing.
    """
    left, want = whole, 0.0
    for others, want in zip(reversed(range(len(wants))), sorted(wants), strict=True):
        if want * (others + 1) >= left:
            return left / (others + 1)
        left -= want
    return left + want


def _sizes(model: ScheduledModel, table: LatencyTable) -> list[int]:
    maximum = model.max_batch if model.policy.combines else 1  # most requests have one row
    return sorted({min(size, maximum) for size, _ in table.cells})


def _utilisation(kinds: Mapping[str, Hosts], rate: float) -> float:
    total = _total(kinds)
    return rate / total if total else 0.0


def _lone_load(kinds: Mapping[str, Hosts], kind: str, rate: float, service_ns: int) -> float:
    """The share of the time of each partition of a kind that rows of a model take when they come one by one."""
    return _part_on(kinds, kind, rate) * service_ns / NS_PER_S / kinds[kind].partitions


def _part_on(kinds: Mapping[str, Hosts], kind: str, rate: float) -> float:
    """The part of a rate that comes to a kind."""
    return rate * kinds[kind].capacity / _total(kinds)


def _total(kinds: Mapping[str, Hosts]) -> float:
    return sum(hosts.capacity for hosts in kinds.values())


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
