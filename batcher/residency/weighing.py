"""What models are found to take of memory when they are loaded."""

import msgspec

from sluice.batcher.state.model import ModelState
from sluice.models.profiles.measurement import ModelMemory

PRECISION_BYTES = 1 << 20
"""How much more than was believed means nothing: what a process takes varies by some hundred KiB."""


def weigh(model: ModelState, kind: str, memory: ModelMemory) -> bool:
    """Take in what a model was found to take on a kind of partition; whether that is more than was believed.

    A profile is believed rather. Less is never believed: some of it may lie in memory that another model has left.
    """
    config = model.config
    taken = memory.of(config.max_batch)
    if kind in config.footprints or taken - config.memory_on(kind) <= PRECISION_BYTES:
        return False
    model.config = msgspec.structs.replace(config, weighed={**config.weighed, kind: taken})
    return True
