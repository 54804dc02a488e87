"""Instance groups: the number and kind of partitions that a configuration wants a model on."""

from collections.abc import Collection, Sequence

import msgspec

from sluice.models.errors import ConfigError
from sluice.models.triton_config.model_config import InstanceGroup

CPU, GPU, AUTO, MODEL = "KIND_CPU", "KIND_GPU", "KIND_AUTO", "KIND_MODEL"
_DEFAULT_COUNTS = {"onnxruntime": 2}
"""Triton's default of a missing count by backend; 1 for the others."""


def check_groups(groups: Sequence[InstanceGroup], path: str, kinds: Collection[str] = (CPU,)) -> None:
    """Check groups as written; raises ConfigError, whose message starts with `path` and names the group.

    `kinds` are the kinds of the partitions: of cores, of GPUs, or both. KIND_AUTO stands for any of them.
    """
    for number, group in enumerate(groups):
        at = f"{path}: instance_group {number}" + (f" ('{group.name}')" if group.name else "")
        if group.kind not in {CPU, GPU, AUTO, MODEL}:
            raise ConfigError(f"{at}: unknown kind {group.kind}; expected {CPU}, {GPU}, {AUTO} or {MODEL}")
        if group.kind == GPU and GPU not in kinds:
            listed = f" for gpus {list(group.gpus)}" if group.gpus else ""
            raise ConfigError(
                f"{at}: kind {GPU}{listed}, but no GPUs are available: partitions are sets of cores; "
                f"expected {CPU}, {AUTO} or {MODEL}"
            )
        if group.kind == CPU and CPU not in kinds:
            raise ConfigError(f"{at}: kind {CPU}, but all partitions are of GPUs; expected {GPU}, {AUTO} or {MODEL}")
        if group.kind in {CPU, GPU} and len(kinds) > 1:
            raise ConfigError(
                f"{at}: kind {group.kind}, but partitions are of cores and of GPUs, any of which may run a model; "
                f"expected {AUTO} or {MODEL}"
            )
        if group.gpus and (GPU not in kinds or group.kind in {CPU, MODEL}):
            kind = CPU if group.kind == AUTO else group.kind
            why = "it is for KIND_GPU" if GPU in kinds else "no GPUs are available"
            raise ConfigError(f"{at}: gpus: expected none with {kind}, got {list(group.gpus)}: {why}")


def completed_groups(
    groups: Sequence[InstanceGroup], name: str, backend: str, kinds: Collection[str] = (CPU,)
) -> tuple[InstanceGroup, ...]:
    """The groups as Triton completes them for the model `name`; it makes one up if there are none."""
    automatic = GPU if GPU in kinds else CPU
    default = _DEFAULT_COUNTS.get(backend, 1) if automatic == CPU else 1
    return tuple(
        msgspec.structs.replace(
            group,
            name=group.name or (f"{name}_{number}" if groups else name),
            kind=automatic if group.kind == AUTO else group.kind,
            count=group.count if group.count > 0 else 1 if group.kind == MODEL else default,
        )
        for number, group in enumerate(groups or (InstanceGroup(),))
    )


def replicas(groups: Sequence[InstanceGroup]) -> int:
    """The number of partitions that are to hold the model, if there are enough: the instances of all groups."""
    return sum(max(group.count, 1) for group in groups) or 1
