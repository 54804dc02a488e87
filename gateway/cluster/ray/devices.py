"""The device of a worker on a GPU: the one that Ray has counted for its actor, or a free MIG instance of the node."""

import fcntl
import os
import tempfile
from pathlib import Path

from sluice.models.errors import ControlFailed
from sluice.mps.nvidia.nvml import open_nvml

_UUIDS = ("GPU-", "MIG-")


def gpu_uuid(ray_id: str) -> str:
    """The UUID of a GPU by Ray's id, which is its number, or the UUID by which Ray was given it.

    Raises ValueError if the node has no such GPU, or no driver.
    """
    if ray_id.startswith(_UUIDS):
        return ray_id
    gpus = [uuid for uuid, _, profile in _devices() if not profile]
    if not ray_id.isdecimal() or int(ray_id) >= len(gpus):
        raise ValueError(f"Ray has counted GPU {ray_id} for this worker, but the driver of the node has {len(gpus)}")
    return gpus[int(ray_id)]


def free_instance(profile: str, directory: Path | None = None) -> str:
    """The UUID of a MIG instance of the profile that no other worker of this node has, until this process ends.

    Raises ValueError if there is none: Ray counts instances, but does not know them.
    """
    locks = directory or Path(tempfile.gettempdir()) / f"sluice-mig-{os.getuid()}"
    locks.mkdir(mode=0o700, exist_ok=True)
    instances = [uuid for uuid, _, each in _devices() if each == profile]
    for uuid in instances:
        lock = os.open(locks / uuid, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return uuid  # the lock stays with the open descriptor
    raise ValueError(
        f"expected a free MIG instance of the profile {profile}, but the node has {len(instances)}, all of which "
        "workers have; expected as many instances as Ray counts"
    )


def _devices() -> list[tuple[str, str, str]]:
    try:
        with open_nvml() as nvml:
            return [(each[0], each[1], each[2]) for each in nvml.devices()]
    except ControlFailed as error:
        raise ValueError(str(error)) from error
