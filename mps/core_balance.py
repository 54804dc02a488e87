"""Which partition is to get a free core, or to give back one that it was lent: decided from how busy all are."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

LOOKS = 3
"""A partition is as busy, or as idle, at so many looks in a row before anything is changed."""


class BalanceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When cores are lent and given back: shares of a partition's time, and seconds.

    A partition that is busy for `busy` of its time is lent a core, one that has lent cores and is busy for `idle` at
    most gives one back. What it has left is then busy for less than `busy`, however few cores that are, so that
    nothing goes to and fro. There is a look `every_s`, and `pause_s` from one change to the next.
    """

    busy: float = 0.8
    idle: float = 0.3
    every_s: float = 5.0
    pause_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < 2 * self.idle < self.busy <= 1:
            raise ValueError(
                f"expected an idle above 0 of less than half of busy, which is at most 1, got {self.idle:g} and "
                f"{self.busy:g}"
            )
        if not (0 < self.every_s < math.inf and 0 <= self.pause_s < math.inf):
            raise ValueError("expected a finite every_s above 0 and a finite pause_s of at least 0")


class Loaded(NamedTuple):
    """A set of cores, and the part of its time that it was busy since the last look."""

    cores: tuple[int, ...]
    busy: float


class Change(NamedTuple):
    """A partition is to have these cores."""

    partition: str
    cores: tuple[int, ...]


class CoreBalance:
    """Lends the cores that are nobody's to the busiest partition, and takes them back when it does not need them.

    `own` are the cores that each partition always has.
    """

    def __init__(self, settings: BalanceSettings, own: Mapping[str, Sequence[int]]) -> None:
        self._settings = settings
        self._own = {name: frozenset(cores) for name, cores in own.items()}
        self._busy: Counter[str] = Counter()
        self._idle: Counter[str] = Counter()
        self._changed_s = -math.inf

    def changed(self, now_s: float) -> None:
        """Cores were changed, by whomever: the pause and the looks count from now."""
        self._changed_s = now_s
        self._busy.clear()
        self._idle.clear()

    def look(self, now_s: float, loads: Mapping[str, Loaded], free: Sequence[int]) -> Change | None:
        """The next change, if there is to be one; the caller tries it once, whatever comes of it."""
        for name, load in loads.items():
            self._busy[name] = self._busy[name] + 1 if load.busy >= self._settings.busy else 0
            self._idle[name] = self._idle[name] + 1 if load.busy <= self._settings.idle else 0
        if now_s - self._changed_s < self._settings.pause_s:
            return None
        change = self._lend(loads, free) or self._return(loads)
        if change is not None:
            self.changed(now_s)
        return change

    def _lend(self, loads: Mapping[str, Loaded], free: Sequence[int]) -> Change | None:
        busy = [name for name in loads if self._busy[name] >= LOOKS]
        if not busy or not free:
            return None
        name = max(busy, key=lambda each: loads[each].busy)
        return Change(name, tuple(sorted((*loads[name].cores, min(free)))))

    def _return(self, loads: Mapping[str, Loaded]) -> Change | None:
        for name, (cores, _) in loads.items():
            lent = set(cores) - self._own[name]
            if lent and len(cores) > 1 and self._idle[name] >= LOOKS:
                return Change(name, tuple(core for core in cores if core != max(lent)))
        return None
