"""The initial placement of models on partitions, and whether the other models are loaded on demand."""

import logging
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from sluice.batcher.interface.config import PartitionConfig, ScheduledModel, SchedulerSpec
from sluice.batcher.interface.residency_config import Loading
from sluice.batcher.residency.placement import ModelNeed, place_models
from sluice.batcher.settings.residency import LoadingMode, ResidencySettings
from sluice.gateway.deployment.placement import log_missing_instances
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.observability.logs import log

logger = logging.getLogger(__name__)

_MIB = 1 << 20


class InitialResidency(NamedTuple):
    """The initial placement: `residency` has the models of each partition, `unplaced` are the others.

    The `spec` says how models are loaded from then on.
    """

    spec: SchedulerSpec
    residency: Mapping[str, tuple[str, ...]]
    unplaced: tuple[str, ...]

    def announce(self, registry: ModelRegistry) -> None:
        """Log, and note in the registry, which models wait for demand, and which no partition has room for."""
        largest = max(partition.memory_bytes for partition in self.spec.partitions)
        sizes = {model.key: model.memory_bytes for model in self.spec.models}
        demanded = self.spec.residency.loading is Loading.DEMAND
        waiting = [key for key in self.unplaced if sizes[key] <= largest]
        if demanded:
            log(logger, logging.INFO, "models are loaded on demand", models=len(sizes), waiting=len(waiting))
            registry.mark_on_demand(key for key, size in sizes.items() if size <= largest)
            if never := self._kept_out(waiting):
                reason = "no partition has room for them beside the pinned ones"
                log(logger, logging.WARNING, "models can never be loaded", models=", ".join(never), reason=reason)
        for key in self.unplaced:
            if sizes[key] > largest:
                reason = f"no partition has room for the {sizes[key] / _MIB:.3g} MiB that it takes"
                log(logger, logging.ERROR, "model has no place", model=key, reason=reason)
                registry.mark_unplaced(key, reason)
            elif not demanded:
                log(logger, logging.WARNING, "model waits for demand, the others leave no room", model=key)
                registry.mark_waiting(key)
        log_missing_instances(self.spec.models, self.residency)

    def _kept_out(self, waiting: Iterable[str]) -> list[str]:
        """Waiting models that fit on no partition beside the copies of pinned models that stay."""
        models = {model.key: model for model in self.spec.models}
        room = {partition.name: partition.memory_bytes or math.inf for partition in self.spec.partitions}
        for model in filter(lambda model: model.pinned, self.spec.models):
            hosts = [each for each in self.spec.partitions if model.key in self.residency.get(each.name, ())]
            if hosts:
                stays = min(reversed(hosts), key=lambda partition: partition.memory_bytes)
                room[stays.name] -= model.memory_on(stays.kind)
        return [
            key
            for key in waiting
            if not any(
                models[key].memory_on(partition.kind) <= room[partition.name]
                for partition in self.spec.partitions
                if partition.models is None or key in partition.models
            )
        ]


def initial_residency(spec: SchedulerSpec, settings: ResidencySettings) -> InitialResidency:
    """Place all models; pinned ones and those of a high priority come first if there is no room for all."""
    needs = model_needs(spec.models, spec.partitions)
    placement = place_models(needs, spec.partitions)
    largest = max(partition.memory_bytes for partition in spec.partitions)
    crowded = any(needs[key].memory_bytes <= largest for key in placement.unplaced)
    demand = settings.loading is LoadingMode.DEMAND or (settings.loading is LoadingMode.AUTO and crowded)
    bounded = any(partition.memory_bytes for partition in spec.partitions)
    loading = Loading.DEMAND if demand and bounded else Loading.PLAN
    spec = msgspec.structs.replace(spec, residency=settings.config(loading))
    return InitialResidency(spec, placement.residency, placement.unplaced)


def model_needs(models: Iterable[ScheduledModel], partitions: Iterable[PartitionConfig]) -> dict[str, ModelNeed]:
    """The memory that models need, and their expected demand, which is their priority as long as nothing is known."""
    models = tuple(models)
    kinds = {partition.kind for partition in partitions}
    least = min((model.priority for model in models), default=0)
    ranks = {model.key: model.priority - least for model in models}
    ranked = any(ranks.values())
    return {
        model.key: ModelNeed(
            model.most_bytes,
            dict.fromkeys(kinds, float(ranks[model.key])) if ranked else {},
            model.replicas,
            model.pinned,
        )
        for model in models
    }
