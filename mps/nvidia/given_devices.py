"""The GPUs and MIG instances that this process was given: by the driver, and by variables that name devices."""

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import msgspec

from sluice.models.errors import ControlFailed, PartitionError
from sluice.mps.nvidia.nvml import open_nvml
from sluice.mps.partitions.partition import GIVEN, MigPartition, MpsPartition, Partition

_NAMING = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""The variables that name devices: those of a container, and those of programs."""
_NONE = {"NVIDIA_VISIBLE_DEVICES": ("none",), "CUDA_VISIBLE_DEVICES": ("", "-1", "NoDevFiles")}
"""Their values for no device at all."""
_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
"""The variable by which NVIDIA's device plugin names the directory of its MPS daemon."""
_UUIDS = ("GPU-", "MIG-")


class GivenDevice(NamedTuple):
    """A device for one program or more. `gpu` is the UUID of its GPU, `profile` that of a MIG instance, else ""."""

    uuid: str
    gpu: str
    profile: str


@cache
def given_devices() -> tuple[GivenDevice, ...]:
    """The devices of this process, which stay the same: whole GPUs, and the MIG instances of those in MIG mode.

    In a container the driver shows only those that the container has. Empty without a driver. Raises PartitionError
    for variables that do not name devices by UUID.
    """
    found: list[GivenDevice] = []
    with suppress(ControlFailed), open_nvml() as nvml:
        found = [GivenDevice(*each) for each in nvml.devices()]
    return named_devices(found, os.environ)


def named_devices(devices: Collection[GivenDevice], environment: Mapping[str, str]) -> tuple[GivenDevice, ...]:
    """Those of the devices that the variables allow; raises as `given_devices`."""
    left = list(devices)
    for variable in _NAMING:
        if (value := environment.get(variable)) is None:
            continue
        words = [word.strip() for word in value.split(",")]
        if value in _NONE[variable]:
            return ()
        if all(word.startswith(_UUIDS) for word in words):
            left = [each for each in left if any(_is_named(each, word) for word in words)]
        elif variable == "CUDA_VISIBLE_DEVICES" and left:
            # NVIDIA's container toolkit has followed its own variable already, and gives the devices new numbers.
            raise PartitionError(f"{variable}: expected UUIDs such as GPU-5d1f7b7a, got '{value:.80}'")
    return tuple(left)


def given_partitions() -> tuple[Partition, ...]:
    """A partition for each device: `mig0` … for MIG instances, `gpu0` … for whole GPUs, which MPS serves.

    Raises as `given_devices`.
    """
    partitions: list[Partition] = []
    for device in given_devices():
        mig = [each for each in partitions if isinstance(each, MigPartition)]
        if device.profile:
            partitions.append(MigPartition(f"mig{len(mig)}", device.uuid, device.profile))
        else:
            partitions.append(MpsPartition(f"gpu{len(partitions) - len(mig)}", device.uuid, 100))
    return tuple(partitions)


def on_given_device(partition: MpsPartition) -> MpsPartition:
    """The share on the only device of this process, if it names none, and of the daemon of its environment.

    Raises PartitionError unless there are such.
    """
    if partition.pipes == GIVEN:
        pipes = os.environ.get(_PIPES, "")
        if not pipes.startswith("/"):
            expected = f"expects a daemon's directory in the environment variable {_PIPES}"
            raise PartitionError(f"partition {partition.name}: pipes: {GIVEN} {expected}, got '{pipes}'")
        partition = msgspec.structs.replace(partition, pipes=pipes)
    if partition.uuid != GIVEN:
        return partition
    devices = given_devices()
    if len(devices) != 1:
        listed = ", ".join(each.uuid for each in devices) or "none"
        raise PartitionError(f"partition {partition.name}: uuid: {GIVEN} expects one GPU or MIG instance, got {listed}")
    return msgspec.structs.replace(partition, uuid=devices[0].uuid, profile=devices[0].profile)


def _is_named(device: GivenDevice, word: str) -> bool:
    """True if a UUID, or the beginning of it, names a device or its whole GPU."""
    return device.uuid.startswith(word) or device.gpu.startswith(word)
