"""The asyncio runtime under virtual time and the simulator decide alike, step by step."""

import asyncio
import random
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby
from operator import itemgetter
from typing import TypeVar

import msgspec
import pytest

from batcher.config import (
    Limits,
    ModelConfig,
    PartitionConfig,
    PipelineConfig,
    PolicyConfig,
    PolicyName,
    SchedulerSpec,
    StageConfig,
    Verdict,
    WhenConfig,
)
from batcher.decisions import AnyDecision, CombineOutputs, CompleteRequest, DispatchBatch
from batcher.events import AnyEvent, PartitionReady, RequestArrived, RequestCancelled
from batcher.scheduler import Scheduler
from batcher.simulator import Simulator, Verdicts
from gateway.answer import Answer
from gateway.executors.timed import TimedExecutor
from gateway.metrics import Metrics
from gateway.runtime import Runtime
from models.pipeline import Confidence, Late
from models.profile import LatencyTable
from models.units import NS_PER_MS, NS_PER_US
from tests.support.virtual_time import VirtualAlarm, VirtualLoop, run_virtual

T = TypeVar("T")

PARTITIONS = ("a", "b")
TABLES = {
    "small": LatencyTable.from_ms({1: 0.4, 2: 0.5, 4: 0.7, 8: 1.1}),
    "large": LatencyTable.from_ms({1: 2.0, 2: 2.2, 4: 2.9, 8: 4.0}),
    "twin": LatencyTable.from_ms({1: 0.6, 2: 0.7, 4: 0.9, 8: 1.3}),
}
CERTAINTY = Verdict("probs", Confidence.MAX)

Step = tuple[int, AnyEvent | None, list[AnyDecision]]
Arrival = tuple[int, RequestArrived]


class Machine:
    """Batches take what the tables say, and a tenth more or less; every third row is uncertain.

    The odd nanoseconds keep any two from ending at one instant, for which a loop's timers have no order.
    """

    def batch_ns(self, batch: DispatchBatch) -> int:
        nominal = TABLES[batch.model].latency_ns(batch.rows)
        return nominal + nominal * (batch.batch * 7919 % 21 - 10) // 100 + batch.batch

    def batch_verdicts(self, batch: DispatchBatch) -> Verdicts:
        if batch.model != "small":
            return ()
        numbers = [row + 5 * member.request for member in batch.members for row in range(member.rows)]
        return (tuple(0.3 if number % 3 == 0 else 0.9 for number in numbers),)

    def combined_verdicts(self, combination: CombineOutputs) -> Verdicts:
        return ()


def scheduler_spec(policy: PolicyName, late: Late) -> SchedulerSpec:
    settings = PolicyConfig(policy, (4, 8), 2 * NS_PER_MS) if policy is PolicyName.TIMEOUT else PolicyConfig(policy)
    cascade = PipelineConfig(
        "cascade:1",
        (StageConfig("first", "small"), StageConfig("second", "large", (), WhenConfig(0, 0, 0.5))),
        late,
    )
    ensemble = PipelineConfig(
        "ensemble:1",
        (StageConfig("left", "small"), StageConfig("right", "twin"), StageConfig("joined", None, (0, 1))),
        late,
    )
    return SchedulerSpec(
        tuple(ModelConfig(key, 8, (CERTAINTY,) if key == "small" else (), settings) for key in TABLES),
        (cascade, ensemble, PipelineConfig("twin:1", (StageConfig("twin", "twin"),), late)),
        tuple(PartitionConfig(name, "cpu1") for name in PARTITIONS),
        Limits(queue_requests=64),
    )


def traffic(seed: int) -> tuple[list[Arrival], list[tuple[int, int]]]:
    """Arrivals, many of them at the same instants, and cancellations as (time, request)."""
    source = random.Random(seed)
    gaps = [NS_PER_MS, *(0 if source.random() < 0.3 else source.randrange(1, 900) * NS_PER_US for _ in range(399))]
    arrivals = []
    cancellations = []
    for request, time_ns in enumerate(accumulate(gaps), start=1):
        pipeline = source.choice(["cascade:1", "ensemble:1", "twin:1"])
        deadline_ns = time_ns + source.choice([3, 8, 40]) * NS_PER_MS
        arrivals.append((time_ns, RequestArrived(request, pipeline, source.randrange(1, 5), deadline_ns)))
        if source.random() < 0.15:
            cancellations.append((time_ns + source.randrange(0, 6000) * NS_PER_US, request))
    return arrivals, cancellations


def simulate(spec: SchedulerSpec, arrivals: list[Arrival], cancellations: list[tuple[int, int]]) -> list[Step]:
    steps: list[Step] = []
    scheduler = Scheduler(spec)

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        scheduler.check()
        steps.append((now_ns, event, decisions))

    simulator = Simulator(scheduler, Machine(), observe)
    for partition in PARTITIONS:
        simulator.at(0, PartitionReady(partition, TABLES))
    for time_ns, request in cancellations:
        simulator.at(time_ns, RequestCancelled(request))
    simulator.run(arrivals)
    return steps


def by_time(timed: Iterable[tuple[int, T]]) -> Iterator[tuple[int, list[T]]]:
    """What happens at each instant, in the order given: a loop's timers of one instant have no order."""
    for time_ns, together in groupby(sorted(timed, key=itemgetter(0)), key=itemgetter(0)):
        yield time_ns, [value for _, value in together]


class Recorder:
    def __init__(self) -> None:
        self.steps: list[Step] = []

    def record(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        self.steps.append((now_ns, event, decisions))


def run_live(spec: SchedulerSpec, arrivals: list[Arrival], cancellations: list[tuple[int, int]]) -> list[Step]:
    recorder = Recorder()

    async def serve(loop: VirtualLoop) -> None:
        metrics = Metrics(
            {pipeline.name: [stage.name for stage in pipeline.stages] for pipeline in spec.pipelines},
            PARTITIONS,
            queue_depths=dict,
            arena_bytes=int,
        )
        ready = [PartitionReady(partition, TABLES) for partition in PARTITIONS]
        executor = TimedExecutor(Machine(), loop.clock, ready)
        runtime = Runtime(
            Scheduler(spec),
            executor,
            clock=loop.clock,
            timer=VirtualAlarm(loop),
            metrics=metrics,
            observe=recorder.record,
        )
        runtime.start()
        answers: list[asyncio.Future[Answer]] = []

        def arrive(together: list[RequestArrived]) -> None:
            for event in together:
                submission = runtime.submit(event.pipeline, {}, event.rows, "", event.deadline_ns, event.memory_bytes)
                assert submission.request == event.request
                answers.append(submission.future)

        def cancel(together: list[int]) -> None:
            # One that is settled already is reported all the same, as in the simulator.
            for request in together:
                runtime.post(RequestCancelled(request))

        for time_ns, requests in by_time(cancellations):
            loop.at(time_ns, cancel, requests)
        for time_ns, events in by_time(arrivals):
            loop.at(time_ns, arrive, events)
        await asyncio.sleep(2.0)
        assert len(answers) == len(arrivals)
        assert all(answer.done() for answer in answers)

    run_virtual(serve)
    return recorder.steps


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("late", list(Late))
@pytest.mark.parametrize("policy", list(PolicyName))
def test_runtime_and_simulator_decide_alike(policy: PolicyName, late: Late, seed: int) -> None:
    spec = scheduler_spec(policy, late)
    arrivals, cancellations = traffic(seed)
    simulated = simulate(spec, arrivals, cancellations)
    live = run_live(spec, arrivals, cancellations)
    for number, (expected, got) in enumerate(zip(simulated, live, strict=False)):
        assert msgspec.to_builtins(got) == msgspec.to_builtins(expected), f"seed {seed}, step {number}"
    assert len(live) == len(simulated)
    kinds = {type(decision) for _, _, decisions in live for decision in decisions}
    assert {DispatchBatch, CombineOutputs, CompleteRequest} <= kinds
