"""Placement of new models beside those that are held, which serve on meanwhile."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from sluice.batcher.interface.config import PartitionConfig, ScheduledModel
from sluice.batcher.residency.placement import ModelNeed, place_models
from sluice.gateway.observability.logs import log

logger = logging.getLogger(__name__)


class Room(NamedTuple):
    """The new models that each partition is to hold, and the copies of other models that are to go first.

    `free` is the most memory, in bytes, that any partition with a bound has free now.
    """

    residency: dict[str, tuple[str, ...]]
    spare: dict[str, tuple[str, ...]]
    free: int

    @property
    def placed(self) -> set[str]:
        """The new models that were placed."""
        return {key for keys in self.residency.values() for key in keys}


def find_room(
    needs: Mapping[str, ModelNeed],
    new: Collection[str],
    partitions: Sequence[PartitionConfig],
    held: Mapping[str, Collection[str]],
    serving: Mapping[str, Collection[str]],
) -> Room:
    """Place new models: no partition holds more than its memory, and no model loses its last copy.

    `needs` are of all models. `held` has the models that partitions hold or are loading, `serving` those that
    partitions which are up hold.
    """
    target = place_models(needs, partitions, held).residency
    copies = {name: set(models) for name, models in serving.items()}
    residency: dict[str, tuple[str, ...]] = {}
    spare: dict[str, tuple[str, ...]] = {}
    most = 0
    for partition in partitions:
        name = partition.name
        free = partition.memory_bytes - sum(needs[key].memory_bytes for key in held[name] if key in needs)
        most = max(most, free)
        coming = [key for key in target[name] if key in new]
        if partition.memory_bytes and coming:
            lacking = sum(needs[key].memory_bytes for key in coming) - free
            leaving = _spare(lacking, needs, copies[name].difference(target[name]), copies, name)
            if leaving is None:
                continue
            copies[name].difference_update(leaving)
            if leaving:
                spare[name] = tuple(sorted(leaving))
        if coming:
            residency[name] = tuple(coming)
    return Room(residency, spare, most)


def log_missing_instances(models: Iterable[ScheduledModel], residency: Mapping[str, Collection[str]]) -> None:
    """Warn of models that fewer partitions hold than configured; `residency` has the models of each partition."""
    for model in models:
        partitions = sum(model.key in keys for keys in residency.values())
        if 0 < partitions < model.replicas:
            what = "fewer partitions than instances are asked for"
            log(logger, logging.WARNING, what, model=model.key, instances=model.replicas, partitions=partitions)


def _spare(
    lacking: int,
    needs: Mapping[str, ModelNeed],
    candidates: Collection[str],
    copies: Mapping[str, Collection[str]],
    partition: str,
) -> list[str] | None:
    """The candidates to unload for the lacking bytes, the largest first; None when they are not enough."""
    leaving: list[str] = []
    elsewhere = {key for name, models in copies.items() if name != partition for key in models}
    for key in sorted(elsewhere.intersection(candidates, needs), key=lambda key: (-needs[key].memory_bytes, key)):
        if lacking <= 0:
            break
        leaving.append(key)
        lacking -= needs[key].memory_bytes
    return leaving if lacking <= 0 else None
