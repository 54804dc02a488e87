"""What is told of workers to whom they belong."""

from typing import Protocol

from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.ipc.messages import BatchFinished, BatchRefused, BatchWithdrawn, LoadResult, WorkerReady
from sluice.mps.supervisor.process import WorkerProcess


class WorkerCallbacks(Protocol):
    """What the supervisor tells its owner, on the event loop's thread; none of these may block or raise."""

    def worker_ready(self, partition: str, worker: WorkerProcess, ready: WorkerReady, output_region: int) -> None:
        """Take batches to `worker` by `worker.send(Run(...))`; its outputs will lie in region `output_region`."""

    def worker_lost(self, partition: str, reason: str) -> None:
        """Give up what was sent to the worker: its process is gone. Also called when a start failed before ready."""

    def worker_replaced(
        self,
        partition: str,
        worker: WorkerProcess,
        ready: WorkerReady,
        output_region: int,
        tables: dict[str, LatencyTable],
    ) -> None:
        """Take batches to another worker of a partition from now on, which holds the models of `tables`.

        The one before is up: `Supervisor.retire` ends it when it has answered all that it was sent.
        """

    def worker_gone(self, worker: WorkerProcess, reason: str) -> None:
        """Give up what was sent to a worker that another one has taken the place of: its process is gone."""

    def model_loaded(self, partition: str, model: LoadResult) -> None:
        """Take in how `Supervisor.load` ended: what it was told without a table did not load."""

    def model_unloaded(self, partition: str, key: str) -> None:
        """Take in that `Supervisor.unload` is done."""

    def message(self, partition: str, message: BatchFinished | BatchRefused | BatchWithdrawn) -> None:
        """Take an answer of a worker; all regions it names are mapped (`Supervisor.region`)."""
