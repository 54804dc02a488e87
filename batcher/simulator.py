"""The simulator: drives a scheduler in virtual time, with batches that take as long as a service model says."""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Protocol

from batcher.decisions import AnyDecision, CombineOutputs, DispatchBatch, RevokeBatch
from batcher.events import PRIORITY, AnyEvent, BatchCompleted, BatchRevoked, OutputsCombined
from batcher.scheduler import Scheduler

Verdicts = tuple[tuple[float, ...], ...]


class Service(Protocol):
    """What the machine would do: how long a batch takes and how sure its answers are."""

    def batch_ns(self, batch: DispatchBatch) -> int:
        """Time that the partition takes for a batch."""
        ...

    def batch_verdicts(self, batch: DispatchBatch) -> Verdicts:
        """Verdicts of a batch, as in `BatchCompleted`."""
        ...

    def combined_verdicts(self, combination: CombineOutputs) -> Verdicts:
        """Verdicts of a combiner, as in `OutputsCombined`."""
        ...


class Simulator:
    """A discrete-event loop around a scheduler.

    A worker runs its batches one after the other; combiners take no time. `observe` is called with every step (time,
    event or None for a wake-up, decisions), which is also what a journal records.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        service: Service,
        observe: Callable[[int, AnyEvent | None, list[AnyDecision]], None],
    ) -> None:
        self._scheduler = scheduler
        self._service = service
        self._observe = observe
        self._agenda: list[tuple[int, int, int, AnyEvent]] = []
        self._sequence = 0
        self._free_ns: dict[str, int] = {}
        self._started_ns: dict[int, tuple[str, int]] = {}
        self.now_ns = 0

    def at(self, time_ns: int, event: AnyEvent) -> None:
        """Put an event on the agenda; not before the present."""
        self._sequence += 1
        heappush(self._agenda, (time_ns, PRIORITY[type(event)], self._sequence, event))

    def run(self, arrivals: Iterable[tuple[int, AnyEvent]] = ()) -> None:
        """Run until nothing is left to happen; `arrivals` are (time, event), ascending, drawn as time passes.

        An event on the agenda comes before an arrival of the same instant.
        """
        upcoming = iter(arrivals)
        following = next(upcoming, None)
        while True:
            due_ns = self._scheduler.next_wakeup_ns()
            if self._agenda and (due_ns is None or self._agenda[0][0] < due_ns):
                due_ns = self._agenda[0][0]
            if following is not None and (due_ns is None or following[0] < due_ns):
                due_ns = following[0]
            if due_ns is None:
                return
            if due_ns > self.now_ns:
                self.now_ns = due_ns
            while self._agenda and self._agenda[0][0] <= self.now_ns:
                event = heappop(self._agenda)[3]
                if not isinstance(event, BatchCompleted) or self._started_ns.pop(event.batch, None) is not None:
                    self._handle(event)
            while following is not None and following[0] <= self.now_ns:
                self._handle(following[1])
                following = next(upcoming, None)
            wake_ns = self._scheduler.next_wakeup_ns()
            if wake_ns is not None and wake_ns <= self.now_ns:
                decisions = self._scheduler.handle_wakeup(self.now_ns)
                self._observe(self.now_ns, None, decisions)
                self._apply(decisions)

    def _handle(self, event: AnyEvent) -> None:
        decisions = self._scheduler.handle(event, self.now_ns)
        self._observe(self.now_ns, event, decisions)
        if decisions:
            self._apply(decisions)

    def _apply(self, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, DispatchBatch):
                self._start(decision)
            elif isinstance(decision, CombineOutputs):
                member = decision.member
                verdicts = self._service.combined_verdicts(decision)
                self.at(self.now_ns, OutputsCombined(member.request, member.stage, verdicts))
            elif isinstance(decision, RevokeBatch):
                self._revoke(decision.batch)

    def _start(self, batch: DispatchBatch) -> None:
        started_ns = max(self.now_ns, self._free_ns.get(batch.partition, 0))
        ended_ns = started_ns + self._service.batch_ns(batch)
        self._free_ns[batch.partition] = ended_ns
        self._started_ns[batch.batch] = (batch.partition, started_ns)
        self.at(ended_ns, BatchCompleted(batch.batch, started_ns, ended_ns, self._service.batch_verdicts(batch)))

    def _revoke(self, batch: int) -> None:
        """Take a batch back that has not started: it is the last of its partition, since a worker holds two at most."""
        partition, started_ns = self._started_ns[batch]
        if started_ns > self.now_ns:
            del self._started_ns[batch]
            self._free_ns[partition] = started_ns
            self.at(self.now_ns, BatchRevoked(batch))
