"""Requested memory booked against that of devices; the tightest fit is taken."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from sluice.mps.packing.tenant import Device, Tenant


class BestFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="best_fit"):
    """The rule of Alibaba Cloud's gpushare scheduler extender: filter by unreserved memory, bind to the fullest device.

    Memory is booked in whole units of `unit_mib`: a device has as many as it holds, a tenant takes as many as it needs.
    Nothing is measured, so memory that a tenant requests and does not use stays idle.
    """

    unit_mib: Annotated[int, msgspec.Meta(ge=1)] = 1
    growth_margin_mib: ClassVar[None] = None

    def in_order(self, waiting: Sequence[Tenant]) -> Sequence[Tenant]:
        """In order of arrival."""
        return waiting

    def accounted_mib(self, tenant: Tenant) -> int:
        """Its request, rounded up to units."""
        return -(-tenant.request_mib // self.unit_mib) * self.unit_mib

    def refusal(self, tenant: Tenant, device: Device) -> str | None:
        """Too little unreserved memory."""
        left = self._left(device)
        if self.accounted_mib(tenant) <= left:
            return None
        return f"takes {self.accounted_mib(tenant)} MiB, and {max(0, left)} of {device.memory_mib} are not reserved"

    def cost(self, tenant: Tenant, device: Device) -> float:
        """The memory that is left."""
        return self._left(device) - self.accounted_mib(tenant)

    def _left(self, device: Device) -> int:
        units = device.memory_mib // self.unit_mib * self.unit_mib
        return units - sum(self.accounted_mib(each.tenant) for each in device.residents)
