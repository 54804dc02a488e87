"""Cores that the worker servers of a machine share out among themselves: a locked file for each core that is held."""

import fcntl
import os
import stat
import tempfile
from pathlib import Path

from sluice.models.errors import PartitionError
from sluice.mps.partitions.cpu import usable_cores

_held: list[int] = []
"""The locked files of this process, which stay open."""


def take_cores(count: int, directory: Path | None = None) -> tuple[int, ...]:
    """Take that many usable cores that no other worker server of this user holds, until the process ends.

    Raises PartitionError if there are fewer.
    """
    if count < 1:
        raise PartitionError(f"--cores auto:N: expected at least 1, got {count}")
    directory = directory or Path(tempfile.gettempdir()) / f"sluice-cores-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    about = os.lstat(directory)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise PartitionError(f"{directory}: expected a directory of the user {os.getuid()}")
    taken: dict[int, int] = {}
    cores = usable_cores()
    for core in cores:
        if len(taken) == count:
            break
        fd = os.open(directory / f"core-{core}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
        else:
            taken[core] = fd
    if len(taken) < count:
        for fd in taken.values():
            os.close(fd)
        raise PartitionError(
            f"--cores auto:{count}: {len(taken)} of the cores {list(cores)} are free; other workers hold the rest"
        )
    _held.extend(taken.values())
    return tuple(taken)
