"""Requested memory booked against that of devices, the largest request first."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from sluice.mps.packing.policy import largest_request_first, over_request
from sluice.mps.packing.tenant import Device, Tenant


class FirstFitDecreasing(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="first_fit_decreasing"
):
    """Res-Ag, the resource-agnostic sharing that Kube-Knots (CLUSTER '19) is compared with: no metrics."""

    growth_margin_mib: ClassVar[None] = None

    def in_order(self, waiting: Sequence[Tenant]) -> Sequence[Tenant]:
        """The largest request first."""
        return largest_request_first(waiting)

    def accounted_mib(self, tenant: Tenant) -> int:
        """Its request."""
        return tenant.request_mib

    def refusal(self, tenant: Tenant, device: Device) -> str | None:
        """Too little unreserved memory."""
        return over_request(tenant, device)

    def cost(self, tenant: Tenant, device: Device) -> float:
        """The first device."""
        return 0.0
