"""A spare worker, which has imported what workers need and becomes the next worker that is started."""

import asyncio
from contextlib import suppress

from sluice.mps.partitions.partition import Partition
from sluice.mps.supervisor.child import Child, Launch
from sluice.mps.supervisor.process import wait_for_exit

END_S = 5.0
"""Time for the process to exit before it is killed, and after that."""


class SpareWorker:
    """At most one spare worker; all methods belong to the event loop's thread. `launch` starts the processes.

    It knows no partition, so it is on no cores of its own, and CUDA has not started in it. A front end may be kept
    ready in the same way.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._child: Child | None = None
        self._gone = asyncio.Event()

    def prepare(self) -> None:
        """Start one, if there is none; without the resources for it, there is none until the next call."""
        if self._child is not None:
            return
        with suppress(OSError):
            self._child = self._launch(None, None)
            self._gone.clear()
            asyncio.get_running_loop().add_reader(self._child.fileno(), self._exited)

    def launch(self, partition: Partition | None, stdout: int | None) -> Child:
        """Return the spare worker, which belongs to the caller from now on, or start a worker: a `Launch`."""
        child, self._child = self._child, None
        if child is None:
            return self._launch(partition, stdout)
        asyncio.get_running_loop().remove_reader(child.fileno())
        return child

    async def close(self) -> None:
        """End the process, if there is one."""
        if self._child is None:
            return
        self._child.socket.close()
        if not await wait_for_exit([self._gone], END_S):
            self._child.kill()
            await wait_for_exit([self._gone], END_S)

    def _exited(self) -> None:
        assert self._child is not None
        child, self._child = self._child, None
        asyncio.get_running_loop().remove_reader(child.fileno())
        child.socket.close()
        child.wait()
        self._gone.set()
