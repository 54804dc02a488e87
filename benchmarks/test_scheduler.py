"""The scheduling core alone: events a second, and a million requests in virtual time."""

import gc
import random
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.conftest import Report
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, ScheduledModel, SchedulerSpec, StageConfig
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch
from sluice.batcher.interface.events import AnyEvent, PartitionReady, RequestArrived
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.services import WithoutConfidences

TABLE = LatencyTable.from_ms({1: 0.67, 2: 0.8, 4: 1.03, 8: 1.66, 16: 2.46, 32: 3.81, 64: 6.01})
SPEC = SchedulerSpec(
    (ScheduledModel("wide:1", 64, DeadlineSettings()),),
    (PipelineConfig("wide:1", (StageConfig("wide", "wide:1"),)),),
    (PartitionConfig("cpu0", "cpu1"),),
)
RATE = 8000.0
SLO_NS = 100_000_000


class TableService(WithoutConfidences):
    """Batches take what the table says."""

    def batch_ns(self, batch: DispatchBatch) -> int:
        return TABLE.latency_ns(batch.rows)


def arrivals(count: int) -> Iterator[tuple[int, RequestArrived]]:
    """Poisson arrivals, seeded."""
    gaps = random.Random(1)
    now_ns = 1_000
    for request in range(count):
        now_ns += int(gaps.expovariate(RATE) * 1e9)
        yield now_ns, RequestArrived(request, "wide:1", 1, now_ns + SLO_NS)


def simulate(requests: int, steps: list[tuple[int, AnyEvent | None]] | None = None) -> int:
    """Run requests through a new scheduler in virtual time; returns the number of completed ones."""
    completed = 0

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        nonlocal completed
        if steps is not None:
            steps.append((now_ns, event))
        for decision in decisions:
            if not isinstance(decision, DispatchBatch):
                completed += 1

    simulator = Simulator(Scheduler(SPEC), TableService(), observe)
    simulator.at(0, PartitionReady("cpu0", {"wide:1": TABLE}))
    simulator.run(arrivals(requests))
    return completed


def test_events_per_second(benchmark: Any, report: Report) -> None:
    """Time of the recorded events of a simulation in `handle`, wake-ups included."""
    requests = 100_000
    steps: list[tuple[int, AnyEvent | None]] = []
    simulate(requests, steps)
    events = sum(event is not None for _, event in steps)

    def replay(scheduler: Scheduler) -> None:
        for now_ns, event in steps:
            if event is None:
                scheduler.handle_wakeup(now_ns)
            else:
                scheduler.handle(event, now_ns)

    def fresh() -> tuple[tuple[Scheduler], dict[str, object]]:
        gc.collect()
        gc.freeze()  # as the gateway does after its start
        return (Scheduler(SPEC),), {}

    benchmark.pedantic(replay, setup=fresh, rounds=7)
    gc.unfreeze()
    best = benchmark.stats.stats.min
    report("scheduler core, events/s", f"{events / best:,.0f}", ">= 150,000")
    report("scheduler core, us a stage-request", f"{best / requests * 1e6:.2f}", "")


def test_a_million_requests(benchmark: Any, report: Report) -> None:
    """A simulated run of a million requests."""
    began = time.perf_counter()
    completed = benchmark.pedantic(simulate, args=(1_000_000,), rounds=1)
    report("a million requests in virtual time, s", f"{time.perf_counter() - began:.1f}", "<= 15")
    assert completed == 1_000_000
