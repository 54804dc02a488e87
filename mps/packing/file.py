"""The format of a file of models and devices to pack; errors name the place in the file."""

import math
from collections.abc import Callable
from typing import Any

import msgspec

from sluice.models.conversion import convert
from sluice.models.errors import ConfigError
from sluice.models.spelling import did_you_mean
from sluice.models.units import NS_PER_S
from sluice.models.yaml_file import load_yaml
from sluice.mps.packing.policies import DEFAULT, POLICIES, AnyPolicy
from sluice.mps.packing.tenant import Device, MemoryPhase, Tenant


class ProfileReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measurement of a model's memory: a profile, the kind of partition, and the largest batch."""

    file: str
    kind: str
    batch: int

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"expected batch of at least 1, got {self.batch}")


MeasureMemory = Callable[[ProfileReference], int]
"""Returns the MiB of a profile; raises ConfigError."""


class PackedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model as written, in MiB: its owner's request, and the measured memory while it loads and while it serves.

    `profile` is where the latter was measured, in place of `serve_mib`. `usage_mib` are samples of its use, taken at
    the same times as those of the other models; `share` is the part of the device's compute that it is guaranteed.
    """

    request_mib: int | None = None
    serve_mib: int | None = None
    load_mib: int | None = None
    profile: ProfileReference | None = None
    usage_mib: tuple[float, ...] = ()
    share: float = 0.0

    def __post_init__(self) -> None:
        if self.serve_mib is not None and self.profile is not None:
            raise ValueError("expected either `serve_mib` or `profile`")
        measured = self.serve_mib is not None or self.profile is not None
        if self.request_mib is None and not measured:
            raise ValueError("expected `request_mib`, or one of `serve_mib` and `profile`, or both")
        if self.load_mib is not None and not measured:
            raise ValueError("expected `serve_mib` or `profile` beside `load_mib`")
        for name in ("request_mib", "serve_mib", "load_mib"):
            if (mib := getattr(self, name)) is not None and mib < 1:
                raise ValueError(f"expected {name} of at least 1, got {mib}")
        if not 0 <= self.share <= 1:
            raise ValueError(f"expected share from 0 to 1, got {self.share:g}")
        if not all(0 <= mib < math.inf for mib in self.usage_mib):
            raise ValueError("expected finite samples of at least 0 in usage_mib")

    def tenant(self, name: str, measure: MeasureMemory) -> Tenant:
        """The model as policies see it; without a request it requests its peak."""
        serve_mib = self.serve_mib if self.profile is None else measure(self.profile)
        # The length of a load makes no difference: it ends before the next one begins.
        phases = [MemoryPhase(self.load_mib, NS_PER_S)] if self.load_mib is not None else []
        if serve_mib is not None:
            phases.append(MemoryPhase(serve_mib))
        request_mib = max(phase.memory_mib for phase in phases) if self.request_mib is None else self.request_mib
        return Tenant(name, request_mib, tuple(phases), self.usage_mib, self.share)


class PackingFile(msgspec.Struct, frozen=True):
    """The policy of a file with its name, and its devices and models in its order."""

    policy_name: str
    policy: AnyPolicy
    devices: tuple[Device, ...]
    models: tuple[Tenant, ...]


def decode_packing(text: str, path: str, measure: MeasureMemory) -> PackingFile:
    """Decode the text of a file; raises ConfigError, whose message starts with `path` and the place."""
    value, lines = load_yaml(text, path)

    def error(at: str, what: str) -> ConfigError:
        return lines.error(path, at, what)

    top = convert(value, PackingKeys, path, lines=lines)
    forms = {name: convert(each, PackedModel, path, f"models.{name}", lines=lines) for name, each in top.models.items()}
    try:
        models = tuple(form.tenant(name, measure) for name, form in forms.items())
    except ConfigError as wrong:
        raise error("models", str(wrong)) from wrong
    for name, memory_mib in top.devices.items():
        if memory_mib < 1:
            raise error(f"devices.{name}", f"expected at least 1 MiB, got {memory_mib}")
    if not models or not top.devices:
        raise error("", "expected at least one of `models` and one of `devices`")
    lengths = {len(model.usage): model.name for model in models if model.usage}
    if len(lengths) > 1:
        counts = ", ".join(f"{count} of {name}" for count, name in lengths.items())
        raise error("models", f"expected usage_mib with the same number of samples for each, got {counts}")
    devices = tuple(Device(name, memory_mib) for name, memory_mib in top.devices.items())
    given = {"name": top.policy} if isinstance(top.policy, str) else top.policy
    policy_name = given.get("name") if isinstance(given, dict) else None
    if not isinstance(policy_name, str) or policy_name not in POLICIES:
        hint = did_you_mean(policy_name, POLICIES) if isinstance(policy_name, str) else ""
        expected = f"one of {', '.join(POLICIES)}, or a mapping with it as `name` and its parameters"
        raise error("policy", f"expected {expected}{hint}")
    policy = convert(given, type(POLICIES[policy_name]), path, "policy", lines=lines)
    return PackingFile(policy_name, policy, devices, models)


class PackingKeys(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of a file."""

    devices: dict[str, int]
    models: dict[str, Any]
    policy: Any = DEFAULT
