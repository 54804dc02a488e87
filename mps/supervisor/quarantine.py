"""Quarantine: a partition whose workers fault again and again is left alone for a while."""

import math
from collections import deque
from collections.abc import Iterable

import msgspec


class QuarantineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A partition is left alone after `faults` losses of its worker within `within_s` seconds (0 faults: never).

    The first time that is for `first_s` seconds, every further time for twice as long, up to `last_s`.
    """

    faults: int = 5
    within_s: float = 60.0
    first_s: float = 60.0
    last_s: float = 900.0

    def __post_init__(self) -> None:
        if self.faults < 0:
            raise ValueError(f"expected faults of at least 0, got {self.faults}")
        if not 0 < self.within_s < math.inf:
            raise ValueError(f"expected a finite within_s above 0, got {self.within_s:g}")
        if not 0 < self.first_s <= self.last_s < math.inf:
            raise ValueError(f"expected 0 < first_s <= last_s, got {self.first_s:g} and {self.last_s:g}")


DEFAULT_QUARANTINE = QuarantineSettings()


class Quarantined(msgspec.Struct, frozen=True):
    """A partition that is left alone, for how long in all, and why."""

    for_s: float
    reason: str


class _Record:
    """The faults of one partition, and the longer time for which it is left alone next."""

    def __init__(self, settings: QuarantineSettings) -> None:
        self.faults: deque[float] = deque(maxlen=max(settings.faults, 1))
        self.next_s = settings.first_s
        self.on_probation = False
        self.ready_s: float | None = None


class Quarantine:
    """Decides by what is told of losses; time is passed in, in seconds. `present` are those in quarantine.

    One that comes out of it is on probation: its next fault puts it back, unless its worker was up for `within_s` by
    then. Of all partitions one is always let go on, except where a device is lost, which nothing runs on.
    """

    def __init__(self, partitions: Iterable[str], settings: QuarantineSettings) -> None:
        self._settings = settings
        self._records = {name: _Record(settings) for name in partitions}
        self.partitions: dict[str, Quarantined] = {}

    def worker_ready(self, partition: str, now_s: float) -> None:
        """The worker of a partition is up."""
        self._records[partition].ready_s = now_s

    def worker_lost(self, partition: str, reason: str, now_s: float) -> float | None:
        """A worker was lost by no will of ours; for how long the partition is left alone now, None when it is not."""
        settings, record = self._settings, self._records[partition]
        if not settings.faults:
            return None
        if record.ready_s is not None and now_s - record.ready_s >= settings.within_s:
            record.on_probation = False
            record.next_s = settings.first_s
        record.ready_s = None
        record.faults.append(now_s)
        often = len(record.faults) == settings.faults and now_s - record.faults[0] <= settings.within_s
        if not (often or record.on_probation) or len(self._records) - len(self.partitions) <= 1:
            return None
        count = "again" if record.on_probation else f"{settings.faults} times within {settings.within_s:g} s"
        return self._start(partition, f"its worker was lost {count}: {reason}")

    def device_lost(self, partition: str, reason: str) -> float:
        """The device of a partition is lost; for how long the partition is left alone."""
        return self._start(partition, reason)

    def release(self, partition: str) -> None:
        """A partition is tried again, if it was left alone."""
        self.partitions.pop(partition, None)

    def _start(self, partition: str, reason: str) -> float:
        record = self._records[partition]
        for_s = record.next_s
        record.next_s = min(2 * for_s, self._settings.last_s)
        record.on_probation = True
        record.faults.clear()
        self.partitions[partition] = Quarantined(for_s, reason)
        return for_s
