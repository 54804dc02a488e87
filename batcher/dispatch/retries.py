"""Retries: the requests of a batch that did not complete run again, in halves, or fail."""

from collections.abc import Callable

from sluice.batcher.dispatch.copies import leaves_it_to_copies, live_copies
from sluice.batcher.dispatch.dispatcher import Dispatcher, leave_batch
from sluice.batcher.fleet.speed import fits_elsewhere, ran_out_of_memory
from sluice.batcher.interface.decisions import AnyDecision
from sluice.batcher.interface.events import BatchFailed, BatchRevoked, FailureCause
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.state import Batch, Entry, Request

MOST_NODES_LOST = 3
"""A request alone is not run again once as many nodes were lost with it: it may be the cause after all."""
_OUTCOMES = {
    FailureCause.BACKEND: Outcome.FAILED_BACKEND,
    FailureCause.OUT_OF_MEMORY: Outcome.FAILED_BACKEND,
    FailureCause.RESOURCES: Outcome.FAILED_UNAVAILABLE,
    FailureCause.STATES_LOST: Outcome.FAILED_BACKEND,
}
"""The outcome of a request that failed by itself."""


class Failures:
    """Retries failed batches in halves until a single request fails.

    A batch with one request to blame is run again 2·log₂(requests) times at most, rounded up to whole halvings. Of a
    lost worker's batches, only the one that was running is halved. A request alone in it fails if a worker was lost
    with it before: a batch takes log₂(requests) + 1 workers along at most, and a batch of one request two.

    Where a whole node is lost, no request is taken to be the cause the first time, and the batch that was running on
    each of its partitions is retried as one. It is halved from the second time on, and a request alone fails once
    `MOST_NODES_LOST` nodes were lost with it: a batch takes log₂(requests) + 3 nodes along at most.

    A batch of a decoupled model that was running is not run again: it may have sent responses.

    A batch that ran out of memory says nothing about its requests, but makes the next batches there smaller
    (`BatchLimit`). A request that does not fit by itself goes to a partition of another kind, if one may have memory
    for it.

    `fail` settles a request. `ended` records that the batch of an entry is over; it returns True if the answer of the
    entry is not wanted any more. An entry with a copy that runs elsewhere is not retried, nor is one of a
    sequence.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        fail: Callable[[Request, Outcome, str, list[AnyDecision]], None],
        ended: Callable[[Entry], bool],
    ) -> None:
        self._dispatcher = dispatcher
        self._fail = fail
        self._ended = ended

    def failed(self, event: BatchFailed, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Retry a batch that did not complete, or fail its requests."""
        dispatcher = self._dispatcher
        batch = dispatcher.end(event.batch, now_ns)
        alive = self._detach(batch)
        if dispatcher.models[batch.queue_key[0]].config.sequences is not None:
            self._fail_sequences(batch, alive, event, now_ns, decisions)
            return
        hard = [entry for entry in alive if entry.request.pipeline.evicts]
        elsewhere = event.cause is FailureCause.OUT_OF_MEMORY and self._fits_elsewhere(batch, now_ns)
        half = len(alive) // 2
        if event.cause is FailureCause.WORKER_LOST and not batch.suspect:
            half = 0  # it had not started, so it proves nothing
        elif event.cause is FailureCause.WORKER_LOST:
            alive = self._lost(batch, alive, event.message, decisions)
            if batch.is_node_lost and all(entry.nodes_lost < 2 for entry in alive):
                half = 0
        elif alive and len(batch.entries) == 1 and not elsewhere:
            self._fail(alive[0].request, _OUTCOMES[event.cause], _reason(batch, event), decisions)
            return
        for entries in filter(None, (alive[:half], alive[half:])):
            dispatcher.retry(batch.queue_key, entries, now_ns)
        for entry in hard:
            dispatcher.timeouts.plan(entry, now_ns)

    def revoked(self, event: BatchRevoked, now_ns: int, decisions: list[AnyDecision]) -> None:
        """Retry the unsettled requests of a revoked batch, or have them wait as before if they have no copies."""
        batch = self._dispatcher.end(event.batch, now_ns)
        alive = self._detach(batch)
        sequences = self._dispatcher.sequences
        if self._dispatcher.models[batch.queue_key[0]].config.sequences is not None:
            for entry in batch.entries:
                if entry.request.settled:
                    sequences.withdrawn(entry)
            for entry in [each for each in alive if not sequences.knows(each)]:
                alive.remove(entry)
                reason = "its sequence ended before it ran"
                self._fail(entry.request, Outcome.CANCELLED_CLIENT, reason, decisions)
            self._dispatcher.check_by(now_ns)
        if alive and batch.reforms and not batch.copied:
            self._dispatcher.wait_again(batch.queue_key, alive, now_ns)
        elif alive:
            hard = [entry for entry in alive if entry.request.pipeline.evicts]
            self._dispatcher.retry(batch.queue_key, alive, now_ns)
            for entry in hard:
                self._dispatcher.timeouts.plan(entry, now_ns)

    def _fail_sequences(
        self, batch: Batch, alive: list[Entry], event: BatchFailed, now_ns: int, decisions: list[AnyDecision]
    ) -> None:
        """Fail the requests of sequences: if they ran again, the states of their sequences could count them twice."""
        lost = event.cause is FailureCause.WORKER_LOST
        outcome = Outcome.FAILED_WORKER_LOST if lost else _OUTCOMES[event.cause]
        for entry in alive:
            self._fail(entry.request, outcome, event.message, decisions)
        if event.cause is FailureCause.STATES_LOST:
            self._dispatcher.lose_sequences(batch, now_ns)
        self._dispatcher.ran(batch.entries, now_ns)

    def _fits_elsewhere(self, batch: Batch, now_ns: int) -> bool:
        """Limit batches where one ran out of memory; True if there are partitions of other kinds that could run it."""
        dispatcher = self._dispatcher
        model = dispatcher.models[batch.queue_key[0]]
        ran_out_of_memory(model, batch.kind, batch.rows, now_ns)
        return fits_elsewhere(model, batch.rows, batch.kind)

    def _lost(self, batch: Batch, alive: list[Entry], message: str, decisions: list[AnyDecision]) -> list[Entry]:
        """Return the entries to retry of a batch that was running when its worker was lost."""
        if alive and self._dispatcher.models[batch.queue_key[0]].config.decoupled:
            for entry in alive:
                self._fail(entry.request, Outcome.FAILED_WORKER_LOST, message, decisions)
            return []
        if batch.is_node_lost:
            return self._lost_with_node(batch, alive, message, decisions)
        if len(batch.entries) == 1 and alive and alive[0].lost_once:
            reason = f"the worker was lost again, with this request alone: {message}"
            self._fail(alive[0].request, Outcome.FAILED_WORKER_LOST, reason, decisions)
            return []
        for entry in alive:
            entry.lost_once = True
        return alive

    def _lost_with_node(
        self, batch: Batch, alive: list[Entry], message: str, decisions: list[AnyDecision]
    ) -> list[Entry]:
        """The entries to retry of a batch whose node was lost: nodes are seldom lost by what a request contains."""
        for entry in alive:
            entry.nodes_lost += 1
        if len(batch.entries) == 1 and alive and alive[0].nodes_lost >= MOST_NODES_LOST:
            reason = f"{alive[0].nodes_lost} nodes were lost with this request: {message}"
            self._fail(alive[0].request, Outcome.FAILED_WORKER_LOST, reason, decisions)
            return []
        return alive

    def _detach(self, batch: Batch) -> list[Entry]:
        """Free the entries of a batch that ended; returns those whose requests still want an answer."""
        self._dispatcher.mark_changed(batch.queue_key)
        alive = []
        for entry in batch.entries:
            leave_batch(entry)
            if self._ended(entry):
                continue
            if leaves_it_to_copies(entry):
                for copy in live_copies(entry):
                    copy.lost_once = copy.lost_once or (batch.suspect and not batch.is_node_lost)
            else:
                alive.append(entry)
        return alive


def _reason(batch: Batch, event: BatchFailed) -> str:
    if event.cause is not FailureCause.OUT_OF_MEMORY:
        return event.message
    rows = "1 row" if batch.rows == 1 else f"{batch.rows} rows"
    return f"partition {batch.partition.name} has no memory for this request alone ({rows}): {event.message}"
