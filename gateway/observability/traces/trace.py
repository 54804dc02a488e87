"""Traces of requests: references to decisions and times, which become explanations on demand."""

from collections import deque
from itertools import islice
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from sluice.batcher.interface.config import StageConfig
from sluice.batcher.interface.decisions import DispatchBatch
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.request_ids import server_id
from sluice.gateway.observability.traces.context import NO_TRACE, SpanRef, TraceContext, batch_span_id
from sluice.models.errors import NotFoundError

PARTIAL_HEADER = "x-sluice-partial"
"""The header, or trailing metadata, of an answer that a combiner made without some of its members."""


REVOKED = "revoked"
"""Why a batch has no result that was taken back before it began."""


class BatchTrace(msgspec.Struct, eq=False, gc=False):
    """One batch: the times of its dispatch, of the worker and of the report of its end.

    `free_ns` is when its worker was free for it, `expected_ns` when that was expected, and `idle_ns` the time from
    which the worker had nothing to run before the dispatch. `failed` is the reason of a batch without a result (""
    otherwise), which has no times of the worker. `cost` is the cost of its time in the backend. `traced` are the spans
    of those of its requests whose spans are exported. `rule` says by which rule of which planner it was closed, ""
    where none has one.
    """

    batch: DispatchBatch
    dispatched_ns: int
    free_ns: int = 0
    expected_ns: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    reported_ns: int = 0
    cost: float = 0.0
    failed: str = ""
    traced: tuple[SpanRef, ...] = ()
    idle_ns: int = 0
    rule: str = ""

    @property
    def startable_ns(self) -> int:
        """The time from which only the hand-off kept the worker from starting."""
        dispatched_ns = self.dispatched_ns
        if self.failed:
            return self.reported_ns if self.failed == REVOKED else dispatched_ns
        free_ns, started_ns = self.free_ns, self.started_ns
        startable_ns = free_ns if free_ns < started_ns else started_ns
        return startable_ns if startable_ns > dispatched_ns else dispatched_ns

    def set_worker_free(self, previous: "BatchTrace | None") -> None:
        """Derive the time when the worker was free from the batch that it ran before."""
        self.free_ns = self.expected_ns = self.dispatched_ns
        if previous is None:
            return
        self.idle_ns = min(previous.reported_ns, self.dispatched_ns)
        if previous.ended_ns > self.dispatched_ns:
            self.free_ns = previous.ended_ns
            self.expected_ns = max(previous.batch.predicted_ns or previous.ended_ns, self.dispatched_ns)


class PartialJoin(NamedTuple):
    """A combiner `stage` that joined some of its `members`, since the others had no answer on time."""

    stage: str
    joined: int
    members: int

    @property
    def header(self) -> str:
        """The value of `PARTIAL_HEADER`; the confidence is the share of the members."""
        confidence = self.joined / self.members
        return f"{quote(self.stage)};members={self.joined}/{self.members};confidence={confidence:.3f}"

    @property
    def text(self) -> str:
        """The same as a part of a sentence."""
        return f"stage '{self.stage}' joined {self.joined} of {self.members} members"


class Trace(msgspec.Struct, eq=False, gc=False):
    """One request: `runs` are its batches, in the order of their ends.

    One that was sent ahead of its time counts as arrived (`arrived_ns`) when it may begin, or ends before.
    `client_id` is the id that the client gave. `outcome` is None and `ended_ns` 0 while the request is in flight.
    `queue_ns` is the time that its stages waited until only the hand-off kept them from starting, summed over its runs
    without a failure. `context` is the trace that the request belongs to, and `span_id` the id of its span, 0 if its
    spans are not exported. `partial` are the combiners that gave members up.
    """

    client_id: str
    arrival: RequestArrived
    arrived_ns: int
    stages: tuple[StageConfig, ...]
    runs: tuple[BatchTrace, ...] = ()
    outcome: Outcome | None = None
    reason: str = ""
    ended_ns: int = 0
    queue_ns: int = 0
    context: TraceContext = NO_TRACE
    span_id: int = 0
    partial: tuple[PartialJoin, ...] = ()

    @property
    def id(self) -> str:
        """The request's id: the client's, else one made of its number."""
        return self.client_id or server_id(self.arrival.request)

    def context_in(self, batch: int, stage: int) -> TraceContext:
        """The context for what is called while a stage of the request is in a batch; NO_TRACE without a trace.

        Its parent is the span of the stage in the batch, or the client's if the request's spans are not exported.
        """
        context = self.context
        if not self.span_id:
            return context if context.trace_id else NO_TRACE
        return TraceContext(context.trace_id, f"{batch_span_id(self.span_id, batch, stage):016x}", True, context.state)

    @property
    def is_pipeline(self) -> bool:
        """True if the request is for a pipeline, not for a single model."""
        return self.stages[0].model != self.arrival.pipeline

    def ready_ns(self, dispatched_ns: int) -> int:
        """The time from which a stage that was dispatched then could have been: the end of all earlier runs."""
        latest_ns = self.arrived_ns
        for run in self.runs:
            if latest_ns < run.reported_ns <= dispatched_ns and not run.failed:
                latest_ns = run.reported_ns
        return latest_ns


class RecentTraces:
    """The last requests, and the last requests that were not answered in time: at most `bound` of each."""

    def __init__(self, bound: int) -> None:
        self._last: deque[Trace] = deque(maxlen=bound)
        self._missed: deque[Trace] = deque(maxlen=bound)
        self.add = self._last.append
        self.add_missed = self._missed.append

    def missed(self, most: int) -> list[Trace]:
        """The last requests that were not answered in time, the latest first; at most `most`."""
        return list(islice(reversed(self._missed), most))

    def find(self, id: str) -> Trace:
        """The latest request with that id; O(bound). Raises NotFoundError if none is remembered."""
        latest: Trace | None = None
        for traces in (self._last, self._missed):
            found = next((trace for trace in reversed(traces) if trace.id == id), None)
            if found is not None and (latest is None or found.arrival.request > latest.arrival.request):
                latest = found
        if latest is None:
            raise NotFoundError(
                f"request '{id:.80}' is not remembered: expected one of the last {self._last.maxlen}, or of as many "
                "that were not answered in time"
            )
        return latest
