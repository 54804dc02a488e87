"""The end of one client of an MPS daemon that does not end by itself, while the others go on."""

from sluice.mps.daemon.client_contexts import TERMINATE_S, destroy_contexts
from sluice.mps.daemon.control import MpsControl
from sluice.mps.supervisor.process import WorkerProcess


async def end_client(worker: WorkerProcess, control: MpsControl, reason: str, terminate_s: float = TERMINATE_S) -> None:
    """Have the daemon destroy the contexts of a worker and of its models' processes, then kill it, whatever happens."""
    try:
        await destroy_contexts(control, terminate_s, worker.pid)
    finally:
        worker.kill(reason)
