"""Metrics of the models that partitions hold, and of those that are loaded on demand."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluice.batcher.interface.config import ScheduledModel
from sluice.batcher.residency.on_demand import OnDemandLoader
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.observability.exposition import ExposedMetric, Group
from sluice.gateway.observability.metrics import MetricsSource
from sluice.models.units import NS_PER_S

MODEL_MEMORY = ExposedMetric(
    "sluice_model_memory_bytes",
    "gauge",
    "Memory that the model takes on a partition of the kind; source says where the number comes from: a profile, the "
    "load of the model, or the size of its file.",
    ("kind", "model", "source"),
)

Source = Literal["profile", "load", "file"]


class Held(NamedTuple):
    """The memory of a model on a partition, and the source of that number."""

    memory_bytes: int
    source: Source


def held_memory(scheduler: Scheduler, partition: str) -> dict[str, Held]:
    """The models that a partition holds, by key."""
    fleet = scheduler.dispatcher.fleet
    state = fleet.partitions[partition]
    models = {key: fleet.models[key].config for key in sorted(state.models)}
    return {key: Held(model.memory_on(state.kind), _source(model, state.kind)) for key, model in models.items()}


class ResidencyMetrics(MetricsSource):
    """The models that partitions hold and, where models are loaded on demand, the loads and their causes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def groups(self) -> Iterator[Group]:
        """All families."""
        yield from super().groups()
        yield Group((MODEL_MEMORY,), self._memory_texts())

    def _memory_texts(self) -> Iterator[tuple[str, ...]]:
        fleet = self._scheduler.dispatcher.fleet
        seen: set[tuple[str, str]] = set()
        for partition in list(fleet.partitions.values()):
            kind = partition.kind
            for key in sorted(partition.models):
                state = fleet.models.get(key)
                if state is not None and (key, kind) not in seen:
                    seen.add((key, kind))
                    if memory_bytes := state.config.memory_on(kind):
                        yield (MODEL_MEMORY.sample((kind, key, _source(state.config, kind)), memory_bytes),)
                yield ()

    def collect(self) -> Iterator[Metric]:
        """The families with few samples, for prometheus_client."""
        models = GaugeMetricFamily(
            "sluice_partition_models", "Models that are loaded on the partition.", labels=["partition"]
        )
        for name, partition in self._scheduler.dispatcher.fleet.partitions.items():
            models.add_metric([name], len(partition.models))
        yield models
        yield from self._choices()
        loader = self._scheduler.served.loader
        if not isinstance(loader, OnDemandLoader):
            return
        free = GaugeMetricFamily(
            "sluice_partition_free_bytes",
            "Memory of the partition that is free for more models; only where models are loaded on demand.",
            labels=["partition"],
        )
        for name, memory in loader.memories.items():
            free.add_metric([name], memory.free_bytes)
        yield free
        loads = CounterMetricFamily(
            "sluice_model_loads",
            "Models loaded on demand, by cause: request, prewarm, replica, refused or pinned.",
            labels=["cause"],
        )
        # "refused" counts loads for rejected requests, "pinned" loads of missing pinned models, "request" all others.
        others = loader.prewarms + loader.replicas + loader.returns + loader.restored
        loads.add_metric(["request"], loader.loads - others)
        loads.add_metric(["prewarm"], loader.prewarms)
        loads.add_metric(["replica"], loader.replicas)
        loads.add_metric(["refused"], loader.returns)
        loads.add_metric(["pinned"], loader.restored)
        yield loads
        yield CounterMetricFamily(
            "sluice_model_evictions",
            "Models evicted from a partition to make room for others; only where models are loaded on demand.",
            value=loader.evictions,
        )
        foresight = loader.foresight
        prewarms = CounterMetricFamily(
            "sluice_model_prewarms",
            "Loads for later stages by outcome: hit (the model was there when rows came), late (they waited for it), "
            "missed (no rows came) or lost (it could not be loaded, or had gone).",
            labels=["outcome"],
        )
        prewarms.add_metric(["hit"], foresight.hits)
        prewarms.add_metric(["late"], foresight.late)
        prewarms.add_metric(["missed"], foresight.missed)
        prewarms.add_metric(["lost"], foresight.lost)
        yield prewarms
        yield CounterMetricFamily(
            "sluice_model_prewarm_idle_seconds",
            "Time for which models loaded for later stages lay idle until rows came, or it was known that none would.",
            value=foresight.idle_ns / NS_PER_S,
        )
        yield CounterMetricFamily(
            "sluice_model_prewarm_wait_seconds",
            "Time for which rows waited for models that were loaded for later stages too late.",
            value=foresight.waited_ns / NS_PER_S,
        )

    def _choices(self) -> Iterator[Metric]:
        """The choices of instance policies; nothing before the first request of a model that has one."""
        instances = self._scheduler.dispatcher.instances
        if not instances.enabled:
            return
        chosen = CounterMetricFamily(
            "sluice_instance_choices",
            "Partitions that an instance policy chose, by whether they held the model: warm or cold.",
            labels=["start"],
        )
        chosen.add_metric(["warm"], instances.warm)
        chosen.add_metric(["cold"], instances.cold)
        yield chosen
        yield CounterMetricFamily(
            "sluice_instance_steals",
            "Partitions that models with the instance policy exclusive took from other models.",
            value=instances.steals,
        )


def _source(model: ScheduledModel, kind: str) -> Source:
    if kind in model.footprints:
        return "profile"
    return "load" if kind in model.measured_bytes else "file"
