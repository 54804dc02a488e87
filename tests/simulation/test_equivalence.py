"""The asyncio runtime in virtual time and the simulator make the same decisions, step by step."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from itertools import accumulate, groupby
from operator import itemgetter
from typing import NamedTuple, ParamSpec, TypeVar

import msgspec
import pytest

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import (
    ConfidenceSpec,
    Limits,
    PartitionConfig,
    PipelineConfig,
    PolicyConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
    WhenConfig,
)
from sluice.batcher.interface.decisions import (
    AnyDecision,
    BuildPlan,
    CombineOutputs,
    CompleteRequest,
    DispatchBatch,
    LoadModel,
    UnloadModel,
)
from sluice.batcher.interface.events import AnyEvent, Confidences, PartitionReady, RequestArrived, RequestCancelled
from sluice.batcher.interface.plan_data import Observed, Plan
from sluice.batcher.interface.planner_protocol import Planner
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.policies.no_batching import NoBatchingSettings
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.protocol.answer import Answer
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.runtime.driver import Runtime
from sluice.models.pipelines.pipeline import Confidence, Late
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_US
from tests.support.gateway.inventory import PlayedInventory
from tests.support.gateway.timed_executor import TimedExecutor
from tests.support.scheduling.virtual_time import VirtualAlarm, VirtualLoop, run_virtual

T = TypeVar("T")
P = ParamSpec("P")

PARTITIONS = ("a", "b")
TABLES = {
    "small": LatencyTable.from_ms({1: 0.4, 2: 0.5, 4: 0.7, 8: 1.1}),
    "large": LatencyTable.from_ms({1: 2.0, 2: 2.2, 4: 2.9, 8: 4.0}),
    "twin": LatencyTable.from_ms({1: 0.6, 2: 0.7, 4: 0.9, 8: 1.3}),
}
SLOW = {
    key: table if key == "twin" else LatencyTable(tuple((rows, 2 * latency_ns) for rows, latency_ns in table.cells))
    for key, table in TABLES.items()
}
"""Half as fast, except for the model that comes and goes."""
CERTAINTY = ConfidenceSpec("probs", Confidence.MAX)

Step = tuple[int, AnyEvent | None, list[AnyDecision]]
Arrival = tuple[int, RequestArrived]


class Machine:
    """Batches take the time of the tables, plus or minus a tenth; every third row has a low confidence.

    Odd nanoseconds keep two batches from ending at the same instant, for which a loop's timers have no order.
    """

    def __init__(self, tables: Mapping[str, Mapping[str, LatencyTable]]) -> None:
        self._tables = tables

    def batch_ns(self, batch: DispatchBatch) -> int:
        nominal = self._tables[batch.partition][batch.model].latency_ns(batch.rows)
        return nominal + nominal * (batch.batch * 7919 % 21 - 10) // 100 + batch.batch

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        if batch.model != "small":
            return ()
        numbers = [row + 5 * member.request for member in batch.members for row in range(member.rows)]
        return (tuple(0.3 if number % 3 == 0 else 0.9 for number in numbers),)

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()


class Planning(NamedTuple):
    """Builds the plans of a run."""

    planner: Planner
    build: Callable[[SchedulerSpec, Observed], Plan]


class Run(NamedTuple):
    """The spec of a run, and the latency tables of its partitions."""

    spec: SchedulerSpec
    tables: dict[str, dict[str, LatencyTable]]
    arrivals: list[Arrival]
    cancellations: list[tuple[int, int]]
    planning: Planning | None = None


class Inline(Executor):
    """An executor that runs functions at once: in virtual time a thread would take no time, or for ever."""

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(call(*args, **kwargs))
        return future


def scheduler_spec(policy: PolicyConfig, late: Late) -> SchedulerSpec:
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
        tuple(ScheduledModel(key, 8, policy, (CERTAINTY,) if key == "small" else ()) for key in TABLES),
        (cascade, ensemble, PipelineConfig("twin:1", (StageConfig("twin", "twin"),), late)),
        tuple(PartitionConfig(name, "cpu1") for name in PARTITIONS),
        Limits(queue_requests=64),
    )


def planned_spec(late: Late) -> SchedulerSpec:
    """A fast and a slow partition; either model may run the second stage of the cascade."""
    spec = scheduler_spec(DeadlineSettings(), late)
    cascade, ensemble, twin = spec.pipelines
    first, second = cascade.stages
    second = msgspec.structs.replace(second, variants=("large", "twin"))
    return msgspec.structs.replace(
        spec,
        pipelines=(
            msgspec.structs.replace(cascade, stages=(first, second), slo_ns=8 * NS_PER_MS, weight=2.0),
            ensemble,
            msgspec.structs.replace(twin, slo_ns=5 * NS_PER_MS),
        ),
        partitions=(PartitionConfig("a", "fast", price=4.0), PartitionConfig("b", "slow")),
    )


def plan_with_residency(spec: SchedulerSpec, observed: Observed) -> Plan:
    """Until rates are known, the only plan is that partition b unloads the model `twin`, which it loads again later."""
    if not observed.rates:
        return Plan((), {"b": ("large", "small")})
    return msgspec.structs.replace(build_plan(spec, observed), residency={"b": tuple(sorted(TABLES))})


def traffic(seed: int, count: int = 400, longest_gap_us: int = 900) -> tuple[list[Arrival], list[tuple[int, int]]]:
    """Arrivals, many at the same instants, and cancellations as (time, request)."""
    source = random.Random(seed)
    gaps = [
        NS_PER_MS,
        *(0 if source.random() < 0.3 else source.randrange(1, longest_gap_us) * NS_PER_US for _ in range(count - 1)),
    ]
    arrivals = []
    cancellations = []
    for request, time_ns in enumerate(accumulate(gaps), start=1):
        pipeline = source.choice(["cascade:1", "ensemble:1", "twin:1"])
        deadline_ns = time_ns + source.choice([3, 8, 40]) * NS_PER_MS
        rows = source.randrange(1, 5)
        arrivals.append((time_ns, RequestArrived(request, pipeline, rows, deadline_ns, received_ns=time_ns)))
        if source.random() < 0.15:
            cancellations.append((time_ns + source.randrange(0, 6000) * NS_PER_US, request))
    return arrivals, cancellations


def simulate(run: Run) -> list[Step]:
    steps: list[Step] = []
    scheduler = Scheduler(run.spec, run.planning and run.planning.planner)

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        check_invariants(scheduler)
        steps.append((now_ns, event, decisions))

    build = run.planning and run.planning.build
    simulator = Simulator(scheduler, Machine(run.tables), observe, build_plan=build, tables=run.tables)
    for partition in PARTITIONS:
        simulator.at(0, PartitionReady(partition, run.tables[partition]))
    for time_ns, request in run.cancellations:
        simulator.at(time_ns, RequestCancelled(request))
    simulator.run(run.arrivals)
    return steps


def by_time(timed: Iterable[tuple[int, T]]) -> Iterator[tuple[int, list[T]]]:
    """Schedules events of one instant in the given order, since a loop's timers of one instant have none."""
    for time_ns, together in groupby(sorted(timed, key=itemgetter(0)), key=itemgetter(0)):
        yield time_ns, [value for _, value in together]


class Recorder:
    def __init__(self) -> None:
        self.steps: list[Step] = []

    def record(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        self.steps.append((now_ns, event, decisions))


def run_live(run: Run) -> list[Step]:
    recorder = Recorder()
    spec = run.spec

    async def serve(loop: VirtualLoop) -> None:
        metrics = ServerMetrics(
            {pipeline.name: [stage.name for stage in pipeline.stages] for pipeline in spec.pipelines},
            PARTITIONS,
            queues=tuple,
            arena_bytes=int,
        )
        ready = [PartitionReady(partition, run.tables[partition]) for partition in PARTITIONS]
        executor = TimedExecutor(Machine(run.tables), loop.clock, ready)
        runtime = Runtime(
            Scheduler(spec, run.planning and run.planning.planner),
            executor,
            clock=loop.clock,
            timer=VirtualAlarm(loop),
            metrics=metrics,
            inventory=PlayedInventory(*PARTITIONS),
            observe=recorder.record,
            build_plan=run.planning and run.planning.build,
            planning=Inline(),
        )
        runtime.start()
        answers: list[asyncio.Future[Answer]] = []

        def arrive(together: list[RequestArrived]) -> None:
            for event in together:
                options = RequestOptions((), event.rows, "", event.memory_bytes, event.deadline_ns - loop.now_ns)
                submission = runtime.submit(event.pipeline, {}, options)
                assert submission.request == event.request
                answers.append(submission.future)

        def cancel(together: list[int]) -> None:
            # The cancellation of a settled request is reported as well, as in the simulator.
            for request in together:
                runtime.report(RequestCancelled(request))

        for time_ns, requests in by_time(run.cancellations):
            loop.at(time_ns, cancel, requests)
        for time_ns, events in by_time(run.arrivals):
            loop.at(time_ns, arrive, events)
        await asyncio.sleep(8.0)
        assert len(answers) == len(run.arrivals)
        assert all(answer.done() for answer in answers)

    run_virtual(serve)
    return recorder.steps


def decisions_of(run: Run, seed: int) -> list[AnyDecision]:
    """The decisions of both drivers, step by step."""
    simulated = simulate(run)
    live = run_live(run)
    for number, (expected, got) in enumerate(zip(simulated, live, strict=False)):
        assert msgspec.to_builtins(got) == msgspec.to_builtins(expected), f"seed {seed}, step {number}"
    assert len(live) == len(simulated)
    return [decision for _, _, decisions in live for decision in decisions]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("late", list(Late))
@pytest.mark.parametrize("policy", [NoBatchingSettings(), TimeoutConfig((4, 8), 2 * NS_PER_MS), DeadlineSettings()])
def test_runtime_and_simulator_make_the_same_decisions(policy: PolicyConfig, late: Late, seed: int) -> None:
    arrivals, cancellations = traffic(seed)
    run = Run(scheduler_spec(policy, late), dict.fromkeys(PARTITIONS, TABLES), arrivals, cancellations)
    kinds = {type(decision) for decision in decisions_of(run, seed)}
    assert {DispatchBatch, CombineOutputs, CompleteRequest} <= kinds


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("late", list(Late))
def test_runtime_and_simulator_make_the_same_decisions_with_plans(late: Late, seed: int) -> None:
    """Over two seconds in which rates become known, models move, and a stage changes its variant."""
    arrivals, cancellations = traffic(seed, count=900, longest_gap_us=6_000)
    planning = Planning(LivePlanner(), plan_with_residency)
    run = Run(planned_spec(late), {"a": TABLES, "b": SLOW}, arrivals, cancellations, planning)
    decisions = decisions_of(run, seed)
    kinds = [type(decision) for decision in decisions]
    assert kinds.count(BuildPlan) >= 3
    assert kinds.count(LoadModel) == kinds.count(UnloadModel) == 1
    ran = {(decision.partition, decision.model) for decision in decisions if isinstance(decision, DispatchBatch)}
    assert ran == {(partition, key) for partition in PARTITIONS for key in TABLES}
