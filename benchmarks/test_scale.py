"""The scheduler with many pipelines, partitions and requests: time of one decision, and memory."""

import gc
import statistics
import time
import tracemalloc
from collections import deque
from typing import Any

from benchmarks.conftest import Report
from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.interface.config import (
    Limits,
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
)
from sluice.batcher.interface.decisions import AnyDecision, BuildPlan, DispatchBatch
from sluice.batcher.interface.events import BatchCompleted, PartitionReady, PlanBuilt, RequestArrived
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_S

STAGES = 5
QUEUED = 10_000
KINDS = {"whole": (1.0, 4.0), "half": (1.7, 2.0), "quarter": (3.0, 1.0), "eighth": (5.5, 0.5)}
"""By kind of partition: slowdown of batches, and price of a second."""
DECISIONS = 3_000


class Load:
    """A scheduler whose queue stays full: as many requests arrive as complete."""

    def __init__(self, pipelines: int, partitions: int) -> None:
        kinds = list(KINDS)
        self.keys = [f"m{pipeline}-{stage}:1" for pipeline in range(pipelines) for stage in range(STAGES)]
        spec = SchedulerSpec(
            tuple(ScheduledModel(key, 8, DeadlineSettings()) for key in self.keys),
            tuple(_chain(pipeline) for pipeline in range(pipelines)),
            tuple(
                PartitionConfig(f"p{number}", kinds[number % 4], KINDS[kinds[number % 4]][1])
                for number in range(partitions)
            ),
            Limits(queue_requests=2 * QUEUED, memory_bytes=1 << 40),
        )
        self.scheduler = Scheduler(spec, LivePlanner())
        self.pipelines = [pipeline.name for pipeline in spec.pipelines]
        self.running: deque[DispatchBatch] = deque()
        self.decision_ns: list[int] = []
        self.now_ns = NS_PER_S
        self.requests = 0
        for partition in spec.partitions:
            slower = KINDS[partition.kind][0]
            table = LatencyTable.from_ms({1: slower, 2: 1.2 * slower, 4: 1.6 * slower, 8: 2.4 * slower})
            self._apply(self.scheduler.handle(PartitionReady(partition.name, dict.fromkeys(self.keys, table)), 0))
        self._arrive(QUEUED)
        self._wake()

    def run(self, decisions: int) -> None:
        """Complete the oldest batch and let the scheduler decide, repeatedly."""
        self.decision_ns.clear()
        while len(self.decision_ns) < decisions:
            batch = self.running.popleft()
            self.now_ns += NS_PER_MS // 8
            end = BatchCompleted(batch.batch, self.now_ns - NS_PER_MS, self.now_ns)
            self._apply(self.scheduler.handle(end, self.now_ns))
            self._arrive(QUEUED - sum(pipeline.outstanding for pipeline in self.scheduler.pipelines.values()))
            self._wake()

    def _arrive(self, count: int) -> None:
        for _ in range(count):
            self.requests += 1
            name = self.pipelines[self.requests % len(self.pipelines)]
            event = RequestArrived(self.requests, name, 1, self.now_ns + 600 * NS_PER_S)
            self._apply(self.scheduler.handle(event, self.now_ns))

    def _wake(self) -> None:
        due_ns = self.scheduler.next_wakeup_ns()
        while due_ns is not None and due_ns <= self.now_ns:
            began = time.perf_counter_ns()
            decisions = self.scheduler.handle_wakeup(self.now_ns)
            took = time.perf_counter_ns() - began
            batches = sum(isinstance(decision, DispatchBatch) for decision in decisions)
            if batches:
                self.decision_ns += [took // batches] * batches
            self._apply(decisions)
            due_ns = self.scheduler.next_wakeup_ns()

    def _apply(self, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, DispatchBatch):
                self.running.append(decision)
            elif isinstance(decision, BuildPlan):
                built = PlanBuilt(decision.build, build_plan(self.scheduler.spec, decision.observed))
                self.scheduler.handle(built, self.now_ns)


def _crowded(models: int, partitions: int) -> tuple[Scheduler, list[PartitionReady]]:
    """A scheduler of single models, and the events of its partitions, which all hold all models."""
    keys = [f"m{number}:1" for number in range(models)]
    kinds = list(KINDS)
    spec = SchedulerSpec(
        tuple(ScheduledModel(key, 64, DeadlineSettings()) for key in keys),
        tuple(PipelineConfig(key, (StageConfig("only", key),)) for key in keys),
        tuple(PartitionConfig(f"p{number}", kinds[number % 4]) for number in range(partitions)),
    )
    cells = {
        key: [(1 << power, (number % 7 + 1 << power) * NS_PER_MS) for power in range(7)]
        for number, key in enumerate(keys)
    }
    ready = [
        PartitionReady(each.name, {key: LatencyTable(tuple(cells[key])) for key in keys}) for each in spec.partitions
    ]
    return Scheduler(spec, LivePlanner()), ready


def _chain(pipeline: int) -> PipelineConfig:
    stages = (StageConfig(f"s{n}", f"m{pipeline}-{n}:1", (n - 1,) if n else ()) for n in range(STAGES))
    return PipelineConfig(f"p{pipeline}:1", tuple(stages), slo_ns=100 * NS_PER_MS)


def test_decisions_at_scale(benchmark: Any, report: Report) -> None:
    """One re-planned decision in a large and in a small system, in turns."""
    tracemalloc.start()
    large = Load(100, 64)
    gc.collect()
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    small = Load(10, 8)
    gc.collect()
    gc.freeze()
    for load in (large, small):
        load.run(DECISIONS)
    times: dict[str, list[float]] = {"large": [], "small": []}
    for _ in range(5):
        for name, load in (("large", large), ("small", small)):
            load.run(DECISIONS)
            times[name].append(statistics.median(load.decision_ns) / 1000)
    benchmark.pedantic(large.run, args=(DECISIONS,), rounds=1)
    gc.unfreeze()
    at_large, at_small = (statistics.median(times[name]) for name in ("large", "small"))
    report("a decision with 100 x 5 stages, 64 partitions, 10 000 queued, us", f"{at_large:.1f}", "<= 100")
    report("against 10 x 5 stages and 8 partitions", f"{at_large / at_small:.2f}x ({at_small:.1f} us)", "<= 2x")
    report("memory of fronts and queues in that case, MB", f"{memory / 1e6:.1f}", "<= 100")
    check_invariants(large.scheduler)


def test_partitions_that_come_up_at_scale(benchmark: Any, report: Report) -> None:
    """A thousand partitions come up one after the other, each with the tables of a thousand models."""
    scheduler, events = _crowded(1000, 1000)
    took_ms: list[float] = []

    def come_up() -> None:
        for event in events:
            began = time.perf_counter_ns()
            scheduler.handle(event, NS_PER_S)
            took_ms.append((time.perf_counter_ns() - began) / NS_PER_MS)

    benchmark.pedantic(come_up, rounds=1)
    report("1 000 partitions with 1 000 models come up, s", f"{sum(took_ms) / 1000:.2f}", "<= 2")
    report("one of them, ms", f"{statistics.median(took_ms):.2f}", "<= 2")
    check_invariants(scheduler)
