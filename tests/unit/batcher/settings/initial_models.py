"""Specs of servers that begin."""

import msgspec

from sluice.batcher.interface.config import PartitionConfig, SchedulerSpec
from tests.support.scheduling.builders import model, spec_of


def spec(memory: int, **models: dict[str, object]) -> SchedulerSpec:
    """Models of one byte each, except those that are given."""
    configs = [
        msgspec.structs.replace(model(f"{name}:1"), **{"memory_bytes": 1, **given}) for name, given in models.items()
    ]
    return spec_of(configs, partitions=[PartitionConfig("only", "cpu1", memory_bytes=memory)])
