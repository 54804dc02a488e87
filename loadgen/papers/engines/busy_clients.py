"""Clients that ask again as soon as they are answered, and a record of the batches that were sent."""

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from sluice.batcher.interface.decisions import AnyDecision, CompleteRequest, DispatchBatch
from sluice.batcher.interface.events import AnyEvent, BatchCompleted, RequestArrived
from sluice.models.units import NS_PER_S

PATIENCE_NS = 3600 * NS_PER_S


class EndedBatch(msgspec.Struct, frozen=True):
    """A batch as it was sent, and the times at which it was sent and at which it was over."""

    sent: DispatchBatch
    sent_ns: int
    over_ns: int

    @property
    def rows(self) -> int:
        """Its rows."""
        return self.sent.rows


class BatchRecord:
    """Takes down the batches in the order of their ends."""

    def __init__(self) -> None:
        self.batches: list[EndedBatch] = []
        self._running: dict[int, tuple[DispatchBatch, int]] = {}

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        """Look at one step of the scheduler."""
        for decision in decisions:
            if isinstance(decision, DispatchBatch):
                self._running[decision.batch] = decision, now_ns
        if isinstance(event, BatchCompleted):
            self.batches.append(EndedBatch(*self._running.pop(event.batch), now_ns))


class BusyClients(BatchRecord):
    """The requests of `clients` clients of each pipeline, of one row each, without a deadline that matters.

    They are arrivals for `VirtualGateway.play` that end at `until_ns`; `observe` has to see each step.
    """

    def __init__(self, pipelines: Sequence[str], clients: int, until_ns: int) -> None:
        super().__init__()
        self._until_ns = until_ns
        self._due = deque((0, pipeline) for pipeline in pipelines for _ in range(clients))
        self._asked: dict[int, str] = {}
        self._requests = 0

    def __iter__(self) -> Iterator[tuple[int, AnyEvent]]:
        return self

    def __next__(self) -> tuple[int, AnyEvent]:
        if not self._due:
            raise StopIteration
        at_ns, pipeline = self._due.popleft()
        self._requests += 1
        self._asked[self._requests] = pipeline
        return at_ns, RequestArrived(self._requests, pipeline, 1, at_ns + PATIENCE_NS)

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        """Ask again for each answer."""
        super().observe(now_ns, event, decisions)
        for decision in decisions:
            if isinstance(decision, CompleteRequest):
                pipeline = self._asked.pop(decision.request)
                if now_ns < self._until_ns:
                    self._due.append((now_ns, pipeline))
