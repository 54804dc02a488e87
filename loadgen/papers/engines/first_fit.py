"""A schedule that is made ahead, with all times known: no bound on what can be in time is below what it has in time.

Requests are placed one after the other. Each has the first of its paths on which all stages find free time, one behind
the other, by the deadline; what has its place keeps it. A request without such a path is refused. Batches have one row.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class TimedPath(NamedTuple):
    """A kind of instance for each stage of a chain, and how long the stage takes there."""

    kinds: tuple[str, ...]
    times_ns: tuple[int, ...]


class RequestPaths(NamedTuple):
    """When a request came and has to be answered, and the paths that it may take, best first."""

    came_ns: int
    deadline_ns: int
    paths: Sequence[TimedPath]


def in_time_by_first_fit(requests: Iterable[RequestPaths], instances: Mapping[str, int]) -> list[bool]:
    """Which requests are in time if they are placed in this order; `instances` has the number of each kind.

    A stage begins as soon as an instance has the time for it; of several, it goes where the least time is lost before.
    O(requests * paths * stages * instances).
    """
    calendars = {kind: [_Calendar() for _ in range(number)] for kind, number in instances.items()}
    return [_place(request, calendars) for request in requests]


class _Calendar:
    """When an instance is busy: the begins and ends of its stages, ascending."""

    def __init__(self) -> None:
        self._begins_ns: list[int] = []
        self._ends_ns: list[int] = []

    def first_ns(self, ready_ns: int, took_ns: int, due_ns: int) -> tuple[int, int] | None:
        """The first begin of a stage that is ready at a time and over by another, and the idle time before it."""
        index = bisect_right(self._ends_ns, ready_ns)
        begin_ns, idle_since_ns = ready_ns, self._ends_ns[index - 1] if index else 0
        while index < len(self._begins_ns) and self._begins_ns[index] - begin_ns < took_ns:
            begin_ns = idle_since_ns = self._ends_ns[index]
            index += 1
        return (begin_ns, begin_ns - idle_since_ns) if begin_ns + took_ns <= due_ns else None

    def take(self, begin_ns: int, took_ns: int) -> None:
        """Be busy from a time on."""
        index = bisect_left(self._begins_ns, begin_ns)
        self._begins_ns.insert(index, begin_ns)
        self._ends_ns.insert(index, begin_ns + took_ns)


def _place(request: RequestPaths, calendars: Mapping[str, Sequence[_Calendar]]) -> bool:
    for path in request.paths:
        at_ns, rest_ns = request.came_ns, sum(path.times_ns)
        taken: list[tuple[_Calendar, int, int]] = []
        for kind, took_ns in zip(path.kinds, path.times_ns, strict=True):
            rest_ns -= took_ns
            found = [
                (*spot, calendar)
                for calendar in calendars[kind]
                if (spot := calendar.first_ns(at_ns, took_ns, request.deadline_ns - rest_ns)) is not None
            ]
            if not found:
                break
            begin_ns, _, calendar = min(found, key=_begin_and_idle)
            taken.append((calendar, begin_ns, took_ns))
            at_ns = begin_ns + took_ns
        else:
            for calendar, begin_ns, took_ns in taken:
                calendar.take(begin_ns, took_ns)
            return True
    return False


def _begin_and_idle(spot: tuple[int, int, _Calendar]) -> tuple[int, int]:
    return spot[:2]
