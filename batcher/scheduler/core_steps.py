"""Steps that give, take or move one core because the plan asks for it, and when a step is carried out."""

import math
from collections.abc import Iterator, Mapping

from sluice.batcher.interface.resize_data import Ask, Cores, CoreStep, Reason
from sluice.mps.partitions.balance import SAMPLES_IN_A_ROW, BalanceSettings, LoadChange


def steps(held: Mapping[str, Cores], own: Mapping[str, Cores], spare: Cores) -> Iterator[CoreStep]:
    """All splits that differ by one core from the one that is `held`; `spare` cores belong to no partition.

    Every partition keeps a core. A core that a partition owns (`own`) goes to another partition only.
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
    """Carries out a step once the plan has asked for it at `SAMPLES_IN_A_ROW` looks, with a pause between steps."""

    def __init__(self, settings: BalanceSettings) -> None:
        self._pause_s = settings.pause_s
        self._changed_s = -math.inf
        self._asked: tuple[CoreStep, Reason] | None = None
        self._times = 0

    def changed(self, now_s: float) -> None:
        """Note a change by anyone: the pause and the looks start again."""
        self._changed_s = now_s
        self._asked = None

    def look(self, now_s: float, ask: Ask | None) -> Ask | None:
        """The step to carry out now, or None; the caller tries it once and does not repeat it if it fails."""
        asked = None if ask is None else (ask.step, ask.reason)
        self._times = self._times + 1 if asked == self._asked else 1
        self._asked = asked
        if ask is None or self._times < SAMPLES_IN_A_ROW or now_s - self._changed_s < self._pause_s:
            return None
        self.changed(now_s)
        return ask
