"""The initial placement of models on partitions, and whether the other models are loaded on demand."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.residency_config import Loading
from sluice.batcher.residency.placement import model_needs, place_models
from sluice.batcher.settings.residency import LoadingMode, ResidencySettings


class InitialResidency(NamedTuple):
    """The initial placement: `residency` has the models of each partition, `unplaced` are the others.

    The `spec` says how models are loaded from then on.
    """

    spec: SchedulerSpec
    residency: Mapping[str, tuple[str, ...]]
    unplaced: tuple[str, ...]

    @property
    def largest_bytes(self) -> int:
        """The memory of the largest partition; 0 if none is bounded."""
        return max(partition.memory_bytes for partition in self.spec.partitions)

    @property
    def waiting(self) -> list[str]:
        """The unplaced models that would fit on an empty partition."""
        sizes = {model.key: model.memory_bytes for model in self.spec.models}
        return [key for key in self.unplaced if sizes[key] <= self.largest_bytes]

    @property
    def kept_out(self) -> list[str]:
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
            for key in self.waiting
            if not any(
                models[key].memory_on(partition.kind) <= room[partition.name]
                for partition in self.spec.partitions
                if partition.models is None or key in partition.models
            )
        ]


def initial_residency(spec: SchedulerSpec, settings: ResidencySettings) -> InitialResidency:
    """Place all models; pinned ones and those of a high priority come first if there is no room for all.

    Models are spread over the partitions that are up at the start: slots of scaled classes may stay empty.
    """
    needs = model_needs(spec.models, spec.partitions)
    absent = {slot for scaled in spec.scaling.classes for slot in scaled.slots[scaled.initial :]}
    present = [each for each in spec.partitions if each.name not in absent] or spec.partitions
    policy = settings.packing_policy
    placement = place_models(needs, present, policy=policy)
    residency = dict(placement.residency)
    for later in spec.partitions:
        if later.name not in residency:  # a slot that is empty at the start holds what a lone partition would
            residency |= place_models(needs, [later], policy=policy).residency
    largest = max(partition.memory_bytes for partition in spec.partitions)
    crowded = any(needs[key].memory_bytes <= largest for key in placement.unplaced)
    demand = settings.loading is LoadingMode.DEMAND or (settings.loading is LoadingMode.AUTO and crowded)
    bounded = any(partition.memory_bytes for partition in spec.partitions)
    loading = Loading.DEMAND if demand and bounded else Loading.PLAN
    spec = msgspec.structs.replace(spec, residency=settings.config(loading))
    return InitialResidency(spec, residency, placement.unplaced)
