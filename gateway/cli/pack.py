"""`sluice partitions pack`: prints which models share a device, by their memory and a policy."""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from sluice.models.errors import ConfigError
from sluice.models.profiles.file import ProfileMissing, read_profile
from sluice.models.text_table import table_lines
from sluice.mps.packing.file import ProfileReference, decode_packing
from sluice.mps.packing.layout import PackingResult, pack_tenants
from sluice.mps.packing.policies import DEFAULT, POLICIES
from sluice.mps.packing.policy import PackingPolicy, format_percent

OTHERWISE = 1
"""Exit status when a model fits on no device."""


def add_pack_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("file", type=Path, metavar="FILE", help="devices and models with their memory, in YAML")
    parser.add_argument("--policy", choices=POLICIES, help=f"policy that overrides the file's (default {DEFAULT})")
    parser.add_argument("--json", action="store_true", help="print JSON")


def pack(options: argparse.Namespace) -> int:
    """Print the placement of all models and the reasons for those that fit nowhere; returns the exit status."""
    try:
        text = options.file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{options.file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{options.file}: cannot be read: {error}") from error
    file = decode_packing(text, str(options.file), partial(_measured_mib, options.file.parent))
    name: str = options.policy or file.policy_name
    # The parameters in the file belong to the file's own policy.
    policy: PackingPolicy = file.policy if name == file.policy_name else POLICIES[name]
    packed = pack_tenants(policy, file.models, file.devices)
    if options.json:
        print(msgspec.json.encode(_document(name, policy, packed)).decode())
    else:
        for line in _lines(name, policy, packed):
            print(line)
    return OTHERWISE if packed.refused else 0


def _measured_mib(directory: Path, profiled: ProfileReference) -> int:
    """The measured memory of a model with its largest batch; the path of its profile is relative to the directory."""
    path = directory / profiled.file
    profile = read_profile(path)
    try:
        entry = profile.entry(profiled.kind)
    except ProfileMissing as error:
        raise ConfigError(f"{path}: {error}") from error
    if entry.memory_rest_bytes is None or entry.memory_row_bytes is None:
        raise ConfigError(f"{path}: the memory on partitions of kind {profiled.kind} was not measured")
    return max(1, -(-(entry.memory_rest_bytes + profiled.batch * entry.memory_row_bytes) // 2**20))


def _lines(name: str, policy: PackingPolicy, packed: PackingResult) -> Iterator[str]:
    placed = sum(len(device.residents) for device in packed.devices)
    count = placed + len(packed.refused)
    devices = f"{len(packed.devices)} {'device' if len(packed.devices) == 1 else 'devices'}"
    yield f"{name}: {placed} of {count} {'model' if count == 1 else 'models'} on {devices}"
    rows = [("device", "model", "counts for", "asks for", "share")]
    for device in packed.devices:
        tenants = [each.tenant for each in device.residents]
        counted = sum(map(policy.accounted_mib, tenants))
        memory = f"{counted} of {device.memory_mib} MiB"
        rows.append((device.name, "", memory, f"{device.requested_mib} MiB", _share(device.share)))
        rows += [
            ("", each.name, f"{policy.accounted_mib(each)} MiB", f"{each.request_mib} MiB", _share(each.share))
            for each in tenants
        ]
    yield from (f"  {line}" for line in table_lines(rows, 2))
    for device in packed.devices:
        if (most_mib := device.forecast.peak_mib) > device.memory_mib:
            yield f"{device.name} can run out of memory: the measured peaks of its models add up to {most_mib} MiB"
    for model, reasons in packed.refused.items():
        yield f"{model} fits on no device:"
        yield from (f"  {device}: {reason}" for device, reason in reasons.items())


def _share(share: float) -> str:
    return format_percent(share) if share else "-"


def _document(name: str, policy: PackingPolicy, packed: PackingResult) -> dict[str, object]:
    return {
        "policy": name,
        "devices": [
            {
                "name": device.name,
                "memory_mib": device.memory_mib,
                "peak_mib": device.forecast.peak_mib,
                "models": [
                    {
                        "name": each.tenant.name,
                        "counts_for_mib": policy.accounted_mib(each.tenant),
                        "request_mib": each.tenant.request_mib,
                        "share": each.tenant.share,
                    }
                    for each in device.residents
                ],
            }
            for device in packed.devices
        ],
        "refused": packed.refused,
    }
