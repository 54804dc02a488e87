"""The events of workers that their owner handles."""

from typing import Protocol

from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.ipc.messages import BatchReport, CallModel, LoadResult, ReadinessReport, WorkerReady
from sluice.mps.supervisor.process import WorkerProcess


class WorkerCallbacks(Protocol):
    """The events that the supervisor reports to its owner, and what it asks of it, on the event loop's thread.

    No method may block, and only `message` and `model_called` may raise.
    """

    def worker_ready(self, partition: str, worker: WorkerProcess, ready: WorkerReady, output_region: int) -> None:
        """A worker is ready for `worker.send(RunBatch(...))`; its outputs will lie in region `output_region`."""

    def worker_lost(self, partition: str, reason: str) -> None:
        """A worker's process has ended, possibly before it was ready: all that was sent to it is lost."""

    def runs_retry(self, partition: str) -> bool:
        """Return whether the worker of a partition runs a batch of requests that have failed before.

        Such a batch is being narrowed down to the request to blame, so it explains the loss of its worker.
        """
        ...

    def worker_replaced(
        self,
        partition: str,
        worker: WorkerProcess,
        ready: WorkerReady,
        output_region: int,
        tables: dict[str, LatencyTable],
    ) -> None:
        """Another worker of the partition, which holds the models of `tables`, takes all batches from now on.

        The worker before it still runs: `Supervisor.retire` ends it once it has answered everything that it was sent.
        """

    def worker_gone(self, worker: WorkerProcess, reason: str) -> None:
        """The process of a replaced worker has ended: all that was sent to it and not answered is lost."""

    def model_loaded(self, partition: str, model: LoadResult) -> None:
        """`Supervisor.load` has finished; a result without a table means that the model did not load."""

    def model_unloaded(self, partition: str, key: str) -> None:
        """`Supervisor.unload` has finished."""

    def message(
        self,
        partition: str,
        worker: WorkerProcess,
        message: BatchReport,
    ) -> None:
        """A worker has answered a batch, waits in it, or has sent a response.

        Outputs lie within mapped regions (`Supervisor.region`). Raises PartitionError for an answer that does not fit
        what the worker was sent; the worker is killed then.
        """

    def model_called(self, partition: str, worker: WorkerProcess, call: CallModel, fd: int) -> None:
        """A model calls another one; the descriptor of the inputs is the callee's from now on.

        Raises PartitionError for a call that does not fit what the worker was sent.
        """

    def readiness_reported(self, partition: str, report: ReadinessReport) -> None:
        """A model has said whether it is ready."""
