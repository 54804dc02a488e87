"""What a packing policy decides, and the choice of a device by one."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from sluice.mps.packing.tenant import Device, Tenant

_ROUNDING = 1e-9


class PackingPolicy(Protocol):
    """Decides which tenants may share a device, from what is known of their memory."""

    @property
    def growth_margin_mib(self) -> int | None:
        """What a tenant that grows has to leave free: till it can, it waits. None: it grows at once, or fails."""

    def in_order(self, waiting: Sequence[Tenant]) -> Sequence[Tenant]:
        """The order in which tenants that wait are tried; who does not fit holds up nobody behind it."""

    def accounted_mib(self, tenant: Tenant) -> int:
        """What a tenant counts for."""

    def refusal(self, tenant: Tenant, device: Device) -> str | None:
        """Why the tenant may not go there now, or None if it may."""

    def cost(self, tenant: Tenant, device: Device) -> float:
        """Of the devices that do not refuse, the one with the least is taken, and the first of several."""


def choose_device(
    policy: PackingPolicy, tenant: Tenant, devices: Iterable[Device]
) -> tuple[Device | None, dict[str, str]]:
    """The device that a tenant goes to, and why each of the others refuses it: for compute, or for memory."""
    best: tuple[float, Device] | None = None
    refusals: dict[str, str] = {}
    for device in devices:
        reason = _oversubscribed(tenant, device) or policy.refusal(tenant, device)
        if reason is not None:
            refusals[device.name] = reason
            continue
        cost = policy.cost(tenant, device)
        if best is None or cost < best[0]:
            best = cost, device
    return (None if best is None else best[1]), refusals


def _oversubscribed(tenant: Tenant, device: Device) -> str | None:
    """Why its share is not to be had beside those of the others, or None if it is; no policy promises any twice."""
    free = 1 - device.share
    if tenant.share <= free + _ROUNDING:
        return None
    others = (
        f"{each.tenant.name} {format_percent(each.tenant.share)}" for each in device.residents if each.tenant.share
    )
    return (
        f"asks for {format_percent(tenant.share)} of the compute, and {format_percent(max(0, free))} is not promised "
        f"({', '.join(others)})"
    )


def format_percent(share: float) -> str:
    """A part of the compute, as it is told."""
    return f"{100 * share:g}%"


def largest_request_first(waiting: Sequence[Tenant]) -> list[Tenant]:
    """By what they ask for; equal ones as they came."""
    return sorted(waiting, key=lambda tenant: -tenant.request_mib)


def over_request(tenant: Tenant, device: Device) -> str | None:
    """Why what is asked for does not fit beside what the others asked for, or None if it does."""
    free = device.memory_mib - device.requested_mib
    if tenant.request_mib <= free:
        return None
    return f"asks for {tenant.request_mib} MiB, and {max(0, free)} of {device.memory_mib} are not promised to others"
