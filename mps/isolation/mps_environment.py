"""The environment of a process that is to be a limited MPS client, and the files by which it finds its daemon."""

import errno
import json
import os
import socket
import time
from pathlib import Path

from sluice.models.errors import PartitionError
from sluice.mps.partitions.partition import MpsPartition, ShareMode

SOCKET_PATH_LIMIT = 107
"""Longest path of a Unix socket in bytes; a daemon with a longer one dies, and its clients do not find it."""

STATIC_SETS_FILE = "sets.json"
"""File beside the pipe directory: the static sets of multiprocessors by partition, written by the daemon's owner."""

NO_DAEMON = "/nonexistent"
"""A pipe directory without a daemon: CUDA then runs without MPS, whichever daemons there are."""

JOIN_S = 10.0
"""Time for a daemon that has ended to be back."""

_SOCKET = "control"
_BELOW_NORMAL = "1"
_LOOK_S = 0.05
_MIB = 1 << 20


def environment_without_mps() -> dict[str, str]:
    """This process's environment without settings of MPS, which belong to each process alone."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}


def mps_environment(partition: MpsPartition, pipes: Path) -> dict[str, str]:
    """The environment of a worker on `partition` whose daemon listens in `pipes`.

    The device is named by UUID, which means the same to every daemon; to the worker it is device 0, to which the memory
    limit applies. A share without a guarantee gets a lower priority, which is only a hint. A worker on a static set
    looks the set up by itself (`await_daemon`). Raises PartitionError when the directory's path is too long for a
    socket.
    """
    variables = {
        "CUDA_MPS_PIPE_DIRECTORY": str(checked_pipe_directory(pipes)),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(partition.cap_percent),
        "CUDA_VISIBLE_DEVICES": partition.uuid,
    }
    if partition.mode is ShareMode.UNCAPPED:
        variables["CUDA_MPS_CLIENT_PRIORITY"] = _BELOW_NORMAL
    if partition.memory_bytes:
        variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={format_memory_limit(partition.memory_bytes)}"
    return variables


def await_daemon(partition: MpsPartition, timeout_s: float = JOIN_S) -> None:
    """Wait until the daemon of this process's environment accepts clients, and give CUDA the name of the static set.

    Call it before CUDA starts, which would silently run without MPS. Raises PartitionError when the daemon, or the set,
    is not there in time.
    """
    pipes = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    give_up = time.monotonic() + timeout_s
    while True:
        try:
            _check_listens(partition, pipes)
            if name := static_set(partition, pipes.parent.parent):
                os.environ["CUDA_MPS_SM_PARTITION"] = name
            return
        except PartitionError:
            if time.monotonic() >= give_up:
                raise
        time.sleep(_LOOK_S)


def pipes_of(partition: MpsPartition) -> Path:
    """The directory in which the daemon of a share meets its clients."""
    return Path(partition.pipes) if partition.pipes else pipe_directory(partition.uuid)


def device_directory(device: str, root: Path | None = None) -> Path:
    """The directory of the MPS daemon of a GPU or MIG device, under `root`; the default root belongs to this user."""
    return (root or default_root()) / device


def pipe_directory(device: str, root: Path | None = None) -> Path:
    """The directory in which the MPS daemon of a GPU or MIG device, by UUID, meets its clients."""
    return device_directory(device, root) / "pipe"


def static_set(partition: MpsPartition, root: Path | None = None) -> str:
    """The name of the daemon's static set for a partition, "" if the partition is not static; raises PartitionError."""
    if partition.mode is not ShareMode.STATIC:
        return ""
    try:
        names: dict[str, str] = json.loads((device_directory(partition.uuid, root) / STATIC_SETS_FILE).read_bytes())
        return names[partition.name]
    except (OSError, ValueError, KeyError):
        raise PartitionError(
            f"partition {partition.name}: no static set of multiprocessors; expected a running server that has made it"
        ) from None


def default_root() -> Path:
    """A short path, the same for all processes of this user: later ones find the daemons of earlier ones."""
    return Path(f"/tmp/sluice-mps-{os.getuid()}")


def format_memory_limit(memory_bytes: int) -> str:
    """Write a memory limit as MPS does: whole MiB, rounded down; raises PartitionError below one."""
    if memory_bytes < _MIB:
        raise PartitionError(f"memory limit: expected at least 1 MiB, got {memory_bytes} bytes")
    return f"{memory_bytes // _MIB}M"


def checked_pipe_directory(directory: Path) -> Path:
    """Return `directory`; raises PartitionError if it is relative, or too long a path for the socket in it."""
    path = str(directory / _SOCKET)
    if not directory.is_absolute():
        raise PartitionError(f"MPS pipe directory {directory}: expected an absolute path")
    if len(path.encode()) > SOCKET_PATH_LIMIT:
        raise PartitionError(
            f"MPS pipe directory {directory}: the socket in it would have a path of {len(path.encode())} bytes, "
            f"expected at most {SOCKET_PATH_LIMIT}"
        )
    return directory


def _check_listens(partition: MpsPartition, pipes: Path) -> None:
    try:
        if not _connects(pipes, socket.SOCK_SEQPACKET):  # NVIDIA documents no kind; this is that of driver 580
            _connects(pipes, socket.SOCK_STREAM)
    except OSError as error:
        raise PartitionError(
            f"partition {partition.name}: no MPS daemon listens in {pipes} ({error.strerror}), "
            "without which CUDA would run without a limit"
        ) from None


def _connects(pipes: Path, kind: socket.SocketKind) -> bool:
    """Connect to the daemon's socket; returns False if it is of another kind. Raises OSError if nothing listens."""
    with socket.socket(socket.AF_UNIX, kind) as connection:
        try:
            connection.connect(str(pipes / _SOCKET))
        except OSError as error:
            if error.errno == errno.EPROTOTYPE:
                return False
            raise
    return True
