"""The control plane of both protocols: all queries and changes of a server apart from inference."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.inference.dataplane import EXTENSIONS
from sluice.gateway.management.repository_api import RepositoryApi
from sluice.gateway.observability.log_settings import LogSettings
from sluice.gateway.observability.statistics import Statistics
from sluice.gateway.observability.traces.settings import TraceSettings
from sluice.gateway.partitions.inventory import Inventory
from sluice.gateway.partitions.scaling import Scaling
from sluice.gateway.protocol.shared_memory import SharedMemory
from sluice.gateway.resizing.resizing import Resizing
from sluice.models.triton_config.as_json import model_config_json

_ORDER = (
    "classification",
    "sequence",
    "sequence(string_id)",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""The order of the extensions, as Triton lists them."""

NO_CUDA = "CUDA shared memory is not supported; use system shared memory, or send the data itself"


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The parts of a server that can be queried and changed. `epoch_ns` is the time of day at 0 of the clock."""

    registry: ModelRegistry
    repository: RepositoryApi
    statistics: Statistics
    shared_memory: SharedMemory
    logs: LogSettings
    traces: TraceSettings
    clock: Callable[[], int]
    epoch_ns: int
    inventory: Inventory
    resizing: Resizing
    scaling: Scaling

    @property
    def extensions(self) -> list[str]:
        """The supported protocol extensions."""
        served = {*EXTENSIONS, "model_configuration", "statistics", "logging"}
        if self.repository.changes:
            served |= {"model_repository", "model_repository(unload_dependents)"}
        if self.traces.available:
            served.add("trace")
        if not self.shared_memory.allowed:
            served.discard("system_shared_memory")
        return sorted(served, key=_ORDER.index)

    def model_config(self, name: str, version: str) -> dict[str, Any]:
        """The configuration of a pipeline as Triton prints it. Raises as `ModelRegistry.pipeline`."""
        return model_config_json(self.registry.pipeline(name, version))

    def model_statistics(self, name: str, version: str) -> dict[str, Any]:
        """The statistics of one version, of all ready versions of a name, or, for "", of everything that is ready.

        Raises as `ModelRegistry.pipeline`.
        """
        if version:
            wanted = [(name, str(self.registry.pipeline(name, version).version))]
        elif name:
            self.registry.pipeline(name, "")
            wanted = [(name, each) for each in self.registry.served(name)]
        else:
            wanted = [(known, each) for known in self.registry.names() for each in self.registry.served(known)]
        of, epoch_ns = self.statistics.of, self.epoch_ns
        memory = self.inventory.memory_usage()
        return {
            "model_stats": [
                of(f"{name}:{version}").report(name, version, epoch_ns, memory.get(f"{name}:{version}", []))
                for name, version in wanted
            ]
        }
