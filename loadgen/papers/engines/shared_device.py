"""Jobs that share one device with hard, elastic or no caps: Sluice's own scheduler in virtual time."""

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush

import msgspec

from sluice.batcher.fleet.shared_device import parts
from sluice.batcher.interface.config import (
    DeviceShare,
    Limits,
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
)
from sluice.batcher.interface.decisions import AnyDecision, CompleteRequest, DispatchBatch, RevokeBatch
from sluice.batcher.interface.events import AnyEvent, BatchCompleted, BatchRevoked, PartitionReady, RequestArrived
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import INFINITE_NS, NS_PER_S

Observer = Callable[[int, AnyEvent | None, list[AnyDecision]], object]


class ShareCap(enum.StrEnum):
    """Limit on a job's use of a device.

    `hard`: its share and no more. `elastic`: its share, and what others leave idle (KNIX, HiPS '21). `uncapped`: as
    much as every other running job, regardless of shares.
    """

    HARD = "hard"
    ELASTIC = "elastic"
    UNCAPPED = "uncapped"

    def of(self, share: float) -> DeviceShare:
        """The share in the scheduler's configuration."""
        guaranteed = 0.0 if self is ShareCap.UNCAPPED else share
        return DeviceShare("gpu", guaranteed, share if self is ShareCap.HARD else 1.0)


class BurstJob(msgspec.Struct, frozen=True):
    """A job at a share of the device: bursts of work, in seconds of the whole device, with pauses between them.

    `cap` overrides the cap of the run for this job.
    """

    name: str
    share: float
    work_s: float
    bursts: int = 1
    pause_s: float = 0.0
    cap: ShareCap | None = None


class SharingResult(msgspec.Struct, frozen=True):
    """The end of each job, and the device's utilisation until the last end."""

    end_s: Mapping[str, float]
    utilisation: float


def run_jobs(
    cap: ShareCap, jobs: Sequence[BurstJob], batch_s: float, observe: Observer = lambda *_: None
) -> SharingResult:
    """Run jobs that all start at 0, as unbatched requests that each take `batch_s` of the whole device.

    Batches that run at once have equal parts of the device up to their caps. `observe` is called with every step of
    the scheduler, as by the simulator.
    """
    replay = _Replay(cap, jobs, batch_s, observe)
    while replay.step():
        pass
    return SharingResult(replay.end_s, sum(job.work_s * job.bursts for job in jobs) / max(replay.end_s.values()))


def scheduler_spec(cap: ShareCap, jobs: Sequence[BurstJob]) -> SchedulerSpec:
    """The scheduler's specification: one partition and one model for each job."""
    return SchedulerSpec(
        tuple(ScheduledModel(job.name, 1, DeadlineSettings()) for job in jobs),
        tuple(PipelineConfig(job.name, (StageConfig(job.name, job.name),)) for job in jobs),
        tuple(PartitionConfig(job.name, job.name, device=_share_of(cap, job)) for job in jobs),
        Limits(queue_requests=1 << 20, hand_off_ns=0),
    )


def _share_of(cap: ShareCap, job: BurstJob) -> DeviceShare:
    return (job.cap or cap).of(job.share)


class _Replay:
    def __init__(self, cap: ShareCap, jobs: Sequence[BurstJob], batch_s: float, observe: Observer) -> None:
        assert sum(job.share for job in jobs) <= 1 + 1e-9, "the shares add up to more than the device"
        self.jobs = {job.name: job for job in jobs}
        self.end_s: dict[str, float] = {}
        self._scheduler = Scheduler(scheduler_spec(cap, jobs))
        self._observe = observe
        self._batch_ns = round(batch_s * NS_PER_S)
        self._caps = {job.name: _share_of(cap, job).cap for job in jobs}
        self._now_ns = 0
        self._bursts_left = {job.name: job.bursts for job in jobs}
        self._open = dict.fromkeys(self.jobs, 0)
        self._starts: list[tuple[int, str]] = [(0, job.name) for job in jobs]
        self._owners: list[str] = []
        # By partition: the remaining work of the running batch and the next one, and when the running one started.
        self._batches: dict[str, list[tuple[int, float]]] = {job.name: [] for job in jobs}
        self._began_ns = dict.fromkeys(self.jobs, 0)
        for job in jobs:
            table = LatencyTable(((1, round(self._batch_ns / job.share)),))
            self._handle(PartitionReady(job.name, {job.name: table}))

    def step(self) -> bool:
        """Advance to the next event; false when all jobs have ended."""
        next_ns = min(self._next(), default=None)
        if next_ns is None or len(self.end_s) == len(self.jobs):
            return False
        for name, part in self._parts().items():
            batch, left_ns = self._batches[name][0]
            self._batches[name][0] = batch, left_ns - part * (next_ns - self._now_ns)
        self._now_ns = next_ns
        for name in [name for name, batches in self._batches.items() if batches and batches[0][1] < 1]:
            batch, _ = self._batches[name].pop(0)
            began_ns, self._began_ns[name] = self._began_ns[name], next_ns
            self._handle(BatchCompleted(batch, began_ns, next_ns))
        while self._starts and self._starts[0][0] <= next_ns:
            self._begin(heappop(self._starts)[1])
        wake_ns = self._scheduler.next_wakeup_ns()
        if wake_ns is not None and wake_ns <= next_ns:
            self._apply(None, self._scheduler.handle_wakeup(next_ns))
        return True

    def _next(self) -> Iterator[int]:
        if self._starts:
            yield self._starts[0][0]
        if (wake_ns := self._scheduler.next_wakeup_ns()) is not None:
            yield wake_ns
        for name, part in self._parts().items():
            yield self._now_ns + math.ceil(self._batches[name][0][1] / part)

    def _parts(self) -> dict[str, float]:
        """Each running batch's current part of the device."""
        running = [name for name, batches in self._batches.items() if batches]
        return dict(zip(running, parts([self._caps[name] for name in running]), strict=True))

    def _begin(self, name: str) -> None:
        """Let a burst arrive: all its requests at once."""
        for _ in range(round(self.jobs[name].work_s * NS_PER_S / self._batch_ns)):
            self._open[name] += 1
            self._owners.append(name)
            self._handle(RequestArrived(len(self._owners) - 1, name, 1, INFINITE_NS))

    def _handle(self, event: AnyEvent) -> None:
        self._apply(event, self._scheduler.handle(event, self._now_ns))

    def _apply(self, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        self._observe(self._now_ns, event, decisions)
        for decision in decisions:
            if isinstance(decision, DispatchBatch):
                if not self._batches[decision.partition]:
                    self._began_ns[decision.partition] = self._now_ns
                self._batches[decision.partition].append((decision.batch, float(self._batch_ns)))
            elif isinstance(decision, RevokeBatch):
                self._revoke(decision.batch)
            else:
                assert isinstance(decision, CompleteRequest), f"nothing else can happen to a request: {decision}"
                self._completed(self._owners[decision.request])

    def _revoke(self, batch: int) -> None:
        """Withdraw a batch that waits behind a running one."""
        for batches in self._batches.values():
            if any(each == batch for each, _ in batches[1:]):
                del batches[1:]
                self._handle(BatchRevoked(batch))

    def _completed(self, name: str) -> None:
        self._open[name] -= 1
        if self._open[name]:
            return
        self._bursts_left[name] -= 1
        if self._bursts_left[name]:
            heappush(self._starts, (self._now_ns + round(self.jobs[name].pause_s * NS_PER_S), name))
        else:
            self.end_s[name] = self._now_ns / NS_PER_S
