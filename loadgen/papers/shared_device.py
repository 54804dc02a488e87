"""Jobs on one device whose shares are capped, elastic or not kept at all, in virtual time."""

import enum
from collections.abc import Iterator, Mapping, Sequence

import msgspec

_ROUNDING_S = 1e-9


class Cap(enum.StrEnum):
    """What a job may have of a device.

    `hard` is its share and no more; `elastic` its share, and of what others leave idle as much as its share is of those
    who want it (KNIX, HiPS '21); `uncapped` an equal part with all that run, whatever the shares.
    """

    HARD = "hard"
    ELASTIC = "elastic"
    UNCAPPED = "uncapped"


class Job(msgspec.Struct, frozen=True):
    """Bursts of work, in seconds of the whole device, with pauses between them, at a share of the device."""

    name: str
    share: float
    work_s: float
    bursts: int = 1
    pause_s: float = 0.0


class Shared(msgspec.Struct, frozen=True):
    """When each job was done, and which part of the device was used until the last one was."""

    end_s: Mapping[str, float]
    utilisation: float


def grants(cap: Cap, jobs: Sequence[Job]) -> dict[str, float]:
    """What each of the jobs that run gets; their shares come to 1 at most."""
    if cap is Cap.HARD:
        return {job.name: job.share for job in jobs}
    if cap is Cap.UNCAPPED:
        return {job.name: 1 / len(jobs) for job in jobs}
    wanted = sum(job.share for job in jobs)
    return {job.name: job.share / wanted for job in jobs}


def run(cap: Cap, jobs: Sequence[Job], interval_s: float = 0.0) -> Shared:
    """Run jobs that all start at 0; grants of elastic shares change every `interval_s` (0: at once).

    Who comes back from a pause between two changes waits for the next, or starts with its share where nobody ran at the
    last.
    """
    play = _Play(cap, jobs, interval_s)
    while play.step():
        pass
    return Shared(play.end_s, sum(job.work_s * job.bursts for job in jobs) / max(play.end_s.values()))


class _Play:
    def __init__(self, cap: Cap, jobs: Sequence[Job], interval_s: float) -> None:
        assert sum(job.share for job in jobs) <= 1 + _ROUNDING_S, "the shares come to more than the device"
        self.cap = cap
        self.jobs = {job.name: job for job in jobs}
        self.interval_s = interval_s if cap is Cap.ELASTIC else 0.0
        self.now_s = 0.0
        self.left_s = {job.name: job.work_s for job in jobs}
        self.bursts = {job.name: job.bursts for job in jobs}
        self.resume_s: dict[str, float] = {}
        self.end_s: dict[str, float] = {}
        self.ticks = 0
        self.granted = grants(cap, jobs)

    def step(self) -> bool:
        """Go on to the next burst that ends or begins, or change of grants; false when all is done."""
        next_s = min(self._next(), default=None)
        if next_s is None:
            return False
        rates = self._rates()
        for name in self._active():
            self.left_s[name] -= rates[name] * (next_s - self.now_s)
        self.now_s = next_s
        for name in [name for name, at in self.resume_s.items() if at <= next_s + _ROUNDING_S]:
            del self.resume_s[name]
        for name in [name for name in self._active() if self.left_s[name] <= _ROUNDING_S]:
            self._finish(name)
        if self.interval_s == 0 or next_s >= (self.ticks + 1) * self.interval_s - _ROUNDING_S:
            self.ticks += 1
            self.granted = grants(self.cap, [self.jobs[name] for name in self._active()])
        return True

    def _next(self) -> Iterator[float]:
        yield from self.resume_s.values()
        rates = self._rates()
        active = self._active()
        yield from (self.now_s + self.left_s[name] / rates[name] for name in active if rates[name] > 0)
        if self.interval_s and len(self.end_s) < len(self.jobs):
            yield (self.ticks + 1) * self.interval_s

    def _active(self) -> list[str]:
        return [name for name in self.jobs if name not in self.resume_s and name not in self.end_s]

    def _rates(self) -> dict[str, float]:
        """What each gets that runs now: who came back since grants changed has nothing, unless nobody had any."""
        if not self.granted:
            return {name: self.jobs[name].share for name in self._active()}
        return {name: self.granted.get(name, 0.0) for name in self._active()}

    def _finish(self, name: str) -> None:
        self.bursts[name] -= 1
        if self.bursts[name] == 0:
            self.end_s[name] = self.now_s
        else:
            self.resume_s[name] = self.now_s + self.jobs[name].pause_s
            self.left_s[name] = self.jobs[name].work_s
