"""The decisions of a packing policy, and the choice of a device by one."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from sluice.mps.packing.tenant import Device, Tenant

_ROUNDING = 1e-9


class PackingPolicy(Protocol):
    """Decides which tenants may share a device, from what is known of their memory."""

    @property
    def growth_margin_mib(self) -> int | None:
        """Memory that must stay free for a tenant to grow; until then it waits. None: it grows at once, or fails."""

    def in_order(self, waiting: Sequence[Tenant]) -> Sequence[Tenant]:
        """The order in which waiting tenants are tried; one that does not fit does not block the next."""

    def accounted_mib(self, tenant: Tenant) -> int:
        """The memory that a tenant counts with."""

    def refusal(self, tenant: Tenant, device: Device) -> str | None:
        """The reason why the tenant may not be placed there now, None if it may."""

    def cost(self, tenant: Tenant, device: Device) -> float:
        """The cost of a device that does not refuse: the cheapest is taken, the first of equals."""


def choose_device(
    policy: PackingPolicy, tenant: Tenant, devices: Iterable[Device]
) -> tuple[Device | None, dict[str, str]]:
    """Return the device for a tenant, None if there is none, and the other devices' reasons."""
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
    """The reason why its compute share does not fit beside the others', None if it does; none is overcommitted."""
    free = 1 - device.share
    if tenant.share <= free + _ROUNDING:
        return None
    others = (
        f"{each.tenant.name} {format_percent(each.tenant.share)}" for each in device.residents if each.tenant.share
    )
    return (
        f"requests {format_percent(tenant.share)} of the compute, and {format_percent(max(0, free))} is not reserved "
        f"({', '.join(others)})"
    )


def format_percent(share: float) -> str:
    """A part of the compute as messages write it."""
    return f"{100 * share:g}%"


def largest_request_first(waiting: Sequence[Tenant]) -> list[Tenant]:
    """By request; equal ones in order of arrival."""
    return sorted(waiting, key=lambda tenant: -tenant.request_mib)


def over_request(tenant: Tenant, device: Device) -> str | None:
    """The reason why its request does not fit beside the others' requests, None if it fits."""
    free = device.memory_mib - device.requested_mib
    if tenant.request_mib <= free:
        return None
    return f"requests {tenant.request_mib} MiB, and {max(0, free)} of {device.memory_mib} are not reserved"
