"""A scheduler that commits to a configuration for each stage when a request comes, and keeps to it.

The shares of stages are those of Llama (SoCC 2021): of all paths from a stage to the end, the one that leaves it the
least, in proportion to the times of the stages on it. Unlike Llama, nothing is chosen again when a stage starts, and
profiles are not corrected.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush

import msgspec

from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S

_CAME, _GATHERED, _ENDED = range(3)


class PathStage(msgspec.Struct, frozen=True):
    """A stage: its model, and the stages (by index) whose outputs it takes."""

    model: str
    sources: tuple[int, ...] = ()


class PricedBackend(msgspec.Struct, frozen=True):
    """Equal partitions: their number, the price of a second of one, and the profiles of the models."""

    count: int
    price: float
    tables: Mapping[str, LatencyTable]


class Committed(msgspec.Struct, frozen=True):
    """The configuration of a stage: a backend, a batch size, and how long the first row waits for a full batch."""

    backend: int
    rows: int
    wait_ns: int


def path_shares(steps: Sequence[PathStage], took_ns: Sequence[int], left_ns: int) -> list[int]:
    """The time that each stage may take of `left_ns`; on no path do they take more together.

    A stage's share is that of its time in the longest path through it.
    """
    count = len(steps)
    until_ns, from_ns = list(took_ns), list(took_ns)
    for index in range(count):
        until_ns[index] += max((until_ns[source] for source in steps[index].sources), default=0)
    for index in reversed(range(count)):
        later = [each for each in range(count) if index in steps[each].sources]
        from_ns[index] += max((from_ns[each] for each in later), default=0)
    return [left_ns * took // (until_ns[index] + from_ns[index] - took) for index, took in enumerate(took_ns)]


def commit(steps: Sequence[PathStage], backends: Sequence[PricedBackend], left_ns: int) -> list[Committed]:
    """The cheapest configuration of each stage within its share, the quickest where there is none."""
    quickest_ns = [min(each.tables[step.model].latency_ns(1) for each in backends) for step in steps]
    committed = []
    for step, share_ns in zip(steps, path_shares(steps, quickest_ns, left_ns), strict=True):
        options = []
        for number, backend in enumerate(backends):
            for rows, took_ns in backend.tables[step.model].cells:
                cost = backend.price * took_ns / rows
                late_ns = max(took_ns - share_ns, 0)
                options.append((late_ns, cost, took_ns, number, rows))
        _, _, took_ns, number, rows = min(options)
        committed.append(Committed(number, rows, max(share_ns - took_ns, 0)))
    return committed


class EarlyCommitment:
    """Plays requests to one DAG: each stage gathers batches of its size, and partitions take the first that waits.

    A batch also closes once its first row has waited for as long as its share allows. `batch_ns(backend, model, rows)`
    is what a batch really takes, and `fails()` says whether one fails at its end and runs again. `cost` is the price of
    all batches.
    """

    def __init__(
        self,
        steps: Sequence[PathStage],
        backends: Sequence[PricedBackend],
        batch_ns: Callable[[int, str, int], int],
        fails: Callable[[], bool],
    ) -> None:
        self._steps = steps
        self._backends = backends
        self._batch_ns = batch_ns
        self._fails = fails
        self._committed: list[Committed] = []
        self._gathering: list[list[int]] = [[] for _ in steps]
        self._gathered = [0] * len(steps)  # batches that each stage has closed
        self._waiting: list[deque[tuple[int, list[int]]]] = [deque() for _ in backends]
        self._idle = [backend.count for backend in backends]
        self._missing: list[list[int]] = []
        self._events: list[tuple[int, int, int, int, list[int]]] = []
        self._serial = 0
        self.cost = 0.0

    def play(self, came_ns: Iterable[int], left_ns: int) -> list[int]:
        """When each request ends, all of which are to end within `left_ns`."""
        self._committed = commit(self._steps, self._backends, left_ns)
        for request, at_ns in enumerate(came_ns):
            self._missing.append([len(step.sources) for step in self._steps])
            self._plan(at_ns, _CAME, 0, [request])
        ended_ns = [0] * len(self._missing)
        while self._events:
            now_ns, _, what, stage, members = heappop(self._events)
            if what == _CAME:
                self._enter(stage, members[0], now_ns)
            elif what == _GATHERED:
                if members[0] == self._gathered[stage]:
                    self._close(stage)
            else:
                self._end(stage, members, now_ns, ended_ns)
            self._start(now_ns)
        return ended_ns

    def _plan(self, at_ns: int, what: int, stage: int, members: list[int]) -> None:
        self._serial += 1
        heappush(self._events, (at_ns, self._serial, what, stage, members))

    def _enter(self, stage: int, request: int, now_ns: int) -> None:
        gathering, committed = self._gathering[stage], self._committed[stage]
        gathering.append(request)
        if len(gathering) == committed.rows:
            self._close(stage)
        elif len(gathering) == 1:
            self._plan(now_ns + committed.wait_ns, _GATHERED, stage, [self._gathered[stage]])

    def _close(self, stage: int) -> None:
        self._waiting[self._committed[stage].backend].append((stage, self._gathering[stage]))
        self._gathering[stage] = []
        self._gathered[stage] += 1

    def _start(self, now_ns: int) -> None:
        for number, backend in enumerate(self._backends):
            while self._idle[number] and self._waiting[number]:
                stage, members = self._waiting[number].popleft()
                took_ns = self._batch_ns(number, self._steps[stage].model, len(members))
                self._idle[number] -= 1
                self.cost += backend.price * took_ns / NS_PER_S
                self._plan(now_ns + took_ns, _ENDED, stage, members)

    def _end(self, stage: int, members: list[int], now_ns: int, ended_ns: list[int]) -> None:
        backend = self._committed[stage].backend
        self._idle[backend] += 1
        if self._fails():
            self._waiting[backend].appendleft((stage, members))
            return
        for request in members:
            ended_ns[request] = now_ns
            for later, step in enumerate(self._steps):
                if stage in step.sources:
                    self._missing[request][later] -= 1
                    if not self._missing[request][later]:
                        self._enter(later, request, now_ns)
