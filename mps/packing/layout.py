"""Packs tenants that stay onto devices, one after another."""

from collections.abc import Sequence

import msgspec

from sluice.mps.packing.policy import PackingPolicy, choose_device
from sluice.mps.packing.tenant import Device, PlacedTenant, Tenant


class PackingResult(msgspec.Struct, frozen=True):
    """The devices with their residents, and for each unplaced tenant the reason of every device."""

    devices: tuple[Device, ...]
    refused: dict[str, dict[str, str]]


def pack_tenants(policy: PackingPolicy, tenants: Sequence[Tenant], devices: Sequence[Device]) -> PackingResult:
    """Place each tenant in the order of the policy; each has loaded before the next one comes."""
    there = {device.name: device for device in devices}
    refused: dict[str, dict[str, str]] = {}
    for tenant in policy.in_order(tenants):
        device, reasons = choose_device(policy, tenant, list(there.values()))
        if device is None:
            refused[tenant.name] = reasons
        else:
            there[device.name] = _joined(device, tenant)
    return PackingResult(tuple(there.values()), refused)


def _joined(device: Device, tenant: Tenant) -> Device:
    residents = (*device.residents, PlacedTenant(tenant, tenant.starts_ns[-1]))
    return Device(device.name, device.memory_mib, residents, _together([each.tenant for each in residents]))


def _together(tenants: Sequence[Tenant]) -> tuple[float, ...]:
    """Samples of their joint use, empty if none was sampled; a tenant without samples counts with its steady memory."""
    count = max(len(tenant.usage) for tenant in tenants)
    series = [tenant.usage or (float(tenant.life[-1].memory_mib),) * count for tenant in tenants]
    return tuple(sum(samples) for samples in zip(*series, strict=True))
