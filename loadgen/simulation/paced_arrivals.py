"""The arrivals of a run in virtual time."""

from collections import deque
from collections.abc import Callable, Iterator

from sluice.batcher.interface.events import RequestArrived
from sluice.loadgen.records.progress import QueryCounts
from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.traffic.pacing import Pacing
from sluice.models.units import NS_PER_US

REFUSAL_NS = 20 * NS_PER_US
"""The time that a client takes for a query that was refused, before the next one leaves in a closed loop.

Without it, clients of a target that refuses at once would ask without end in the same instant of virtual time.
"""


_SHED = Status.SHED


class PacedArrivals(Iterator[tuple[int, RequestArrived]]):
    """The queries of a record as they leave by the rule of a pacing.

    `issued` queries have left, the last one at `last_ns`; `stopped` is true after `stop`. `arrival` makes the event of
    a query from its sample, its number and the time at which it leaves. The iterator has nothing to give while the next
    query waits for an answer, and can be asked again later.
    """

    def __init__(self, record: Record, pacing: Pacing, arrival: Callable[[int, int, int], RequestArrived]) -> None:
        if pacing.from_issue:
            record.due_ns = record.due_ns.copy()
        self.issued = 0
        self.last_ns = 0
        self.stopped = False
        self._ended = 0
        self._pacing = pacing
        self._arrival = arrival
        self._ends_ns: deque[int] = deque()
        self._counted = 0
        self._free_ns = 0
        self._refused_ns = 0
        self._take(record)

    def _take(self, record: Record) -> None:
        self.record = record
        self._due_ns, self._samples = record.due_ns.data, record.sample.data
        self._sent_ns, self._done_ns = record.sent_ns.data, record.done_ns.data
        self._status = record.status.data

    def counts(self) -> QueryCounts:
        """The numbers of queries so far; may be called from any thread."""
        return QueryCounts(self.issued, self._ended)

    def stop(self) -> None:
        """Let no further query leave."""
        self.stopped = True

    def settled(self, query: int, status: Status) -> None:
        """Record the status of a query whose answer is on its way to the client."""
        self._status[query] = status

    def answered(self, query: int, end_ns: int) -> None:
        """Record the time at which the client has the answer to a query, and that another one may leave."""
        self._ended += 1
        end_ns = self._done_ns[query] = max(end_ns, self._sent_ns[query])
        if self._pacing.outstanding is not None:
            if self._status[query] == _SHED:
                end_ns = self._refused_ns = max(end_ns, self._refused_ns) + REFUSAL_NS
            self._ends_ns.append(end_ns)

    def __next__(self) -> tuple[int, RequestArrived]:
        """The time at which the next query leaves, and its event; ends while there is none."""
        if self.stopped:
            raise StopIteration
        query, pacing = self.issued, self._pacing
        if query == len(self._due_ns):
            if not pacing.repeats:
                raise StopIteration
            self._take(self.record.doubled())
        if query % pacing.group == 0:
            self._start_group(query)
        leaves_ns = self._sent_ns[query] = self.last_ns
        if pacing.from_issue:
            self._due_ns[query] = leaves_ns
        self.issued = query + 1
        return leaves_ns, self._arrival(self._samples[query], query, leaves_ns)

    def _start_group(self, query: int) -> None:
        pacing, leaves_ns = self._pacing, self._due_ns[query]
        if pacing.outstanding is not None:
            needed = pacing.ends_needed(query)
            while self._counted < needed and self._ends_ns:
                self._counted += 1
                self._free_ns = max(self._free_ns, self._ends_ns.popleft())
            leaves_ns = max(leaves_ns, self._free_ns)
            if self._counted < needed or pacing.is_over(query, self.last_ns, leaves_ns):
                raise StopIteration
        self.last_ns = leaves_ns
