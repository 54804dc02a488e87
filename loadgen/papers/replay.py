"""Jobs with a memory life on shared devices in virtual time: who waits, who runs out of memory, when all is done."""

from collections.abc import Iterator, Sequence
from math import ceil

import msgspec

from sluice.models.units import NS_PER_S
from sluice.mps.packing.policy import PackingPolicy, choose_device
from sluice.mps.packing.tenant import Device, MemoryPhase, PlacedTenant, Tenant

BACK_OFF_NS = 10 * NS_PER_S
"""Wait before the first restart of a job that failed, doubled with each further one, as Kubernetes does."""
MOST_BACK_OFF_NS = 300 * NS_PER_S
_LEAST_WINDOW_NS = 20 * NS_PER_S


class ReplayJob(msgspec.Struct, frozen=True):
    """A job: what a policy knows of it, when it comes, and its real life, all of whose phases end.

    `less_mib` is what it makes do with where it finds less than a phase takes, the most first.
    """

    tenant: Tenant
    arrival_ns: int
    life: tuple[MemoryPhase, ...]
    less_mib: tuple[int, ...] = ()


class SchedulingPace(msgspec.Struct, frozen=True):
    """How often a scheduler tries those that wait beside every change (`look_ns`, 0: never), and pauses after each."""

    look_ns: int = 0
    pause_ns: int = 0


class Ended(msgspec.Struct, frozen=True):
    """How a job went: how long it waited to start and at the gate, how often it failed, and when it was done."""

    name: str
    arrival_ns: int
    pending_ns: int
    restarts: int
    end_ns: int


class Replayed(msgspec.Struct, frozen=True):
    """All jobs in the order in which they ended, and the most memory that was in use on a device."""

    jobs: tuple[Ended, ...]
    peak_mib: int

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last end."""
        return (max(job.end_ns for job in self.jobs) - min(job.arrival_ns for job in self.jobs)) / NS_PER_S

    @property
    def pending_s(self) -> float:
        """The mean wait."""
        return sum(job.pending_ns for job in self.jobs) / len(self.jobs) / NS_PER_S

    @property
    def p99_s(self) -> float:
        """The 99th percentile, by nearest rank, of the time from arrival to end."""
        times = sorted(job.end_ns - job.arrival_ns for job in self.jobs)
        return times[ceil(0.99 * len(times)) - 1] / NS_PER_S

    @property
    def restarts(self) -> int:
        """Of all jobs."""
        return sum(job.restarts for job in self.jobs)


def replay(policy: PackingPolicy, jobs: Sequence[ReplayJob], devices: dict[str, int], pace: SchedulingPace) -> Replayed:
    """Play jobs on devices, given with their memory in MiB; raises ValueError for jobs that can never end there."""
    play = _Play(policy, jobs, devices, pace)
    while play.step():
        pass
    return Replayed(tuple(play.ended), max(play.peaks.values()))


class _Running:
    """A job on a device: the phase it is in, when that ends (None: it waits to grow), and what it holds."""

    def __init__(self, job: ReplayJob, device: str, now_ns: int) -> None:
        self.job = job
        self.device = device
        self.pending_ns = now_ns - job.arrival_ns
        self.restarts = 0
        self.begin(now_ns)

    def begin(self, now_ns: int) -> None:
        self.phase = -1
        self.next_ns: int | None = now_ns
        self.held_since_ns = now_ns
        self.born_ns = now_ns
        self.memory_mib = 0

    def fail(self, now_ns: int) -> None:
        self.restarts += 1
        self.begin(now_ns + min(BACK_OFF_NS << (self.restarts - 1), MOST_BACK_OFF_NS))

    def enter(self, now_ns: int, memory_mib: int) -> None:
        self.phase += 1
        self.memory_mib = memory_mib
        duration_ns = self.job.life[self.phase].duration_ns
        assert duration_ns is not None, f"{self.job.tenant.name} never ends"
        self.next_ns = now_ns + duration_ns

    def hold(self, now_ns: int) -> None:
        if self.next_ns is not None:
            self.next_ns, self.held_since_ns = None, now_ns

    def release(self, now_ns: int) -> None:
        """Time at the gate is waiting, and no part of the age that a policy goes by."""
        if self.next_ns is None:
            self.pending_ns += now_ns - self.held_since_ns
            self.born_ns += now_ns - self.held_since_ns

    def resident(self, now_ns: int) -> PlacedTenant:
        until_ns = self.held_since_ns if self.next_ns is None else now_ns
        return PlacedTenant(self.job.tenant, max(0, until_ns - self.born_ns))


class _Play:
    def __init__(
        self, policy: PackingPolicy, jobs: Sequence[ReplayJob], devices: dict[str, int], pace: SchedulingPace
    ) -> None:
        self.policy = policy
        self.devices = devices
        self.pace = pace
        self.coming = sorted(jobs, key=lambda job: job.arrival_ns)[::-1]
        self.waiting: list[ReplayJob] = []
        self.running: list[_Running] = []
        self.ended: list[Ended] = []
        self.peaks = dict.fromkeys(devices, 0)
        self.now_ns = self.coming[-1].arrival_ns
        self.placed_ns = self.now_ns - _LEAST_WINDOW_NS
        self.samples: dict[str, list[int]] = {name: [] for name in devices}
        self.sampled_ns = self.now_ns

    def step(self) -> bool:
        """Do all that is due at one time, and go on to the next; false when nothing is left."""
        while self.coming and self.coming[-1].arrival_ns <= self.now_ns:
            self.waiting.append(self.coming.pop())
        self._advance()
        while self._place():
            self._advance()
        due = list(self._due())
        if due:
            self._sample(min(due))
            self.now_ns = min(due)
        elif stuck := [job.tenant.name for job in self.waiting] + [each.job.tenant.name for each in self.running]:
            raise ValueError(f"{', '.join(stuck)} wait for memory that never comes")
        return bool(due)

    def _due(self) -> Iterator[int]:
        if self.coming:
            yield self.coming[-1].arrival_ns
        yield from (each.next_ns for each in self.running if each.next_ns is not None)
        # Where all wait at the gate no look finds anything new.
        if self.waiting and self.pace.look_ns and any(each.next_ns is not None for each in self.running):
            yield self.now_ns + self.pace.look_ns
        if self.waiting and self.now_ns < self.placed_ns + self.pace.pause_ns:
            yield self.placed_ns + self.pace.pause_ns

    def _advance(self) -> None:
        """Let jobs into their next phases: first those that end and make room."""
        for each in [each for each in self.running if each.next_ns == self.now_ns]:
            if each.phase + 1 == len(each.job.life):
                self.running.remove(each)
                job = each.job
                end = Ended(job.tenant.name, job.arrival_ns, each.pending_ns, each.restarts, self.now_ns)
                self.ended.append(end)
        for each in self.running:
            if each.next_ns is None or each.next_ns == self.now_ns:
                self._grow(each)

    def _grow(self, job: _Running) -> None:
        wanted_mib = job.job.life[job.phase + 1].memory_mib
        growth_margin_mib = self.policy.growth_margin_mib
        # What it may have: what it has, all that is free, and nothing of what has to stay so.
        most_mib = max(job.memory_mib, job.memory_mib + self._free(job.device) - (growth_margin_mib or 0))
        if wanted_mib <= most_mib and (
            growth_margin_mib is None or self._can_go_on(job, wanted_mib, growth_margin_mib)
        ):
            job.release(self.now_ns)
            job.enter(self.now_ns, wanted_mib)
        elif growth_margin_mib is not None:
            job.hold(self.now_ns)
        elif less_mib := next((mib for mib in job.job.less_mib if mib <= min(wanted_mib, most_mib)), None):
            job.enter(self.now_ns, less_mib)
        elif wanted_mib > self.devices[job.device]:
            name, memory_mib = job.job.tenant.name, self.devices[job.device]
            raise ValueError(f"{name} takes {wanted_mib} MiB, and {job.device} has {memory_mib}")
        else:
            job.fail(self.now_ns)
        self.peaks[job.device] = max(self.peaks[job.device], self._in_use(job.device))

    def _can_go_on(self, job: _Running, wanted_mib: int, growth_margin_mib: int) -> bool:
        """Whether all with it still come to their peaks one after another when it has grown: the banker's algorithm."""
        held_mib = {each: each.memory_mib for each in self.running if each.device == job.device} | {job: wanted_mib}
        free_mib = self.devices[job.device] - growth_margin_mib - sum(held_mib.values())
        for need_mib, frees_mib in sorted((each.job.tenant.peak_mib - mib, mib) for each, mib in held_mib.items()):
            if need_mib > free_mib:
                return False
            free_mib += frees_mib
        return True

    def _place(self) -> bool:
        """Start the first job that has a place."""
        if self.now_ns < self.placed_ns + self.pace.pause_ns:
            return False
        jobs = {job.tenant.name: job for job in self.waiting}
        devices = [self._seen(name) for name in self.devices]
        refused: set[Tenant] = set()
        for tenant in self.policy.in_order([job.tenant for job in self.waiting]):
            nameless = msgspec.structs.replace(tenant, name="")
            if nameless in refused:  # who is like one that was refused is refused as well
                continue
            device, _ = choose_device(self.policy, tenant, devices)
            if device is not None:
                self.waiting.remove(jobs[tenant.name])
                self.running.append(_Running(jobs[tenant.name], device.name, self.now_ns))
                self.placed_ns = self.now_ns
                return True
            refused.add(nameless)
        return False

    def _seen(self, name: str) -> Device:
        """A device as a policy sees it: samples since the last placement, of 20 s at least, a second apart."""
        residents = tuple(each.resident(self.now_ns) for each in self.running if each.device == name)
        window_ns = max(_LEAST_WINDOW_NS, self.now_ns - self.placed_ns) if self.pace.look_ns else 0
        before = self.samples[name][-(window_ns // NS_PER_S) :] if window_ns else []
        return Device(name, self.devices[name], residents, (*before, self._in_use(name)))

    def _sample(self, until_ns: int) -> None:
        """Take the samples that are due before a time, up to which nothing changes."""
        count = -((self.sampled_ns - until_ns) // NS_PER_S)
        for name, samples in self.samples.items():
            samples.extend([self._in_use(name)] * count)
        self.sampled_ns += count * NS_PER_S

    def _free(self, name: str) -> int:
        return self.devices[name] - self._in_use(name)

    def _in_use(self, name: str) -> int:
        return sum(each.memory_mib for each in self.running if each.device == name)
