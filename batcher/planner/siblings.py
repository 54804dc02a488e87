"""Stages that are there at the same time for the same request, and have to share the partitions."""

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from sluice.batcher.planner.graph import Sources, ancestors


class Sibling(NamedTuple):
    """A stage that is neither before nor after another one; of its time, `part` falls on that one.

    It delays a way through the pipeline once, not every stage of it: stages of one way that it is beside share it.
    """

    stage: int
    part: float


@lru_cache(maxsize=256)
def siblings(sources: Sources, counted: tuple[bool, ...]) -> tuple[tuple[Sibling, ...], ...]:
    """For each stage those beside it; those that are not `counted` take no time. O(stages^3)."""
    before = [frozenset(stages) for stages in ancestors(sources)]
    stages = [stage for stage, counts in enumerate(counted) if counts]
    found: list[list[Sibling]] = [[] for _ in sources]
    for stage in stages:
        beside = [each for each in stages if each != stage and each not in before[stage] and stage not in before[each]]
        # The most stages of one way through a stage, among those that are beside.
        upto: dict[int, int] = {}
        for each in beside:
            upto[each] = 1 + max((upto[other] for other in before[each] if other in upto), default=0)
        onwards: dict[int, int] = {}
        for each in reversed(beside):
            onwards[each] = 1 + max((count for other, count in onwards.items() if each in before[other]), default=0)
        for each in beside:
            found[each].append(Sibling(stage, 1 / (upto[each] + onwards[each] - 1)))
    return tuple(map(tuple, found))


def at_once(sources: Sources, stages: Collection[int]) -> int:
    """How many of the stages may run at the same time, at most; where ways cross, rather too many than too few."""
    before = ancestors(sources)
    lasts: list[int] = []
    for stage in sorted(stages):
        previous = next((way for way, last in enumerate(lasts) if last in before[stage]), None)
        if previous is None:
            lasts.append(stage)
        else:
            lasts[previous] = stage
    return len(lasts)
