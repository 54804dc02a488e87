"""The batches under way, and the counts and traces of each when it ends."""

import logging
from collections.abc import Callable, Sequence

from sluice.batcher.interface.decisions import DispatchBatch, Member
from sluice.batcher.interface.events import BatchCompleted, BatchFailed, BatchRevoked, FailureCause
from sluice.gateway.observability.logs import log
from sluice.gateway.observability.meters import Meters
from sluice.gateway.observability.traces.context import SpanRef, batch_span_id
from sluice.gateway.observability.traces.trace import REVOKED, BatchTrace
from sluice.gateway.runtime.submission import Submission

logger = logging.getLogger(__name__)

MOST_TRACED = 64
"""The spans that a batch knows; each of its requests is linked to the others."""


class BatchLog:
    """Keeps batches until they end. `price` gives the present cost of a nanosecond of a partition.

    With `notes_traced`, a batch knows the spans of its requests that are exported.
    """

    def __init__(self, meters: Meters, price: Callable[[str], float]) -> None:
        self.notes_traced = False
        self._meters = meters
        self._price = price
        self._batches: dict[int, tuple[BatchTrace, Sequence[Submission], float]] = {}
        self._last: dict[str, BatchTrace] = {}
        self.watch: Callable[[BatchTrace], None] | None = None
        """Gets each batch that has completed; None while nobody looks."""

    def dispatched(self, batch: DispatchBatch, opened: Sequence[Submission], now_ns: int, rule: str) -> None:
        """Record a batch; `opened` are the requests of its members, in their order, `rule` is that of its plan."""
        self._batches[batch.batch] = BatchTrace(batch, now_ns, rule=rule), opened, self._price(batch.partition)

    def has(self, request: int) -> bool:
        """Return whether a request is in a batch that has not ended; O(requests in batches)."""
        return any(each.request == request for _, opened, _ in self._batches.values() for each in opened)

    def ended(self, event: BatchCompleted | BatchFailed | BatchRevoked, now_ns: int) -> None:
        """Count a batch, and add it to the traces of its requests; a revoked one to those of requests that go on."""
        run, opened, price = self._batches.pop(event.batch)
        run.reported_ns = now_ns
        if self.notes_traced:
            run.traced = _traced(run.batch, opened)
        if isinstance(event, BatchCompleted):
            self._completed(run, opened, price, event)
        elif isinstance(event, BatchFailed):
            run.failed = event.cause
            self._meters.batch_failed(run.batch, event.cause)
            if event.cause is FailureCause.OUT_OF_MEMORY:
                _log_out_of_memory(run.batch, event.message)
            for each in opened:
                each.trace.runs += (run,)
        else:
            run.failed = REVOKED
            for each in opened:
                if each.trace.outcome is None:
                    each.trace.runs += (run,)

    def _completed(self, run: BatchTrace, opened: Sequence[Submission], price: float, event: BatchCompleted) -> None:
        batch = run.batch
        compute_ns = event.ended_ns - event.started_ns
        run.set_worker_free(self._last.get(batch.partition))
        run.started_ns, run.ended_ns = event.started_ns, event.ended_ns
        run.cost = compute_ns * price
        self._last[batch.partition] = run
        self._meters.batch_completed(batch, compute_ns)
        row_cost = run.cost / batch.rows
        startable_ns = run.startable_ns
        requests = rows = ready_ns = 0
        for member, each in zip(batch.members, opened, strict=True):
            trace = each.trace
            again = False
            for earlier in trace.runs:
                if earlier.batch.model == batch.model and earlier is not run and _has_run(earlier, member):
                    again = True
            each.meter.stage_ran(member.stage, 0 if again else member.rows, member.rows * row_cost)
            if trace.outcome is None:
                requests += 1
                rows += member.rows
                since_ns = trace.ready_ns(run.dispatched_ns) if trace.runs else trace.arrived_ns
                trace.queue_ns += startable_ns - since_ns
                ready_ns += since_ns
            trace.runs += (run,)
        self._meters.statistics.of(batch.model).batch_ran(run, requests, rows, ready_ns)
        if self.watch is not None:
            self.watch(run)


def _traced(batch: DispatchBatch, opened: Sequence[Submission]) -> tuple[SpanRef, ...]:
    """The spans of the requests of a batch whose spans are exported."""
    refs: list[SpanRef] = []
    for position, each in enumerate(opened):
        trace = each.trace
        if trace.span_id:
            member = batch.members[position]
            span_id = batch_span_id(trace.span_id, batch.batch, member.stage)
            refs.append(SpanRef(trace.context.trace_id, span_id))
            if len(refs) == MOST_TRACED:
                break
    return tuple(refs)


def _has_run(run: BatchTrace, member: Member) -> bool:
    """True if a batch had the same stage of the same request: one of the two took too long, so it ran elsewhere."""
    return not run.failed and any(
        each.request == member.request and each.stage == member.stage for each in run.batch.members
    )


def _log_out_of_memory(batch: DispatchBatch, reason: str) -> None:
    """Log that a batch ran out of memory, since the batches there are smaller from now on."""
    log(
        logger,
        logging.WARNING,
        "batch ran out of memory",
        model=batch.model,
        partition=batch.partition,
        rows=batch.rows,
        reason=reason,
    )
