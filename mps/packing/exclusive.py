"""One device for each tenant."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from sluice.mps.packing.tenant import Device, Tenant


class Exclusive(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="exclusive"):
    """No sharing: the rule of Kubernetes' device plugin for GPUs, which hands out whole ones."""

    growth_margin_mib: ClassVar[None] = None

    def in_order(self, waiting: Sequence[Tenant]) -> Sequence[Tenant]:
        """In order of arrival."""
        return waiting

    def accounted_mib(self, tenant: Tenant) -> int:
        """Its request, though it gets the whole device."""
        return tenant.request_mib

    def refusal(self, tenant: Tenant, device: Device) -> str | None:
        """Another tenant, or too small a device."""
        if device.residents:
            return f"{device.residents[0].tenant.name} has the device to itself"
        if tenant.request_mib > device.memory_mib:
            return f"requests {tenant.request_mib} MiB of {device.memory_mib}"
        return None

    def cost(self, tenant: Tenant, device: Device) -> float:
        """The first device."""
        return 0.0
