"""The CUDA contexts of an MPS daemon's clients, which go before a client is killed: it may have work on the GPU."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sluice.models.errors import ControlFailed
from sluice.models.processes import process_tree
from sluice.mps.daemon.control import MpsClient, MpsControl

TERMINATE_S = 10.0
"""How long the daemon may take to destroy contexts."""


async def destroy_contexts(control: MpsControl, within_s: float = TERMINATE_S, worker: int | None = None) -> None:
    """Have the daemon destroy the contexts of all its clients, or those of one worker and of its models' processes.

    It is given up after `within_s`, and where the daemon does not answer: what is left can only be killed.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await asyncio.to_thread(_terminate, control, worker)


def _terminate(control: MpsControl, worker: int | None) -> None:
    ours = None if worker is None else set(process_tree(worker))
    try:
        clients = [each for each in control.clients() if ours is None or each.pid in ours]
    except ControlFailed:  # a daemon that is gone has no contexts either
        return

    def terminate(client: MpsClient) -> None:
        with suppress(ControlFailed):  # it may just have ended
            control.terminate_client(client)

    # At once: one whose contexts cannot be destroyed holds up no others.
    with ThreadPoolExecutor(max(1, len(clients))) as threads:
        threads.map(terminate, clients)
