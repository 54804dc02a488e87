"""The clients of one MPS daemon form a fault domain: a fatal error in one affects all, so all must exit."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from sluice.models.errors import ControlFailed
from sluice.mps.daemon.client_contexts import TERMINATE_S, destroy_contexts
from sluice.mps.daemon.control import MpsControl
from sluice.mps.supervisor.process import WorkerProcess, wait_for_exit

DRAIN_S = 2.0
"""Time for workers to exit by themselves. After a fatal error, pending work fails at once or never ends."""
KILL_S = 5.0
"""Time for killed workers to exit."""
ANSWER_S = 45.0
"""Time for a daemon to answer again. It covers a hung daemon, which `MpsWatchdog` detects late."""
POLL_S = 0.1
"""Interval between pings of a daemon that does not answer."""


class ClientProcess(Protocol):
    """A worker process that is a client of the daemon (`WorkerProcess`)."""

    exited: asyncio.Event

    def close(self, reason: str = "") -> None:
        """Make it exit after the batch that it is running."""
        ...

    def kill(self, reason: str) -> None:
        """Kill it at once."""
        ...


async def end_clients(
    workers: Sequence[ClientProcess],
    control: MpsControl,
    reason: str,
    drain_s: float = DRAIN_S,
    terminate_s: float = TERMINATE_S,
    kill_s: float = KILL_S,
) -> bool:
    """End the workers of an MPS daemon: drain, terminate_client, kill. Returns whether all have exited.

    A client that has work on the GPU can be killed safely only after the daemon has destroyed its contexts. The
    daemon's server stays in the state FAULT, and accepts no new clients, until its last client has exited.
    """
    for worker in workers:
        worker.close(reason)
    gone = [worker.exited for worker in workers]
    if await wait_for_exit(gone, drain_s):
        return True
    await destroy_contexts(control, terminate_s)  # the workers are its only clients
    for worker in workers:
        if not worker.exited.is_set():
            worker.kill(reason)
    return await wait_for_exit(gone, kill_s)


async def end_client(worker: WorkerProcess, control: MpsControl, reason: str, terminate_s: float = TERMINATE_S) -> None:
    """Destroy the contexts of one worker and of its models' processes, then kill the worker in any case.

    The other clients of the daemon continue.
    """
    try:
        await destroy_contexts(control, terminate_s, worker.pid)
    finally:
        worker.kill(reason)


async def wait_until_answering(control: MpsControl, timeout_s: float = ANSWER_S) -> bool:
    """Wait until the daemon, which may be restarting, answers; returns False if it does not within `timeout_s`."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            await asyncio.to_thread(control.ping)
        except ControlFailed:
            if asyncio.get_running_loop().time() >= deadline_s:
                return False
            await asyncio.sleep(POLL_S)
        else:
            return True
