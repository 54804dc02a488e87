"""Packing policies in virtual time: jobs whose memory changes over their life, on shared devices.

The result is how long jobs wait, how often they run out of memory, and when they end.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil

import msgspec

from sluice.models.units import NS_PER_S
from sluice.mps.packing.policy import PackingPolicy, choose_device
from sluice.mps.packing.tenant import Device, MemoryPhase, PlacedTenant, Tenant

BACK_OFF_NS = 10 * NS_PER_S
"""Delay before the first restart of a failed job; it doubles with each further restart, as in Kubernetes."""
MAX_BACK_OFF_NS = 300 * NS_PER_S
_MIN_WINDOW_NS = 20 * NS_PER_S


class PackingJob(msgspec.Struct, frozen=True):
    """A job: the tenant that the policy sees, the arrival, and the real phases, all of which end.

    `less_mib` are smaller allocations, largest first, that the job accepts where a phase's memory is not free.
    """

    tenant: Tenant
    arrival_ns: int
    life: tuple[MemoryPhase, ...]
    less_mib: tuple[int, ...] = ()


class SchedulerTiming(msgspec.Struct, frozen=True):
    """Timing of the scheduler.

    Waiting jobs are tried at every change, and every `look_ns` besides (0: never); each placement is followed by a
    pause of `pause_ns`.
    """

    look_ns: int = 0
    pause_ns: int = 0


class FinishedJob(msgspec.Struct, frozen=True):
    """A job's outcome: time spent waiting to start and at the memory gate, restarts, and end."""

    name: str
    arrival_ns: int
    pending_ns: int
    restarts: int
    end_ns: int


class ReplayResult(msgspec.Struct, frozen=True):
    """All jobs in the order of their ends, and the peak memory in use on a device.

    `memory_mib` is the mean of the memory in use on all devices together, from the first arrival to the last end.
    `working_s` says for how long as many jobs were in their last phases together, by their number, and `occupied_s` for
    how long any memory was in use.
    """

    jobs: tuple[FinishedJob, ...]
    peak_mib: int
    memory_mib: float
    working_s: dict[int, float]
    occupied_s: float

    @property
    def makespan_s(self) -> float:
        """Time from the first arrival to the last end."""
        return (max(job.end_ns for job in self.jobs) - min(job.arrival_ns for job in self.jobs)) / NS_PER_S

    @property
    def pending_s(self) -> float:
        """Mean wait of a job."""
        return sum(job.pending_ns for job in self.jobs) / len(self.jobs) / NS_PER_S

    @property
    def p99_s(self) -> float:
        """99th percentile, by nearest rank, of the time from arrival to end."""
        times = sorted(job.end_ns - job.arrival_ns for job in self.jobs)
        return times[ceil(0.99 * len(times)) - 1] / NS_PER_S

    @property
    def restarts(self) -> int:
        """Restarts of all jobs."""
        return sum(job.restarts for job in self.jobs)


def replay(
    policy: PackingPolicy, jobs: Sequence[PackingJob], devices: dict[str, int], timing: SchedulerTiming
) -> ReplayResult:
    """Run jobs on devices, given with their memory in MiB; raises ValueError for jobs that can never end there."""
    replay = _Replay(policy, jobs, devices, timing)
    while replay.step():
        pass
    began_ns = min(job.arrival_ns for job in jobs)
    return ReplayResult(
        tuple(replay.finished),
        max(replay.peaks.values()),
        replay.memory_mib_ns / (replay.now_ns - began_ns),
        {count: ns / NS_PER_S for count, ns in sorted(replay.working_ns.items())},
        replay.occupied_ns / NS_PER_S,
    )


class _Running:
    """A job on a device: its current phase, when that ends (None: it waits to grow), and the memory it holds."""

    def __init__(self, job: PackingJob, device: str, now_ns: int) -> None:
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
        self.begin(now_ns + min(BACK_OFF_NS << (self.restarts - 1), MAX_BACK_OFF_NS))

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
        """Let the job go on; its time at the gate counts as waiting, and not to the age that policies use."""
        if self.next_ns is None:
            self.pending_ns += now_ns - self.held_since_ns
            self.born_ns += now_ns - self.held_since_ns

    def resident(self, now_ns: int) -> PlacedTenant:
        until_ns = self.held_since_ns if self.next_ns is None else now_ns
        return PlacedTenant(self.job.tenant, max(0, until_ns - self.born_ns))


class _Replay:
    def __init__(
        self, policy: PackingPolicy, jobs: Sequence[PackingJob], devices: dict[str, int], timing: SchedulerTiming
    ) -> None:
        self.policy = policy
        self.devices = devices
        self.timing = timing
        self.arrivals = sorted(jobs, key=lambda job: job.arrival_ns)[::-1]
        self.waiting: list[PackingJob] = []
        self.running: list[_Running] = []
        self.finished: list[FinishedJob] = []
        self.peaks = dict.fromkeys(devices, 0)
        self.now_ns = self.arrivals[-1].arrival_ns
        self.placed_ns = self.now_ns - _MIN_WINDOW_NS
        self.samples: dict[str, list[int]] = {name: [] for name in devices}
        self.sampled_ns = self.now_ns
        self.memory_mib_ns = 0
        self.working_ns = Counter[int]()
        self.occupied_ns = 0

    def step(self) -> bool:
        """Process everything due now and advance to the next event; false when nothing is left."""
        while self.arrivals and self.arrivals[-1].arrival_ns <= self.now_ns:
            self.waiting.append(self.arrivals.pop())
        self._advance()
        while self._place():
            self._advance()
        due = list(self._due())
        if due:
            self._sample(min(due))
            self._account(min(due) - self.now_ns)
            self.now_ns = min(due)
        elif stuck := [job.tenant.name for job in self.waiting] + [each.job.tenant.name for each in self.running]:
            raise ValueError(f"{', '.join(stuck)}: waiting for memory that never becomes free")
        return bool(due)

    def _due(self) -> Iterator[int]:
        if self.arrivals:
            yield self.arrivals[-1].arrival_ns
        yield from (each.next_ns for each in self.running if each.next_ns is not None)
        # While every running job waits at the gate, another look finds nothing new.
        if self.waiting and self.timing.look_ns and any(each.next_ns is not None for each in self.running):
            yield self.now_ns + self.timing.look_ns
        if self.waiting and self.now_ns < self.placed_ns + self.timing.pause_ns:
            yield self.placed_ns + self.timing.pause_ns

    def _advance(self) -> None:
        """Move jobs to their next phases; jobs that end free their memory first."""
        for each in [each for each in self.running if each.next_ns == self.now_ns]:
            if each.phase + 1 == len(each.job.life):
                self.running.remove(each)
                job = each.job
                end = FinishedJob(job.tenant.name, job.arrival_ns, each.pending_ns, each.restarts, self.now_ns)
                self.finished.append(end)
        for each in self.running:
            if each.next_ns is None or each.next_ns == self.now_ns:
                self._grow(each)

    def _grow(self, job: _Running) -> None:
        wanted_mib = job.job.life[job.phase + 1].memory_mib
        margin_mib = self.policy.growth_margin_mib
        # The job may hold its own memory and all free memory beyond the growth margin.
        most_mib = max(job.memory_mib, job.memory_mib + self._free(job.device) - (margin_mib or 0))
        if wanted_mib <= most_mib and (margin_mib is None or self._can_go_on(job, wanted_mib, margin_mib)):
            job.release(self.now_ns)
            job.enter(self.now_ns, wanted_mib)
        elif margin_mib is not None:
            job.hold(self.now_ns)
        elif less_mib := next((mib for mib in job.job.less_mib if mib <= min(wanted_mib, most_mib)), None):
            job.enter(self.now_ns, less_mib)
        elif wanted_mib > self.devices[job.device]:
            name, memory_mib = job.job.tenant.name, self.devices[job.device]
            raise ValueError(f"{name}: needs {wanted_mib} MiB; {job.device} has {memory_mib}")
        else:
            job.fail(self.now_ns)
        self.peaks[job.device] = max(self.peaks[job.device], self._in_use(job.device))

    def _can_go_on(self, job: _Running, wanted_mib: int, margin_mib: int) -> bool:
        """Apply the banker's algorithm: after this growth all jobs can still reach their peaks one after another."""
        held_mib = {each: each.memory_mib for each in self.running if each.device == job.device} | {job: wanted_mib}
        free_mib = self.devices[job.device] - margin_mib - sum(held_mib.values())
        for need_mib, frees_mib in sorted((each.job.tenant.peak_mib - mib, mib) for each, mib in held_mib.items()):
            if need_mib > free_mib:
                return False
            free_mib += frees_mib
        return True

    def _place(self) -> bool:
        """Start the first waiting job that fits; false when none does."""
        if self.now_ns < self.placed_ns + self.timing.pause_ns:
            return False
        jobs = {job.tenant.name: job for job in self.waiting}
        devices = [self._view(name) for name in self.devices]
        refused: set[Tenant] = set()
        for tenant in self.policy.in_order([job.tenant for job in self.waiting]):
            nameless = msgspec.structs.replace(tenant, name="")
            if nameless in refused:  # an identical tenant has just been refused
                continue
            device, _ = choose_device(self.policy, tenant, devices)
            if device is not None:
                self.waiting.remove(jobs[tenant.name])
                self.running.append(_Running(jobs[tenant.name], device.name, self.now_ns))
                self.placed_ns = self.now_ns
                return True
            refused.add(nameless)
        return False

    def _view(self, name: str) -> Device:
        """A device as policies see it, with one sample a second since the last placement, for 20 s at least."""
        residents = tuple(each.resident(self.now_ns) for each in self.running if each.device == name)
        window_ns = max(_MIN_WINDOW_NS, self.now_ns - self.placed_ns) if self.timing.look_ns else 0
        before = self.samples[name][-(window_ns // NS_PER_S) :] if window_ns else []
        return Device(name, self.devices[name], residents, (*before, self._in_use(name)))

    def _sample(self, until_ns: int) -> None:
        """Take the samples due before `until_ns`; nothing changes until then."""
        count = -((self.sampled_ns - until_ns) // NS_PER_S)
        for name, samples in self.samples.items():
            samples.extend([self._in_use(name)] * count)
        self.sampled_ns += count * NS_PER_S

    def _account(self, passing_ns: int) -> None:
        """Add the memory and the work of a time in which nothing changes."""
        memory_mib = sum(each.memory_mib for each in self.running)
        self.memory_mib_ns += passing_ns * memory_mib
        self.occupied_ns += passing_ns if memory_mib else 0
        self.working_ns[sum(each.phase + 1 == len(each.job.life) for each in self.running)] += passing_ns

    def _free(self, name: str) -> int:
        return self.devices[name] - self._in_use(name)

    def _in_use(self, name: str) -> int:
        return sum(each.memory_mib for each in self.running if each.device == name)
