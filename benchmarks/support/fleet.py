"""A fleet in virtual time: the time of each decision and the goodput of a partition, from 10 to 1 000 partitions.

    python -m benchmarks.support.fleet [--rows 10x4,100x10,1000x100] [--placements pools,everywhere,scattered]

Partitions are of four kinds, ten of which are a cell: each count of partitions has the same mix. Eight of them are on
a node. Pipelines are single models, cascades, ensembles and chains with objectives from 240 ms to 960 ms. Every
pipeline asks for the same share of the time of all partitions. The models are placed in one of three ways:

- pools: a hundred partitions hold the models of ten pipelines, so there are as many pools as there is work;
- everywhere: all partitions hold all models;
- scattered: each partition holds the models of a tenth of the pipelines (of three at least), drawn by chance.

A run goes through the simulator once, which gives the goodput. Then its events are handled again by fresh schedulers,
and each is timed: an event counts with the least of its times over the rounds. The time is that of the thread, so what
others do on the machine counts only by the caches that they take.
"""

import argparse
import gc
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import Limits, PartitionConfig, PipelineConfig, ScheduledModel, SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision, CombineOutputs, DispatchBatch, Settlement
from sluice.batcher.interface.events import AnyEvent, Confidences, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.plan_data import Observed, Plan
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_S, NS_PER_US
from tests.support.scheduling.builders import CERTAINTY, cascade, chain, ensemble, single

CELL = ("whole", "half", "half", "quarter", "quarter", "quarter", "eighth", "eighth", "eighth", "eighth")
"""The kinds of ten partitions."""
KINDS = {"whole": (1.0, 4.0), "half": (1.7, 2.0), "quarter": (3.0, 1.0), "eighth": (5.5, 0.5)}
"""By kind of partition: slowdown of batches, and price of a second."""
POOL = 100
"""Partitions that hold the same models, where models are placed in pools."""
A_NODE = 8
"""Partitions of a node: 125 nodes have 1 000."""
MEASURED_MS = {1: 20.0, 2: 24.0, 4: 32.0, 8: 48.0}
"""The time of a batch of a model of factor 1 on a whole device."""
FULL = 8
ESCALATED = 0.3
"""The share of rows that go on to the next stage of a cascade."""
OBJECTIVES = (12, 20, 30, 48)
"""Objectives of pipelines, in times of a batch of one row in each of its stages on a whole device."""
PLACEMENTS = ("pools", "everywhere", "scattered")
SHOWN = ("RequestArrived", "BatchCompleted", "wake-up", "all")
"""The types of events whose times are printed."""
WARM_NS, COOL_NS = 600 * NS_PER_MS, 300 * NS_PER_MS
"""Requests that arrive so soon after the start, or so long before the end, do not count."""


class _Stage(NamedTuple):
    """A stage of a pipeline: its model, how much slower it is than `MEASURED_MS`, and the share of rows that it has."""

    model: str
    factor: float
    reach: float


class FleetPipeline(NamedTuple):
    """A pipeline of the fleet, and its stages that run models."""

    config: PipelineConfig
    stages: tuple[_Stage, ...]
    objective_ns: int

    @property
    def row_ms(self) -> float:
        """The time that a row takes of a whole device in full batches."""
        return sum(each.reach * each.factor for each in self.stages) * MEASURED_MS[FULL] / FULL


def table_of(factor: float, kind: str) -> LatencyTable:
    """The latency table of a model on a kind of partition."""
    slowdown = KINDS[kind][0]
    return LatencyTable.from_ms({rows: factor * slowdown * ms for rows, ms in MEASURED_MS.items()})


def pipeline_of(number: int) -> FleetPipeline:
    """One of four forms of pipelines in turns: single model, cascade of two, ensemble of three, chain of two."""
    name = f"p{number}:1"
    first, second, third = (f"m{number}-{stage}:1" for stage in range(3))
    configs = (
        single(first, name=name),
        cascade(first, second, name=name, below=ESCALATED),
        ensemble(first, second, third, name=name),
        chain(first, second, name=name),
    )
    stages = (
        (_Stage(first, 1.0, 1.0),),
        (_Stage(first, 0.5, 1.0), _Stage(second, 1.5, ESCALATED)),
        (_Stage(first, 0.3, 1.0), _Stage(second, 0.4, 1.0), _Stage(third, 0.5, 1.0)),
        (_Stage(first, 0.4, 1.0), _Stage(second, 0.6, 1.0)),
    )
    form = number % len(configs)
    objective_ns = int(OBJECTIVES[(number + number // len(configs)) % len(OBJECTIVES)] * MEASURED_MS[1] * NS_PER_MS)
    return FleetPipeline(msgspec.structs.replace(configs[form], slo_ns=objective_ns), stages[form], objective_ns)


def placed(placement: str, partitions: int, pipelines: int) -> list[list[int]]:
    """The pipelines whose models each partition holds, by number."""
    if placement == "everywhere" or (placement == "pools" and partitions <= POOL):
        return [list(range(pipelines))] * partitions
    if placement == "pools":
        pools = partitions // POOL
        held = [list(range(pipelines * pool // pools, pipelines * (pool + 1) // pools)) for pool in range(pools)]
        return [held[number * pools // partitions] for number in range(partitions)]
    draw = random.Random(1)
    some = max(pipelines // 10, min(pipelines, 3))
    return [sorted(draw.sample(range(pipelines), some)) for _ in range(partitions)]


class Fleet:
    """A spec, the first events, and seeded arrivals at `load` times what all partitions can serve in full batches.

    `whole` is what all partitions are worth together, in whole devices. `offered` are the requests a second for each.
    """

    def __init__(self, partitions: int, pipelines: int, placement: str, load: float, *, nodes: bool = True) -> None:
        self.pipelines = [pipeline_of(number) for number in range(pipelines)]
        self.factors = {each.model: each.factor for pipeline in self.pipelines for each in pipeline.stages}
        self.kinds = {f"p{number}": CELL[number % len(CELL)] for number in range(partitions)}
        self.spec = SchedulerSpec(
            tuple(ScheduledModel(key, FULL, DeadlineSettings(), (CERTAINTY,)) for key in self.factors),
            tuple(pipeline.config for pipeline in self.pipelines),
            tuple(PartitionConfig(name, kind, KINDS[kind][1]) for name, kind in self.kinds.items()),
            Limits(queue_requests=1 << 20, memory_bytes=1 << 40, hand_off_ns=100 * NS_PER_US),
        )
        self.ready = []
        tables = {(key, kind): table_of(factor, kind) for key, factor in self.factors.items() for kind in KINDS}
        held = placed(placement, partitions, pipelines)
        for number, (name, kind) in enumerate(self.kinds.items()):
            keys = [each.model for pipeline in held[number] for each in self.pipelines[pipeline].stages]
            node = f"n{number // A_NODE}" if nodes else ""
            self.ready.append(PartitionReady(name, {key: tables[key, kind] for key in keys}, node=node))
        self.whole = sum(1 / KINDS[kind][0] for kind in self.kinds.values())
        share = load * self.whole / pipelines
        self.rates = [share * 1000 / pipeline.row_ms for pipeline in self.pipelines]
        self.offered = sum(self.rates) / self.whole

    def scheduler(self) -> Scheduler:
        """A new scheduler of the fleet."""
        return Scheduler(self.spec, LivePlanner())

    def arrivals(self, until_ns: int) -> Iterator[tuple[int, RequestArrived]]:
        """Poisson arrivals of all pipelines, seeded."""
        draw = random.Random(2)
        total = sum(self.rates)
        bounds = list(accumulate(self.rates))
        numbers = range(len(bounds))
        now_ns, request = 1_000, 0
        while True:
            now_ns += int(draw.expovariate(total) * NS_PER_S)
            if now_ns >= until_ns:
                return
            (number,) = draw.choices(numbers, cum_weights=bounds)
            pipeline = self.pipelines[number]
            yield now_ns, RequestArrived(request, pipeline.config.name, 1, now_ns + pipeline.objective_ns)
            request += 1


class Service:
    """Batches take what the tables say."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._draw = random.Random(3)
        self._tables = {(key, kind): table_of(factor, kind) for key, factor in fleet.factors.items() for kind in KINDS}

    def batch_ns(self, batch: DispatchBatch) -> int:
        return self._tables[batch.model, self._fleet.kinds[batch.partition]].latency_ns(batch.rows)

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        return (tuple(self._draw.random() for _ in range(batch.rows)),)

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()


Step = tuple[int, AnyEvent | None]


class Run(NamedTuple):
    """A simulated run: its steps, its requests by outcome, its batches, and the times of its plans.

    `in_time` is the share of the requests that is answered in time, of those that count.
    """

    steps: list[Step]
    outcomes: dict[str, int]
    in_time: float
    batches: int
    plan_s: list[float]


def simulate(fleet: Fleet, seconds: float) -> Run:
    """Run the fleet for `seconds` of virtual time, and before and after them as long as does not count."""
    steps: list[Step] = []
    outcomes: Counter[str] = Counter()
    counted: set[int] = set()
    in_time = batches = 0
    plan_s: list[float] = []
    end_ns = WARM_NS + int(seconds * NS_PER_S)

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        nonlocal in_time, batches
        steps.append((now_ns, event))
        if isinstance(event, RequestArrived) and WARM_NS <= now_ns < end_ns:
            counted.add(event.request)
        for decision in decisions:
            if isinstance(decision, DispatchBatch):
                batches += 1
            elif isinstance(decision, Settlement):
                outcomes[decision.outcome.value] += 1
                in_time += decision.outcome is Outcome.COMPLETED and decision.request in counted

    def build(spec: SchedulerSpec, observed: Observed) -> Plan:
        began = time.thread_time()
        plan = build_plan(spec, observed)
        plan_s.append(time.thread_time() - began)
        return plan

    simulator = Simulator(fleet.scheduler(), Service(fleet), observe, build_plan=build)
    for event in fleet.ready:
        simulator.at(0, event)
    simulator.run(fleet.arrivals(end_ns + COOL_NS))
    return Run(steps, dict(outcomes), in_time / max(len(counted), 1), batches, plan_s)


class Times(NamedTuple):
    """The times of the steps of one type, in microseconds."""

    steps: int
    mean: float
    p99: float
    most: float


def replay(fleet: Fleet, steps: Sequence[Step]) -> list[int]:
    """The time of each step in a fresh scheduler (ns)."""
    scheduler = fleet.scheduler()
    took: list[int] = []
    clock = time.thread_time_ns
    gc.collect()
    gc.disable()  # there are more requests at a time than a gateway ever has, and the core leaves no cycles
    for now_ns, event in steps:
        began = clock()
        if event is None:
            scheduler.handle_wakeup(now_ns)
        else:
            scheduler.handle(event, now_ns)
        scheduler.next_wakeup_ns()
        took.append(clock() - began)
    gc.enable()
    return took


def least(rounds: Sequence[Sequence[int]]) -> list[int]:
    """The least time of each step over the rounds."""
    return [min(times) for times in zip(*rounds, strict=True)]


def by_type(steps: Sequence[Step], took: Sequence[int]) -> dict[str, Times]:
    """The times of steps by type of event, and of all but those at the start."""
    times: dict[str, list[float]] = defaultdict(list)
    for (now_ns, event), ns in zip(steps, took, strict=True):
        times["wake-up" if event is None else type(event).__name__].append(ns / 1000)
        if now_ns:
            times["all"].append(ns / 1000)
    return {name: _times(sorted(values)) for name, values in sorted(times.items())}


def _times(ordered: Sequence[float]) -> Times:
    last = len(ordered) - 1
    return Times(len(ordered), statistics.fmean(ordered), ordered[int(0.99 * last)], ordered[last])


def _print_row(fleet: Fleet, run: Run, title: str, rounds: int, *, every: bool) -> None:
    times = by_type(run.steps, least([replay(fleet, run.steps) for _ in range(rounds)]))
    plan_ms = max(run.plan_s, default=0) * 1000
    goodput = run.in_time * fleet.offered
    print(f"{title}: {run.in_time:.2%} in time, {goodput:.1f}/s for each whole device; a plan takes {plan_ms:.0f} ms")
    print(f"    {run.outcomes}, {run.batches} batches")
    for name, each in times.items():
        if every or name in SHOWN:
            print(f"    {name:<16} {each.steps:>7} {each.mean:8.1f} {each.p99:8.1f} {each.most:9.1f} us", flush=True)


def main() -> None:
    """Print a table: for each type of event how many there were, and the mean, the 99th percentile and the maximum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="10x4,100x10,1000x100", help="partitions x pipelines")
    parser.add_argument("--placements", default=",".join(PLACEMENTS))
    parser.add_argument("--loads", default="0.7,0.9")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-nodes", action="store_true", help="all partitions are on the gateway's own machine")
    parser.add_argument("--all", action="store_true", help="print the times of all types of events")
    options = parser.parse_args()
    for placement in options.placements.split(","):
        for load in map(float, options.loads.split(",")):
            for row in options.rows.split(","):
                partitions, pipelines = map(int, row.split("x"))
                fleet = Fleet(partitions, pipelines, placement, load, nodes=not options.no_nodes)
                title = f"{placement}, load {load:.2f}, {partitions} partitions, {pipelines} pipelines"
                _print_row(fleet, simulate(fleet, options.seconds), title, options.rounds, every=options.all)


if __name__ == "__main__":
    main()
