"""What is remembered of requests: references to what was decided, and times; put into words when somebody asks."""

from collections import deque

import msgspec

from sluice.batcher.interface.config import StageConfig
from sluice.batcher.interface.decisions import DispatchBatch
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.models.errors import NotFoundError


class BatchTrace(msgspec.Struct, eq=False, gc=False):
    """One batch: when it was dispatched, when its worker was free for it, ran it, and when its end was told.

    `expected_ns` is when its worker was expected to be free. `failed` says why it has no result ("" when it has); then
    there are no times of the worker. `cost` is what its time in the backend costs.
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

    @property
    def startable_ns(self) -> int:
        """From when on nothing but the hand-off kept the worker from starting."""
        dispatched_ns = self.dispatched_ns
        if self.failed:
            return dispatched_ns
        free_ns, started_ns = self.free_ns, self.started_ns
        startable_ns = free_ns if free_ns < started_ns else started_ns
        return startable_ns if startable_ns > dispatched_ns else dispatched_ns

    def set_worker_free(self, previous: "BatchTrace | None") -> None:
        """Take note of the batch that the worker ran before."""
        self.free_ns = self.expected_ns = self.dispatched_ns
        if previous is not None and previous.ended_ns > self.dispatched_ns:
            self.free_ns = previous.ended_ns
            self.expected_ns = max(previous.batch.predicted_ns or previous.ended_ns, self.dispatched_ns)


class Trace(msgspec.Struct, eq=False, gc=False):
    """One request: `runs` are the batches that it was in, in the order in which they ended.

    `client_id` is the client's id. `outcome` is None and `ended_ns` 0 as long as the request is under way.
    """

    client_id: str
    arrival: RequestArrived
    arrived_ns: int
    stages: tuple[StageConfig, ...]
    runs: tuple[BatchTrace, ...] = ()
    outcome: Outcome | None = None
    reason: str = ""
    ended_ns: int = 0

    @property
    def id(self) -> str:
        """What the request can be asked for by: the client's id, else one made of its number."""
        return self.client_id or f"sluice-{self.arrival.request}"

    @property
    def is_pipeline(self) -> bool:
        """Whether it is for a pipeline, not for a model by itself."""
        return self.stages[0].model != self.arrival.pipeline

    def ready_ns(self, dispatched_ns: int) -> int:
        """From when on a stage that was dispatched then could have been: all that ended until then had ended."""
        ends = [run.reported_ns for run in self.runs if run.reported_ns <= dispatched_ns and not run.failed]
        return max(ends, default=self.arrived_ns)


class RecentTraces:
    """The last requests, and the last of those that were not answered in time: at most `bound` of each."""

    def __init__(self, bound: int) -> None:
        self._last: deque[Trace] = deque(maxlen=bound)
        self._missed: deque[Trace] = deque(maxlen=bound)
        self.add = self._last.append
        self.add_missed = self._missed.append

    def find(self, id: str) -> Trace:
        """The latest request of that id; O(bound). Raises NotFoundError when none is remembered."""
        latest: Trace | None = None
        for traces in (self._last, self._missed):
            found = next((trace for trace in reversed(traces) if trace.id == id), None)
            if found is not None and (latest is None or found.arrival.request > latest.arrival.request):
                latest = found
        if latest is None:
            raise NotFoundError(
                f"there is no request '{id:.80}' among those remembered: the last {self._last.maxlen}, and as many "
                "that were not answered in time"
            )
        return latest
