"""A worker that cannot be started leaves nothing behind."""

import errno
import os

import pytest

from sluice.mps.partitions.cpu import default_partitions
from sluice.mps.supervisor.child import launch_worker


def test_a_worker_whose_exit_cannot_be_watched_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def refuse(pid: int) -> int:
        seen.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        launch_worker(default_partitions()[0])
    assert os.listdir("/proc/self/fd") == before
    (pid,) = seen
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
