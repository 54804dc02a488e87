"""Measured peaks, phase by phase, so that memory never runs out."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from sluice.mps.packing.tenant import Device, PlacedTenant, Tenant


class PeakSafe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="peak_safe"):
    """Sluice's own policy, against the restarts that percentiles and forecasts cost (Ferikoglou 2021: 71 of 180).

    A tenant counts with its measured memory in its current phase; its request counts only while nothing was measured.
    It is placed if at no later time all tenants together exceed the memory less `headroom_mib`: a job that ends before
    a new one has grown makes room for it, and a model that is loaded again later has its peak as well. Loads go one at
    a time, so that their peaks never meet. Memory in use that no resident accounts for counts as permanent: unknown
    neighbours, and jobs that outlive their prediction. If a prediction fails all the same, the growth margin keeps a
    load from growing into the headroom, or into memory that others need to finish: an error costs time, not memory.
    """

    headroom_mib: Annotated[int, msgspec.Meta(ge=0)] = 512

    @property
    def growth_margin_mib(self) -> int:
        """The headroom."""
        return self.headroom_mib

    def in_order(self, waiting: Sequence[Tenant]) -> Sequence[Tenant]:
        """The highest peak first."""
        return sorted(waiting, key=lambda tenant: -tenant.peak_mib)

    def accounted_mib(self, tenant: Tenant) -> int:
        """Its steady memory, or its peak if it ends."""
        return tenant.peak_mib if tenant.steady_mib is None else tenant.steady_mib

    def refusal(self, tenant: Tenant, device: Device) -> str | None:
        """Another load, or a time at which memory would run out."""
        if device.loading is not None:
            return f"{device.loading} is loading, and loads go one at a time"
        need = _most_mib(tenant, device)
        if need > device.memory_mib - self.headroom_mib:
            return f"all would come to {need} MiB, of {device.memory_mib} less {self.headroom_mib} of headroom"
        return None

    def cost(self, tenant: Tenant, device: Device) -> float:
        """The memory left at the highest peak: the tightest fit."""
        return device.memory_mib - _most_mib(tenant, device)


def _most_mib(tenant: Tenant, device: Device) -> int:
    """The most memory in use at any time from now on, with the tenant."""
    return device.unaccounted_mib + device.forecast.with_tenant(PlacedTenant(tenant, age_ns=0)).peak_mib
