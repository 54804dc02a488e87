"""A device for each tenant."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from sluice.mps.packing.tenant import Device, Tenant


class Exclusive(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="exclusive"):
    """Nobody shares: the rule of Kubernetes' device plugin for GPUs, which hands out whole ones."""

    growth_margin_mib: ClassVar[None] = None

    def in_order(self, waiting: Sequence[Tenant]) -> Sequence[Tenant]:
        """As they came."""
        return waiting

    def accounted_mib(self, tenant: Tenant) -> int:
        """What it asks for, though it gets all."""
        return tenant.request_mib

    def refusal(self, tenant: Tenant, device: Device) -> str | None:
        """Another tenant, or too small a device."""
        if device.residents:
            return f"{device.residents[0].tenant.name} has it for itself"
        if tenant.request_mib > device.memory_mib:
            return f"asks for {tenant.request_mib} MiB of {device.memory_mib}"
        return None

    def cost(self, tenant: Tenant, device: Device) -> float:
        """The first one."""
        return 0.0
