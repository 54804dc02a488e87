"""Packing policies on partitions: which partition may take a model, by the memory that is assumed and sampled there.

The policies are those of `sluice.mps.packing`. A partition is a device to them, and its models are the tenants.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from sluice.batcher.state import ModelState, PartitionState
from sluice.mps.packing.policies import AnyPolicy
from sluice.mps.packing.tenant import Device, MemoryPhase, PlacedTenant, Tenant

SAMPLES = 60
"""Samples of the memory of a partition that policies see: the last ones."""
MIB = 1 << 20


def tenant_of(key: str, memory_bytes: int, *, loading: bool = False) -> Tenant:
    """A model as policies see it: it takes as much while it is loaded, and once it is there."""
    mib = -(-memory_bytes // MIB)
    return Tenant(key, mib, (MemoryPhase(mib, 1), MemoryPhase(mib)) if loading else (MemoryPhase(mib),))


def with_tenant(device: Device, tenant: Tenant) -> Device:
    """A device with one more tenant."""
    return Device(device.name, device.memory_mib, (*device.residents, PlacedTenant(tenant, 0)), device.used)


class PartitionPacking:
    """Asks a policy, and keeps the last samples of the memory in use by partition."""

    def __init__(self, policy: AnyPolicy) -> None:
        self._policy = policy
        self._used: dict[str, deque[float]] = {}

    def sampled(self, used: Mapping[str, int]) -> None:
        """Take down the bytes in use by partition."""
        for name, nbytes in used.items():
            self._used.setdefault(name, deque(maxlen=SAMPLES)).append(nbytes / MIB)

    def device(
        self, partition: PartitionState, capacity: int, held: Iterable[ModelState], loading: Iterable[ModelState] = ()
    ) -> Device:
        """A partition with a bound of `capacity` bytes, as policies see it."""
        tenants = [
            *(tenant_of(each.config.key, each.config.memory_on(partition.kind)) for each in held),
            *(tenant_of(each.config.key, each.config.memory_on(partition.kind), loading=True) for each in loading),
        ]
        residents = tuple(PlacedTenant(tenant, 0) for tenant in tenants)
        return Device(partition.name, capacity // MIB, residents, tuple(self._used.get(partition.name, ())))

    def refusal(self, model: ModelState, partition: PartitionState, device: Device) -> str | None:
        """The reason why a partition may not load a model beside what it has; None if it may."""
        return self._policy.refusal(self._tenant(model, partition), device)

    def cost(self, model: ModelState, partition: PartitionState, device: Device) -> float:
        """The cost of a partition for a model: the cheapest is preferred."""
        return self._policy.cost(self._tenant(model, partition), device)

    @staticmethod
    def _tenant(model: ModelState, partition: PartitionState) -> Tenant:
        return tenant_of(model.config.key, model.config.memory_on(partition.kind))
