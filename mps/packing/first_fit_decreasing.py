"""Requests booked against the memory of devices, the largest first."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from sluice.mps.packing.policy import largest_request_first, over_request
from sluice.mps.packing.tenant import Device, Tenant


class FirstFitDecreasing(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="first_fit_decreasing"
):
    """Res-Ag, the resource-agnostic sharing that Kube-Knots (CLUSTER '19) is measured against: no metrics."""

    growth_margin_mib: ClassVar[None] = None

    def in_order(self, waiting: Sequence[Tenant]) -> Sequence[Tenant]:
        """The largest request first."""
        return largest_request_first(waiting)

    def accounted_mib(self, tenant: Tenant) -> int:
        """What it asks for."""
        return tenant.request_mib

    def refusal(self, tenant: Tenant, device: Device) -> str | None:
        """Too little that is not promised."""
        return over_request(tenant, device)

    def cost(self, tenant: Tenant, device: Device) -> float:
        """The first one."""
        return 0.0
