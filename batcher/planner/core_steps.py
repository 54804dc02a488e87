"""Cores that are given, taken or moved because the plan asks for it: which steps there are, and when one is done."""

import enum
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sluice.mps.partitions.balance import SAMPLES_IN_A_ROW, BalanceSettings, LoadChange

Cores = tuple[int, ...]


class CoreStep(NamedTuple):
    """One core given, taken or moved: what partitions are to have, in the order in which they are to be changed.

    `cores` is by how many the partitions have more together. A step that is not `free` takes a core from a partition
    that has no more of them than its own.
    """

    changes: tuple[LoadChange[Cores], ...]
    cores: int
    free: bool = True


class Judgement(NamedTuple):
    """What the planner makes of a split of the cores.

    `missed` are the pipelines that cannot meet their objectives, or whose rate is too much. `busiest` is the share of
    time that all models take at best of the busiest partitions, `overload` by how many times it is too much (at least
    1). `cost` is that of a second.
    """

    missed: tuple[str, ...]
    busiest: float
    overload: float
    cost: float


class Reason(enum.StrEnum):
    """Why the plan asks: an objective that is missed as things are, or what they cost."""

    OBJECTIVE = "objective"
    COST = "cost"


class Ask(NamedTuple):
    """The plan asks for a step, which takes the judgement from `before` to `after`."""

    step: CoreStep
    reason: Reason
    before: Judgement
    after: Judgement


def steps(held: Mapping[str, Cores], own: Mapping[str, Cores], spare: Cores) -> Iterator[CoreStep]:
    """All splits that differ by one core from the one that is `held`; `spare` cores are nobody's.

    Every partition keeps a core, and only another partition gets one of what is its `own`.
    """
    if spare:
        for name, cores in held.items():
            yield CoreStep((LoadChange(name, tuple(sorted((*cores, min(spare))))),), 1)
    for name, cores in held.items():
        if len(cores) < 2:
            continue
        core = max(set(cores) - set(own[name]) or cores)
        less = LoadChange(name, tuple(each for each in cores if each != core))
        lent = len(cores) > len(own[name])
        if lent:
            yield CoreStep((less,), -1)
        for other, others in held.items():
            if other != name:
                yield CoreStep((less, LoadChange(other, tuple(sorted((*others, core))))), 0, lent)


class StepChoice:
    """Follows the plan once it has asked for the same change `SAMPLES_IN_A_ROW` times, and not too often."""

    def __init__(self, settings: BalanceSettings) -> None:
        self._pause_s = settings.pause_s
        self._changed_s = -math.inf
        self._asked: tuple[CoreStep, Reason] | None = None
        self._times = 0

    def changed(self, now_s: float) -> None:
        """Something was changed, by whomever: the pause and the looks count from now."""
        self._changed_s = now_s
        self._asked = None

    def look(self, now_s: float, ask: Ask | None) -> Ask | None:
        """What the plan asks for, if it is to be done now; the caller tries it once, whatever comes of it."""
        asked = None if ask is None else (ask.step, ask.reason)
        self._times = self._times + 1 if asked == self._asked else 1
        self._asked = asked
        if ask is None or self._times < SAMPLES_IN_A_ROW or now_s - self._changed_s < self._pause_s:
            return None
        self.changed(now_s)
        return ask
