"""Activity of a measured server, read from its journal: batches, arrivals and completions by time window."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sluice.batcher.drivers.journal import JournalStep, decode_step
from sluice.batcher.interface.decisions import CompleteRequest, DispatchBatch
from sluice.batcher.interface.events import BatchCompleted, BatchFailed, BatchRevoked, PartitionReady, RequestArrived
from sluice.models.profiles.latency_table import LatencyTable

Window = tuple[int, int]
"""Start and end in nanoseconds of the machine's monotonic clock."""


@dataclass(frozen=True)
class ObservedBatch:
    """A batch with the times of its dispatch, start, end and report to the gateway.

    `previous_end_ns` is the end of the previous batch on the partition, None when unknown, and `queued` is true when
    that batch was still running at the dispatch. `concurrent` counts the requests that arrived or completed at the
    instant of the dispatch.
    """

    model: str
    rows: int
    dispatched_ns: int
    started_ns: int
    ended_ns: int
    reported_ns: int
    previous_end_ns: int | None
    queued: bool
    concurrent: int


@dataclass
class GatewayActivity:
    """The gateway's activity in a window.

    `arrived_ns` and `completed_ns` are the times at which requests reached the scheduler and completed, ascending.
    """

    batches: list[ObservedBatch] = field(default_factory=list)
    arrived_ns: list[int] = field(default_factory=list)
    completed_ns: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class ServerJournal:
    """The server's initial latency tables by model key, and one activity for each window."""

    tables: dict[str, LatencyTable]
    activities: list[GatewayActivity]


def read_journal(path: Path, windows: Sequence[Window]) -> ServerJournal:
    """Read the journal of a server that has stopped; `windows` are ascending and do not overlap."""
    with path.open("rb") as lines:
        next(lines)  # the scheduler's spec
        return summarise_steps(map(decode_step, lines), windows)


def summarise_steps(steps: Iterable[JournalStep], windows: Sequence[Window]) -> ServerJournal:
    """Collect tables and activities from the steps of a journal."""
    activities = [GatewayActivity() for _ in windows]
    tables: dict[str, LatencyTable] = {}
    window = 0
    reader = _Reader()
    for step in steps:
        if isinstance(step.event, PartitionReady):
            tables |= step.event.tables
        while window < len(windows) and step.now_ns > windows[window][1]:
            window += 1
        inside = window < len(windows) and step.now_ns >= windows[window][0]
        reader.take(step, activities[window] if inside else GatewayActivity())
    return ServerJournal(tables, activities)


class _Reader:
    """Follows requests and batches through the steps."""

    def __init__(self) -> None:
        self._now_ns = -1
        self._concurrent = 0
        self._batches: dict[int, tuple[DispatchBatch, int, bool, int]] = {}
        self._in_flight: dict[str, int] = {}
        self._ended_ns: dict[str, int] = {}

    def take(self, step: JournalStep, activity: GatewayActivity) -> None:
        """Follow one step and add it to the activity."""
        event, now_ns = step.event, step.now_ns
        if now_ns != self._now_ns:
            self._now_ns, self._concurrent = now_ns, 0
        if isinstance(event, RequestArrived):
            activity.arrived_ns.append(now_ns)
            self._concurrent += 1
        elif isinstance(event, BatchCompleted):
            self._completed(event, now_ns, activity)
        elif isinstance(event, BatchFailed | BatchRevoked):
            self._in_flight[self._batches.pop(event.batch)[0].partition] -= 1
        for decision in step.decisions:
            if isinstance(decision, DispatchBatch):
                in_flight = self._in_flight.get(decision.partition, 0)
                self._in_flight[decision.partition] = in_flight + 1
                self._batches[decision.batch] = decision, now_ns, in_flight > 0, self._concurrent
            elif isinstance(decision, CompleteRequest):
                self._concurrent += 1
                activity.completed_ns.append(now_ns)

    def _completed(self, event: BatchCompleted, now_ns: int, activity: GatewayActivity) -> None:
        batch, dispatched_ns, queued, concurrent = self._batches.pop(event.batch)
        self._in_flight[batch.partition] -= 1
        previous_end_ns = self._ended_ns.get(batch.partition)
        self._ended_ns[batch.partition] = event.ended_ns
        times = (dispatched_ns, event.started_ns, event.ended_ns, now_ns)
        activity.batches.append(ObservedBatch(batch.model, batch.rows, *times, previous_end_ns, queued, concurrent))
