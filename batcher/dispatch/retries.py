"""Failures: what becomes of the requests of a batch that did not complete."""

from collections.abc import Callable, Sequence

from sluice.batcher.dispatch.dispatcher import Dispatcher
from sluice.batcher.interface.decisions import AnyDecision
from sluice.batcher.interface.events import BatchFailed, BatchRevoked, FailureCause
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.queues.fair_queue import Queue
from sluice.batcher.state.request import Batch, Entry, Request

_OUTCOMES = {
    FailureCause.BACKEND: Outcome.FAILED_BACKEND,
    FailureCause.OUT_OF_MEMORY: Outcome.FAILED_BACKEND,
    FailureCause.RESOURCES: Outcome.FAILED_UNAVAILABLE,
}
"""How a request ends that failed by itself."""


class Failures:
    """Tries batches again in halves: once elsewhere what a lost worker ran, and the others until one request fails.

    A batch with one request to blame is run again 2·log₂(requests) times at most, rounded up to whole halvings. One
    that ran out of memory tells nothing of its requests, but that batches are to be smaller there (`Limit`). What
    does not fit by itself goes to a partition of another kind, if there is one that may have memory for it.

    `fail` settles a request; `ended` notes that a piece of its work is over, and tells whether it was settled before.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        fail: Callable[[Request, Outcome, str, list[AnyDecision]], None],
        ended: Callable[[Request], bool],
    ) -> None:
        self._dispatcher = dispatcher
        self._fail = fail
        self._ended = ended

    def failed(self, event: BatchFailed, now_ns: int, decisions: list[AnyDecision]) -> None:
        """A batch did not complete."""
        dispatcher = self._dispatcher
        batch = dispatcher.end(event.batch, now_ns)
        alive = self._detach(batch)
        hard = [entry for entry in alive if entry.request.pipeline.evicts]
        elsewhere = event.cause is FailureCause.OUT_OF_MEMORY and self._fits_elsewhere(batch, now_ns)
        if event.cause is FailureCause.WORKER_LOST:
            alive = self._retried_once(alive, batch.suspect, event.message, decisions)
            if dispatcher.reserved is not None and not batch.suspect:
                alive = dispatcher.reserved.reopen(alive, now_ns)
        elif alive and len(batch.entries) == 1 and not elsewhere:
            self._fail(alive[0].request, _OUTCOMES[event.cause], _reason(batch, event), decisions)
            return
        half = len(alive) // 2
        self._retry(batch.queue, alive[:half], now_ns)
        self._retry(batch.queue, alive[half:], now_ns)
        for entry in hard:
            dispatcher.evictions.plan(entry, now_ns)

    def revoked(self, event: BatchRevoked, now_ns: int, decisions: list[AnyDecision]) -> None:
        """A batch was taken back: what is left of it is tried again."""
        batch = self._dispatcher.end(event.batch, now_ns)
        self._retry(batch.queue, self._detach(batch), now_ns)

    def _fits_elsewhere(self, batch: Batch, now_ns: int) -> bool:
        """Have smaller batches made where one ran out of memory; whether there are partitions that could run it."""
        dispatcher = self._dispatcher
        model = dispatcher.models[batch.queue.model]
        if model.ran_out_of_memory(batch.kind, batch.rows, now_ns) and dispatcher.reserved is not None:
            dispatcher.reserved.learn((model,))
        return model.fits_elsewhere(batch.rows, batch.kind)

    def _retry(self, queue: Queue, entries: list[Entry], now_ns: int) -> None:
        """Have the entries dispatched again as one batch of their own."""
        if not entries:
            return
        agenda, model = self._dispatcher.agenda, self._dispatcher.models[queue.model]
        # The queue may have been forgotten while its last batch ran; what is pushed later must meet this one.
        queue = model.queues.setdefault(queue.batch_key, queue)
        queue.retry(entries)
        model.outstanding += sum(entry.rows for entry in entries)
        for group in model.groups:
            agenda.notify(queue, group, now_ns)
        if not model.served:
            self._dispatcher.strand(model, now_ns)

    def _retried_once(
        self, alive: Sequence[Entry], suspect: bool, message: str, decisions: list[AnyDecision]
    ) -> list[Entry]:
        """Those that may be tried again; the others are failed. A batch that had not started proves nothing."""
        if not suspect:
            return list(alive)
        for entry in alive:
            if entry.lost_once and not entry.request.settled:
                reason = f"the worker was lost twice with this request: {message}"
                self._fail(entry.request, Outcome.FAILED_WORKER_LOST, reason, decisions)
            entry.lost_once = True
        return [entry for entry in alive if not entry.request.settled]

    def _detach(self, batch: Batch) -> list[Entry]:
        """Free entries from the batch that ended; those whose requests still want an answer."""
        self._dispatcher.disturb(batch.queue)
        alive = []
        for entry in batch.entries:
            entry.batch = None
            if not self._ended(entry.request):
                alive.append(entry)
        return alive


def _reason(batch: Batch, event: BatchFailed) -> str:
    if event.cause is not FailureCause.OUT_OF_MEMORY:
        return event.message
    rows = "1 row" if batch.rows == 1 else f"{batch.rows} rows"
    return f"partition {batch.partition.name} has no memory for this request alone ({rows}): {event.message}"
