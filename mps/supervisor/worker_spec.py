"""The worker of one partition as the gateway asks for it."""

# A module of its own: `worker_slot` needs it too, and `supervisor` imports that module.

import msgspec

from sluice.models.measuring.model_loading import DEFAULT_MODEL_LOADING, ModelLoadingSettings
from sluice.mps.ipc.messages import ModelFile
from sluice.mps.partitions.partition import Partition


class WorkerSpec(msgspec.Struct, frozen=True):
    """One partition's worker: the models that it may hold, and the keys of those that it starts with (None: all)."""

    partition: Partition
    models: tuple[ModelFile, ...]
    output_bytes: int
    initial: tuple[str, ...] | None = None
    loading: ModelLoadingSettings = DEFAULT_MODEL_LOADING
