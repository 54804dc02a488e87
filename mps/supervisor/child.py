"""The operating system's side of a worker, or of another process of ours: the process, and our end of its socket."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sluice.mps.isolation.launch import module_environment
from sluice.mps.isolation.pinning import array_library_environment, worker_environment
from sluice.mps.partitions.partition import Partition


class Child(Protocol):
    """A process of ours. `socket` is our end of the channel to it, which the caller owns."""

    pid: int
    socket: socket.socket

    def fileno(self) -> int:
        """A descriptor that is readable from the exit of the process on."""
        ...

    def kill(self) -> None:
        """Send SIGKILL to the process, which may have exited."""
        ...

    def wait(self) -> int:
        """Return the exit status once the process has exited, negative for a signal, and free `fileno`."""
        ...


Launch = Callable[[Partition | None, int | None], Child]
"""Starts the worker of a partition, or a spare one (None), which may become the worker of any partition.

The second argument is a descriptor for what libraries and models print (None: the gateway's own).

Raises OSError or PartitionError, and leaves nothing behind then.
"""


class ChildProcess:
    """A running process of this machine (see `Child`)."""

    def __init__(self, process: "subprocess.Popen[bytes]", ours: socket.socket) -> None:
        self.pid = process.pid
        self.socket = ours
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)

    def fileno(self) -> int:
        """The process's pidfd."""
        return self._pidfd

    def kill(self) -> None:
        """Send SIGKILL."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the process, and close its pidfd."""
        status = self._process.wait()
        os.close(self._pidfd)
        return status


def launch_worker(partition: Partition | None, stdout: int | None = None, stderr: int | None = None) -> ChildProcess:
    """Start a process of this machine (see `Launch`); `stderr` is its standard error (None: the gateway's own)."""
    if partition is None:
        arguments, environment = ["", "--spare"], array_library_environment()
    else:
        arguments, environment = [",".join(map(str, partition.cores))], worker_environment(partition)
    return launch_module("sluice.mps.worker.start", arguments, environment, stdout, stderr)


def launch_module(
    module: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] = {},
    stdout: int | None = None,
    stderr: int | None = None,
) -> ChildProcess:
    """Start a module of Sluice, which gets `--socket` and the number of its end of the channel after the arguments.

    Raises OSError, and leaves nothing behind then.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            process = _spawn(module, arguments, environment, theirs, stdout, stderr)
        except BaseException:
            ours.close()
            raise
    try:
        return ChildProcess(process, ours)
    except OSError:  # no descriptor is left for it
        ours.close()
        process.kill()
        process.wait()
        raise


def _spawn(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    theirs: socket.socket,
    stdout: int | None,
    stderr: int | None,
) -> "subprocess.Popen[bytes]":
    """Start the process in a session of its own, so that a terminal's interrupt reaches the gateway alone."""
    return subprocess.Popen(
        # -P: a directory that the gateway happens to be started in must not shadow modules.
        [sys.executable, "-P", "-m", module, *arguments, "--socket", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env={**module_environment(), **environment},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
