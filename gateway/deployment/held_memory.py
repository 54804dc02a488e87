"""The memory that models take where they are held, and where each figure comes from."""

from typing import Literal, NamedTuple

from sluice.batcher.interface.config import ScheduledModel
from sluice.batcher.scheduler.scheduler import Scheduler

Source = Literal["profile", "load", "file"]


class Held(NamedTuple):
    """A model that a partition holds, with the bytes that residency counts for it."""

    memory_bytes: int
    source: Source


def held_memory(scheduler: Scheduler, partition: str) -> dict[str, Held]:
    """The models that a partition holds, by key."""
    fleet = scheduler.dispatcher.fleet
    state = fleet.partitions[partition]
    models = {key: fleet.models[key].config for key in sorted(state.models)}
    return {key: Held(model.memory_on(state.kind), _source(model, state.kind)) for key, model in models.items()}


def _source(model: ScheduledModel, kind: str) -> Source:
    if kind in model.footprints:
        return "profile"
    return "load" if kind in model.weighed else "file"
