"""Quarantine: a partition whose workers keep failing gets no worker for a while."""

import math
from collections import deque
from collections.abc import Iterable

import msgspec


class QuarantineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A partition is quarantined after `faults` losses of its worker within `within_s` seconds (0 faults: never).

    The first quarantine lasts `first_s` seconds; each further one lasts twice as long as the one before, up to
    `last_s`.
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
    """A partition in quarantine: the whole length of the quarantine, and its reason."""

    for_s: float
    reason: str


class _Record:
    """The recent losses of one partition, and the length of its next quarantine."""

    def __init__(self, settings: QuarantineSettings) -> None:
        self.faults: deque[float] = deque(maxlen=max(settings.faults, 1))
        self.next_s = settings.first_s
        self.on_probation = False
        self.ready_s: float | None = None


class Quarantine:
    """Decides from losses which partitions are quarantined (`partitions`); all times are passed in, in seconds.

    A partition that leaves quarantine is on probation: its next loss puts it back, unless its worker was up for
    `within_s` before. The last partition that is left, or that holds a model, is never quarantined, except when its
    device is lost.
    """

    def __init__(self, partitions: Iterable[str], settings: QuarantineSettings) -> None:
        self._settings = settings
        self._records = {name: _Record(settings) for name in partitions}
        self.partitions: dict[str, Quarantined] = {}

    def worker_ready(self, partition: str, now_s: float) -> None:
        """The worker of a partition is ready."""
        self._records[partition].ready_s = now_s

    def worker_lost(self, partition: str, reason: str, now_s: float, *, is_last: bool = False) -> float | None:
        """A worker was lost unexpectedly; returns the length of the quarantine that starts now, None if none does.

        `is_last` tells whether no other worker holds some model of this one.
        """
        settings, record = self._settings, self._records[partition]
        if not settings.faults:
            return None
        if record.ready_s is not None and now_s - record.ready_s >= settings.within_s:
            record.on_probation = False
            record.next_s = settings.first_s
        record.ready_s = None
        record.faults.append(now_s)
        often = len(record.faults) == settings.faults and now_s - record.faults[0] <= settings.within_s
        is_last = is_last or len(self._records) - len(self.partitions) <= 1
        if is_last or not (often or record.on_probation):
            return None
        count = "again" if record.on_probation else f"{settings.faults} times within {settings.within_s:g} s"
        return self._start(partition, f"its worker was lost {count}: {reason}")

    def device_lost(self, partition: str, reason: str) -> float:
        """The device of a partition is lost; returns the length of the quarantine that starts now."""
        return self._start(partition, reason)

    def release(self, partition: str) -> None:
        """A partition is tried again, if it was in quarantine."""
        self.partitions.pop(partition, None)

    def _start(self, partition: str, reason: str) -> float:
        record = self._records[partition]
        for_s = record.next_s
        record.next_s = min(2 * for_s, self._settings.last_s)
        record.on_probation = True
        record.faults.clear()
        self.partitions[partition] = Quarantined(for_s, reason)
        return for_s
