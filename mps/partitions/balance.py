"""Lends unassigned cores and shares of a GPU to busy partitions, and takes them back from idle ones."""

import enum
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

import msgspec

SAMPLES_IN_A_ROW = 3
"""Consecutive samples in which a partition must be busy, or idle, before anything changes."""
STEP_PERCENT = 10
"""Percent of a GPU that a share is lent, or gives back, at a time."""

_Held = TypeVar("_Held", tuple[int, ...], int)


class ResizeTrigger(enum.StrEnum):
    """The trigger of a change of core sets: the plan, as far as profiles cover it, or the partitions' load."""

    PLAN = "plan"
    LOAD = "load"


class BalanceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When cores and shares of GPUs are lent and given back, by the busy part of a partition's time, and in seconds.

    A partition that is busy for at least `busy` of its time is lent something; one that has been lent something and is
    busy for at most `idle` gives it back. What it keeps is then busy for less than `busy`, so that nothing goes to and
    fro. A sample is taken `every_s`, and `pause_s` pass between two changes. With `by` load the plan is not asked.
    """

    by: ResizeTrigger = ResizeTrigger.PLAN
    busy: float = 0.8
    idle: float = 0.3
    every_s: float = 5.0
    pause_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < 2 * self.idle < self.busy <= 1:
            raise ValueError(
                f"expected idle above 0 and below half of busy, and busy of at most 1, got {self.idle:g} and "
                f"{self.busy:g}"
            )
        if not (0 < self.every_s < math.inf and 0 <= self.pause_s < math.inf):
            raise ValueError("expected a finite every_s above 0 and a finite pause_s of at least 0")


class PartitionLoad(NamedTuple, Generic[_Held]):
    """The resources that a partition has, and the part of its time that it was busy since the last sample."""

    held: _Held
    busy: float


class LoadChange(NamedTuple, Generic[_Held]):
    """A partition is to have these resources."""

    partition: str
    held: _Held


class _Lender(ABC, Generic[_Held]):
    """Lends unassigned resources to the busiest partition, and takes them back when it does not need them.

    `own` is each partition's own part, which it always keeps.
    """

    def __init__(self, settings: BalanceSettings, own: Mapping[str, _Held]) -> None:
        self._settings = settings
        self._own: dict[str, _Held] = dict(own)
        self._busy: Counter[str] = Counter()
        self._idle: Counter[str] = Counter()
        self._changed_s = -math.inf

    def note_change(self, now_s: float) -> None:
        """A partition was resized for any reason: the pause and the samples start again."""
        self._changed_s = now_s
        self._busy.clear()
        self._idle.clear()

    def next_change(
        self, now_s: float, loads: Mapping[str, PartitionLoad[_Held]], free: _Held
    ) -> LoadChange[_Held] | None:
        """Take a sample and return the next change, if there is one; the caller tries it once, whatever the result."""
        for name, load in loads.items():
            self._busy[name] = self._busy[name] + 1 if load.busy >= self._settings.busy else 0
            self._idle[name] = self._idle[name] + 1 if load.busy <= self._settings.idle else 0
        if now_s - self._changed_s < self._settings.pause_s:
            return None
        change = self._lend(loads, free) or self._return(loads)
        if change is not None:
            self.note_change(now_s)
        return change

    def _lend(self, loads: Mapping[str, PartitionLoad[_Held]], free: _Held) -> LoadChange[_Held] | None:
        busy = [name for name in loads if self._busy[name] >= SAMPLES_IN_A_ROW]
        if not busy or not free:
            return None
        name = max(busy, key=lambda each: loads[each].busy)
        return LoadChange(name, self._grown(loads[name].held, free))

    def _return(self, loads: Mapping[str, PartitionLoad[_Held]]) -> LoadChange[_Held] | None:
        for name, (held, _) in loads.items():
            if self._idle[name] >= SAMPLES_IN_A_ROW and (less := self._shrunk(held, self._own[name])) != held:
                return LoadChange(name, less)
        return None

    @abstractmethod
    def _grown(self, held: _Held, free: _Held) -> _Held: ...

    @abstractmethod
    def _shrunk(self, held: _Held, own: _Held) -> _Held:
        """At least half of what is held; all of it if nothing of it is lent."""


class CoreBalance(_Lender[tuple[int, ...]]):
    """Lends cores, one at a time."""

    def _grown(self, held: tuple[int, ...], free: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted((*held, min(free))))

    def _shrunk(self, held: tuple[int, ...], own: tuple[int, ...]) -> tuple[int, ...]:
        lent = set(held) - set(own)
        return tuple(core for core in held if core != max(lent)) if lent and len(held) > 1 else held


class ShareBalance(_Lender[int]):
    """Lends percents of the multiprocessors of one GPU."""

    def _grown(self, held: int, free: int) -> int:
        return held + min(free, STEP_PERCENT)

    def _shrunk(self, held: int, own: int) -> int:
        return held if held <= own else max(own, held - STEP_PERCENT, math.ceil(held / 2))
