"""Measured peaks, phase by phase, so that memory never runs out."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from sluice.mps.packing.tenant import Device, PlacedTenant, Tenant


class PeakSafe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="peak_safe"):
    """Ours, against the restarts that percentiles and forecasts of samples cost (Ferikoglou et al., 2021: 71 of 180).

    A tenant counts for what was measured of it, in the phase that it is in, and only while nothing was measured for
    what it asks for. It may come when at no time to come all together exceed the memory less `headroom_mib`: a job that
    ends before a new one has grown makes room for it, and a model that is loaded again later has its peak as well.
    Loads go one at a time, so that their peaks never meet. Memory in use that nobody on the device should take counts
    for good: neighbours that nothing is known of, and jobs that outlive their prediction. When a prediction fails
    nevertheless, the gate keeps a load from growing into the head-room, or into what others need to come to an end: an
    error costs time, not memory.
    """

    headroom_mib: Annotated[int, msgspec.Meta(ge=0)] = 512

    @property
    def growth_margin_mib(self) -> int:
        """The head-room."""
        return self.headroom_mib

    def in_order(self, waiting: Sequence[Tenant]) -> Sequence[Tenant]:
        """The highest peak first."""
        return sorted(waiting, key=lambda tenant: -tenant.peak_mib)

    def accounted_mib(self, tenant: Tenant) -> int:
        """What it takes for good, or at its peak if it ends."""
        return tenant.peak_mib if tenant.steady_mib is None else tenant.steady_mib

    def refusal(self, tenant: Tenant, device: Device) -> str | None:
        """Another load, or a time at which memory would run out."""
        if device.loading is not None:
            return f"{device.loading} is loading, and loads go one at a time"
        need = _most_mib(tenant, device)
        if need > device.memory_mib - self.headroom_mib:
            return f"all would come to {need} MiB, of {device.memory_mib} less {self.headroom_mib} of head-room"
        return None

    def cost(self, tenant: Tenant, device: Device) -> float:
        """What is left at the highest peak: the tightest fit."""
        return device.memory_mib - _most_mib(tenant, device)


def _most_mib(tenant: Tenant, device: Device) -> int:
    """The most memory that is in use at a time from now on, with the tenant."""
    return device.unaccounted_mib + device.forecast.with_tenant(PlacedTenant(tenant, age_ns=0)).peak_mib
