"""A spare worker, which has imported what workers need and becomes the next worker that is started."""

import asyncio
import os
import subprocess
from contextlib import suppress

from sluice.mps.supervisor.process import StartedProcess, start_process

END_S = 5.0
"""Time for the process to exit before it is killed."""


class SpareWorker:
    """At most one spare worker; all methods belong to the event loop's thread.

    It knows no partition, so it is on no cores of its own, and CUDA has not started in it.
    """

    def __init__(self) -> None:
        self._started: StartedProcess | None = None
        self._pidfd = -1

    def prepare(self) -> None:
        """Start one, if there is none; without the resources for it, there is none until the next call."""
        if self._started is not None:
            return
        with suppress(OSError):
            self._started = start_process(None)
            self._pidfd = os.pidfd_open(self._started.process.pid)
            asyncio.get_running_loop().add_reader(self._pidfd, self._exited)

    def take(self) -> StartedProcess | None:
        """Return the process, which belongs to the caller from now on; None if there is none."""
        started, self._started = self._started, None
        if started is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
        return started

    async def close(self) -> None:
        """End the process, if there is one."""
        if (started := self.take()) is not None:
            started.socket.close()
            await asyncio.to_thread(_end, started.process)

    def _exited(self) -> None:
        if (started := self.take()) is not None:
            started.socket.close()
            started.process.wait()


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
