"""Fault domains: a fatal error of one client of an MPS daemon is one of all its clients, which have to go together."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from sluice.models.errors import ControlFailed
from sluice.mps.daemon.client_contexts import TERMINATE_S, destroy_contexts
from sluice.mps.daemon.control import MpsControl
from sluice.mps.supervisor.process import WorkerProcess, wait_for_exit

DRAIN_S = 2.0
"""How long workers may take to end by themselves: what they still run fails at once, or never ends."""
KILL_S = 5.0
ANSWER_S = 45.0
"""How long a daemon may take to be there again: also one that hangs, which is noticed late (`MpsWatchdog`)."""
LOOK_S = 0.1
"""How long to wait between two looks whether a daemon that ended is there again."""


class ClientProcess(Protocol):
    """A worker process that is a client of the daemon (`WorkerProcess`)."""

    exited: asyncio.Event

    def close(self, reason: str = "") -> None:
        """Have it end after the batch that it is running."""
        ...

    def kill(self, reason: str) -> None:
        """End it at once."""
        ...


async def end_clients(
    workers: Sequence[ClientProcess],
    control: MpsControl,
    reason: str,
    drain_s: float = DRAIN_S,
    terminate_s: float = TERMINATE_S,
    kill_s: float = KILL_S,
) -> bool:
    """End the workers of an MPS daemon: drain, terminate_client, kill; whether all are gone then.

    To kill a client that has work on the GPU is safe only once the daemon has destroyed its contexts. The server of
    the daemon stays in the state FAULT, and takes no new clients, until the last of them is gone.
    """
    for worker in workers:
        worker.close(reason)
    gone = [worker.exited for worker in workers]
    if await wait_for_exit(gone, drain_s):
        return True
    await destroy_contexts(control, terminate_s)  # it has no other clients
    for worker in workers:
        if not worker.exited.is_set():
            worker.kill(reason)
    return await wait_for_exit(gone, kill_s)


async def end_client(worker: WorkerProcess, control: MpsControl, reason: str, terminate_s: float = TERMINATE_S) -> None:
    """Have the daemon destroy the contexts of a worker and of its models' processes, then kill it, whatever happens."""
    try:
        await destroy_contexts(control, terminate_s, worker.pid)
    finally:
        worker.kill(reason)


async def wait_until_answering(control: MpsControl, timeout_s: float = ANSWER_S) -> bool:
    """Return when the daemon answers, which may just be started again, or not within the time."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            await asyncio.to_thread(control.ping)
        except ControlFailed:
            if asyncio.get_running_loop().time() >= deadline_s:
                return False
            await asyncio.sleep(LOOK_S)
        else:
            return True
