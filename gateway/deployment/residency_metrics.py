"""Metrics of the models that partitions hold, and of those that are loaded on demand."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluice.batcher.interface.config import ScheduledModel
from sluice.batcher.residency.on_demand import OnDemandLoader
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.observability.metrics import MetricsSource

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

    async def refresh(self) -> None:
        """Nothing to refresh."""

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        models = GaugeMetricFamily("sluice_partition_models", "Models loaded on the partition.", labels=["partition"])
        model_memory = GaugeMetricFamily(
            "sluice_model_memory_bytes",
            "Memory of the model on a partition of the kind.",
            labels=["model", "kind", "source"],
        )
        seen: set[tuple[str, str]] = set()
        for name, partition in self._scheduler.dispatcher.fleet.partitions.items():
            models.add_metric([name], len(partition.models))
            for key, held in held_memory(self._scheduler, name).items():
                if held.memory_bytes and (key, partition.kind) not in seen:
                    seen.add((key, partition.kind))
                    model_memory.add_metric([key, partition.kind, held.source], held.memory_bytes)
        yield models
        yield model_memory
        loader = self._scheduler.served.loader
        if not isinstance(loader, OnDemandLoader):
            return
        free = GaugeMetricFamily(
            "sluice_partition_free_bytes", "Memory of the partition that is free for models.", labels=["partition"]
        )
        for name, memory in loader.memories.items():
            free.add_metric([name], memory.free_bytes)
        yield free
        loads = CounterMetricFamily("sluice_model_loads", "Models loaded on demand, by cause.", labels=["cause"])
        # "refused" counts loads for rejected requests, "pinned" loads of missing pinned models, "request" all others.
        others = loader.prewarms + loader.replicas + loader.returns + loader.restored
        loads.add_metric(["request"], loader.loads - others)
        loads.add_metric(["prewarm"], loader.prewarms)
        loads.add_metric(["replica"], loader.replicas)
        loads.add_metric(["refused"], loader.returns)
        loads.add_metric(["pinned"], loader.restored)
        yield loads
        yield CounterMetricFamily(
            "sluice_model_evictions", "Models evicted to make room for others.", value=loader.evictions
        )


def _source(model: ScheduledModel, kind: str) -> Source:
    if kind in model.footprints:
        return "profile"
    return "load" if kind in model.measured_bytes else "file"
