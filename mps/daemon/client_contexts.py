"""The CUDA contexts of an MPS daemon's clients, to be destroyed before a client with work on the GPU is killed."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sluice.models.errors import ControlFailed
from sluice.models.processes import process_tree
from sluice.mps.daemon.control import MpsClient, MpsControl

TERMINATE_S = 10.0
"""Time for the daemon to destroy contexts."""


async def destroy_contexts(control: MpsControl, within_s: float = TERMINATE_S, worker: int | None = None) -> None:
    """Destroy the contexts of all the daemon's clients, or those of one worker and of its models' processes.

    It gives up after `within_s`, and when the daemon does not answer: the clients can then only be killed.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await asyncio.to_thread(_terminate, control, worker)


def _terminate(control: MpsControl, worker: int | None) -> None:
    ours = None if worker is None else set(process_tree(worker))
    try:
        clients = [each for each in control.clients() if ours is None or each.pid in ours]
    except ControlFailed:  # a daemon that has ended has no contexts either
        return

    def terminate(client: MpsClient) -> None:
        with suppress(ControlFailed):  # the client may just have exited
            control.terminate_client(client)

    # All at once: a client whose contexts cannot be destroyed does not delay the others.
    with ThreadPoolExecutor(max(1, len(clients))) as threads:
        threads.map(terminate, clients)
