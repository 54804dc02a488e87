"""A queue that takes no further entries once as many rows wait as some full batches have."""

from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.queues.priority_queue import EntryRefusedError
from sluice.batcher.queues.queue import Queue
from sluice.batcher.state import Entry


class BoundedQueue(Queue):
    """First come, first served, as far as there is room: for the rows of `batches` batches of `batch_rows` rows."""

    __slots__ = ("_batch_rows", "_batches")

    def __init__(self, model: str, batch_key: str, batches: int, batch_rows: int) -> None:
        super().__init__(model, batch_key)
        self._batches = batches
        self._batch_rows = batch_rows

    def check_room(self, entry: Entry) -> None:
        """Raise EntryRefusedError if there is no room for a new entry; one that is larger than all finds it empty."""
        if self.rows and self.rows + entry.rows > self._batches * self._batch_rows:
            entry.queued = False
            waiting = "1 row waits" if self.rows == 1 else f"{self.rows} rows wait"
            reason = f"{waiting} for model {self.model}, which has room for {self._batches} batches"
            raise EntryRefusedError(Outcome.REJECTED_QUEUE_FULL, reason)
