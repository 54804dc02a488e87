"""What a server's journal tells of the loads that it was measured under."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sluice.batcher.drivers.journal import JournalStep, decode_step
from sluice.batcher.interface.decisions import CompleteRequest, DispatchBatch
from sluice.batcher.interface.events import BatchCompleted, BatchFailed, BatchRevoked, PartitionReady, RequestArrived
from sluice.models.profiles.latency_table import LatencyTable

Window = tuple[int, int]
"""From and until when, in nanoseconds of the machine's monotonic clock."""


@dataclass(frozen=True)
class ObservedBatch:
    """A batch: when it was dispatched, ran, and was known to have ended.

    `before_ns` is when the batch before it on the partition ended, or None when that is not known; `queued` says
    whether it was dispatched while that one ran. `together` counts the requests that came or had their outcome at the
    instant at which it was dispatched.
    """

    model: str
    rows: int
    dispatched_ns: int
    started_ns: int
    ended_ns: int
    noticed_ns: int
    before_ns: int | None
    queued: bool
    together: int


@dataclass
class Activity:
    """What the gateway did in a window.

    `arrived_ns` and `completed_ns` are when the scheduler took requests in and had their outputs, each ascending.
    """

    batches: list[ObservedBatch] = field(default_factory=list)
    arrived_ns: list[int] = field(default_factory=list)
    completed_ns: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Journal:
    """The latency tables that the server began with, by model key, and one activity a window."""

    tables: dict[str, LatencyTable]
    activities: list[Activity]


def read_journal(path: Path, windows: Sequence[Window]) -> Journal:
    """Read the journal of a server that has stopped; `windows` are ascending and do not overlap."""
    with path.open("rb") as lines:
        next(lines)  # the scheduler's spec
        return digest(map(decode_step, lines), windows)


def digest(steps: Iterable[JournalStep], windows: Sequence[Window]) -> Journal:
    """Tables and activities out of the steps of a journal."""
    activities = [Activity() for _ in windows]
    tables: dict[str, LatencyTable] = {}
    window = 0
    reader = _Reader()
    for step in steps:
        if isinstance(step.event, PartitionReady):
            tables |= step.event.tables
        while window < len(windows) and step.now_ns > windows[window][1]:
            window += 1
        inside = window < len(windows) and step.now_ns >= windows[window][0]
        reader.take(step, activities[window] if inside else Activity())
    return Journal(tables, activities)


class _Reader:
    """Follows requests and batches through the steps."""

    def __init__(self) -> None:
        self._now_ns = -1
        self._together = 0
        self._under_way: dict[int, tuple[DispatchBatch, int, bool, int]] = {}
        self._in_flight: dict[str, int] = {}
        self._ended_ns: dict[str, int] = {}

    def take(self, step: JournalStep, activity: Activity) -> None:
        """Take in one step and count it to the activity."""
        event, now_ns = step.event, step.now_ns
        if now_ns != self._now_ns:
            self._now_ns, self._together = now_ns, 0
        if isinstance(event, RequestArrived):
            activity.arrived_ns.append(now_ns)
            self._together += 1
        elif isinstance(event, BatchCompleted):
            self._completed(event, now_ns, activity)
        elif isinstance(event, BatchFailed | BatchRevoked):
            self._in_flight[self._under_way.pop(event.batch)[0].partition] -= 1
        for decision in step.decisions:
            if isinstance(decision, DispatchBatch):
                in_flight = self._in_flight.get(decision.partition, 0)
                self._in_flight[decision.partition] = in_flight + 1
                self._under_way[decision.batch] = decision, now_ns, in_flight > 0, self._together
            elif isinstance(decision, CompleteRequest):
                self._together += 1
                activity.completed_ns.append(now_ns)

    def _completed(self, event: BatchCompleted, now_ns: int, activity: Activity) -> None:
        batch, dispatched_ns, queued, together = self._under_way.pop(event.batch)
        self._in_flight[batch.partition] -= 1
        before_ns = self._ended_ns.get(batch.partition)
        self._ended_ns[batch.partition] = event.ended_ns
        times = (dispatched_ns, event.started_ns, event.ended_ns, now_ns)
        activity.batches.append(ObservedBatch(batch.model, batch.rows, *times, before_ns, queued, together))
