"""Cut-offs: an ensemble that joins what is there on time gives up the members that are not.

Clipper (NSDI '17, section 5.2.2) answers at the deadline with the models that have answered by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from sluice.batcher.state import Request, StageState
from sluice.models.units import NS_PER_MS

AHEAD_NS = NS_PER_MS
"""Members are joined this long before it is too late, so that the answer is complete by then."""
COMPACT = 1024
"""Least number of cut-offs at which those of requests that have ended are dropped."""


class CutOffs:
    """When combiners of requests have to join what is there, in a heap."""

    __slots__ = ("_compact_above", "_planned")

    def __init__(self) -> None:
        self._planned: list[tuple[int, int, int, Request]] = []
        self._compact_above = COMPACT

    def plan(self, request: Request, stage: StageState) -> None:
        """Cut a combiner's members off when its answer could no longer be in time."""
        planned = self._planned
        if len(planned) > self._compact_above:
            planned[:] = [item for item in planned if not item[3].settled]
            heapify(planned)
            self._compact_above = max(COMPACT, 2 * len(planned))
        at_ns = request.deadline_ns - stage.remaining_path_ns - AHEAD_NS
        heappush(planned, (at_ns, request.identity, stage.index, request))

    @property
    def next_ns(self) -> int | None:
        """When the first one is due; None without one."""
        planned = self._planned
        while planned and planned[0][3].settled:
            heappop(planned)
        return planned[0][0] if planned else None

    def due(self, now_ns: int) -> Iterator[tuple[Request, StageState]]:
        """The combiners whose members are to be cut off now."""
        planned = self._planned
        while planned and planned[0][0] <= now_ns:
            _, _, index, request = heappop(planned)
            if not request.settled:
                yield request, request.pipeline.stages[index]


def present(request: Request, stage: StageState) -> list[int]:
    """The members of a combiner that have answered."""
    runs = request.runs
    return [index for index in stage.config.sources if (run := runs[index]) is not None and run.is_done]


def may_join(request: Request, stage: StageState) -> bool:
    """True if a member of a combiner has answered, and it is known for which rows the combiner is to run."""
    when = stage.config.when
    if when is not None and ((run := request.runs[when.stage]) is None or not run.is_done):
        return False
    return bool(present(request, stage))


def absent(request: Request, stage: StageState) -> set[int]:
    """The stages that are given up for a combiner: members without an answer, and what only these need.

    A member that other stages need as well goes on for these. Stages that were given up before are not among them.
    """
    given_up = set(request.given_up)
    stages, runs = request.pipeline.stages, request.runs
    for index in range(stage.index - 1, -1, -1):
        if index in given_up or ((run := runs[index]) is not None and run.is_done):
            continue
        later = stages[index].dependents
        # A later stage that has its rows, although this one is not done, has joined the others.
        if later and all(each in given_up or each == stage.index or runs[each] is not None for each in later):
            given_up.add(index)
    return given_up - request.given_up
