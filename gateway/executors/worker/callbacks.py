"""What the executor over worker processes tells of them."""

from typing import Protocol

from sluice.mps.ipc.messages import WorkerReady
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import Partition


class Watcher(Protocol):
    """Is told how the workers are."""

    def worker_ready(self, partition: str, ready: WorkerReady) -> None:
        """A worker is up and has loaded what it could."""
        ...

    def worker_lost(self, partition: str, reason: str) -> None:
        """A worker is gone; another one will be started."""
        ...

    def worker_retired(self, partition: str, reason: str) -> None:
        """A worker gets no more batches, as was planned; another one will be started."""
        ...

    def worker_replaced(self, partition: Partition, ready: WorkerReady) -> None:
        """A worker on another share serves in place of the one before, with the same models."""
        ...

    def partition_proved(self, partition: str, evidence: Evidence) -> None:
        """What a worker that is up has found of itself since it loaded one more model."""
        ...

    def model_loaded(self, partition: str, model: str) -> None:
        """A worker that is up holds one more model."""
        ...

    def model_load_failed(self, partition: str, model: str, reason: str) -> None:
        """A worker that is up could not load a model."""
        ...

    def model_unloaded(self, partition: str, model: str) -> None:
        """A worker that is up does not hold a model any more."""
        ...
