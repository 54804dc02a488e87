"""Correlation-based provisioning: a tenant that does not peak with the others gets the memory that they leave idle."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from sluice.mps.packing.policy import largest_request_first, over_request
from sluice.mps.packing.series import percentile, rank_correlation, variation
from sluice.mps.packing.tenant import Device, Tenant


class CorrelationBased(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="cbp"):
    """CBP of Kube-Knots (CLUSTER '19), with the checks of Ferikoglou et al. (2021) that replaced two of them.

    A tenant whose request fits is placed. Otherwise the device's free memory has to be steady (coefficient of variation
    below `cov_max`), and the tenant must not correlate with any resident (Spearman's rho below `corr_max`, where the
    use of both was sampled); it is then accounted by the `percentile` of its own use, against that of the device's.
    From Kube-Knots: the correlation, the percentile of the tenant's own use. From Ferikoglou: that requests come first,
    the coefficient of variation, the percentile of the device's use. A percentile is not a peak: with the samples above
    it, memory can run out.
    """

    percentile: Annotated[float, msgspec.Meta(gt=0, le=100)] = 80
    corr_max: Annotated[float, msgspec.Meta(ge=-1)] = 0.5
    cov_max: Annotated[float, msgspec.Meta(ge=0)] = 0.5
    samples_min: Annotated[int, msgspec.Meta(ge=2)] = 20
    growth_margin_mib: ClassVar[None] = None

    def in_order(self, waiting: Sequence[Tenant]) -> Sequence[Tenant]:
        """The largest request first."""
        return largest_request_first(waiting)

    def accounted_mib(self, tenant: Tenant) -> int:
        """The percentile of its use, or its request if its use was not sampled."""
        return round(percentile(tenant.usage, self.percentile)) if tenant.usage else tenant.request_mib

    def refusal(self, tenant: Tenant, device: Device) -> str | None:
        """Its request does not fit, and the samples do not show that its use does."""
        reason = over_request(tenant, device)
        if reason is None:
            return None
        if len(device.used) < self.samples_min:
            return f"{reason}; {len(device.used)} samples of its memory are too few, expected {self.samples_min}"
        for other in (each.tenant for each in device.residents if each.tenant.usage and tenant.usage):
            rho = rank_correlation(tenant.usage, other.usage)
            if rho >= self.corr_max:
                return f"{reason}; it goes up with {other.name} (rank correlation {rho:.2f})"
        unsteady = variation(device.free)
        if unsteady >= self.cov_max:
            return f"{reason}; the free memory is unsteady (coefficient of variation {unsteady:.2f})"
        idle = round(device.memory_mib - percentile(device.used, self.percentile))
        if self.accounted_mib(tenant) > idle:
            return f"{reason}; {idle} MiB are idle at the {self.percentile:g}th percentile"
        return None

    def cost(self, tenant: Tenant, device: Device) -> float:
        """The memory in use: the device with the most free memory comes first."""
        return (device.used[-1] if device.used else device.requested_mib) - device.memory_mib
