"""Pipelines with the shapes of serverless workflows: wide, deep, skewed, with large tensors between stages.

The characterisation of workflows on Azure by WiseFuse (SIGMETRICS 2022) finds up to 10.9 thousand parallel calls and 47
stages in a row, one DAG in twenty with 95 % of all calls, tensors of 1 MB and more between stages, and parallel stages
of which one takes a hundred times as long as another. A server refuses pipelines of more than `MAX_STAGES` stages,
whose requests would keep it from others, and with an objective of more than `MAX_PLANNED_STAGES`, whose plans would
take longer. Thousands of parallel calls of one function would be rows of a request, which has one here.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator

import msgspec

from sluice.batcher.drivers.simulated_nodes import SimulatedNode
from sluice.batcher.interface.config import (
    Limits,
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
)
from sluice.batcher.interface.decisions import AnyDecision, CompleteRequest, Settlement
from sluice.batcher.interface.events import AnyEvent, RequestArrived
from sluice.batcher.interface.plan_data import Observed
from sluice.batcher.planner.build import build_plan
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.loadgen.papers.engines.virtual_gateway import VirtualGateway
from sluice.loadgen.papers.experiment import Effort, ExperimentFinding, ExperimentReport, PaperExperiment, gated, timed
from sluice.models.pipelines.check import MAX_PLANNED_STAGES, MAX_STAGES
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_S

DAGS, POPULAR, OF_CALLS = 40, 2, 0.95
DEEPEST, WIDEST = 47, 45
"""Stages in a row, and beside each other between a first and a last one."""
MODELS_MS = {"tiny": 0.5, "small": 2.0, "usual": 6.0, "slow": 50.0}
"""Times of a row: one takes a hundred times as long as another."""
ROW_BYTES = 1_000_000
KIND, NODES, A_NODE = "gpu", 4, 8
GBIT_10 = 1_250_000_000
LOAD = 0.5
SECONDS, QUICK_SECONDS = 6, 1
PLAN_MS = 10
PLANNED_TIMES = 3
"""A plan is built this often; the least time counts, since the machine does other things as well."""


def shape(layers: list[list[str]]) -> tuple[StageConfig, ...]:
    """Stages by layers of models; each waits for all of the layer before."""
    stages: list[StageConfig] = []
    before: tuple[int, ...] = ()
    for layer in layers:
        first = len(stages)
        stages += [
            StageConfig(f"s{first + at}", model, before, source_bytes=ROW_BYTES if before else 0)
            for at, model in enumerate(layer)
        ]
        before = tuple(range(first, len(stages)))
    return tuple(stages)


def dags(seed: int) -> list[PipelineConfig]:
    """The deepest, the widest, one that is skewed, and others by chance."""
    chance = random.Random(seed)
    layers = [
        [["tiny"]] * DEEPEST,
        [["tiny"], ["tiny"] * WIDEST, ["tiny"]],
        [["tiny"], ["tiny"] * 7 + ["slow"], ["small"]],
    ]
    while len(layers) < DAGS:
        depth = min(1 + int(chance.expovariate(0.4)), 12)
        layers.append(
            [
                [chance.choice(("tiny", "small", "usual")) for _ in range(min(1 + int(chance.expovariate(0.6)), 8))]
                for _ in range(depth)
            ]
        )
    chance.shuffle(layers)
    return [
        PipelineConfig(f"dag{number}", shape(each), slo_ns=(500 + 30 * len(each)) * NS_PER_MS)
        for number, each in enumerate(layers)
    ]


class DagRun(msgspec.Struct, frozen=True):
    """One run: requests, how many had exactly one outcome, and how many were answered."""

    requests: int
    once: int
    answered: int


def spec_of(seed: int) -> SchedulerSpec:
    """Forty pipelines on 32 partitions of four nodes."""
    return SchedulerSpec(
        tuple(
            ScheduledModel(name, 8, DeadlineSettings(), input_bytes=ROW_BYTES, output_bytes=ROW_BYTES)
            for name in MODELS_MS
        ),
        tuple(dags(seed)),
        tuple(PartitionConfig(f"node{node}-{part}", KIND) for node in range(NODES) for part in range(A_NODE)),
        Limits(queue_requests=1 << 16),
    )


def tables() -> dict[str, LatencyTable]:
    """Latency tables by model."""
    return {
        name: LatencyTable.from_ms({1: ms, 2: 1.5 * ms, 4: 2.5 * ms, 8: 4.5 * ms}) for name, ms in MODELS_MS.items()
    }


def arrivals(spec: SchedulerSpec, seed: int, seconds: float) -> Iterator[tuple[int, RequestArrived]]:
    """Calls at half of what the partitions can do row by row; few pipelines have nearly all of them."""
    chance = random.Random(seed)
    weights = [OF_CALLS / POPULAR if number < POPULAR else (1 - OF_CALLS) / (DAGS - POPULAR) for number in range(DAGS)]
    work_s = [sum(MODELS_MS[stage.model or ""] for stage in each.stages) / 1000 for each in spec.pipelines]
    mean_s = sum(weight * work for weight, work in zip(weights, work_s, strict=True))
    rate = LOAD * len(spec.partitions) / mean_s
    now_s = 0.0
    for request in range(1 << 30):
        now_s += chance.expovariate(rate)
        if now_s > seconds:
            return
        (pipeline,) = chance.choices(spec.pipelines, weights)
        now_ns = int(now_s * NS_PER_S)
        yield now_ns, RequestArrived(request, pipeline.name, 1, now_ns + pipeline.slo_ns)


def play(seed: int, seconds: float) -> DagRun:
    """One run, in which a node is gone for a third of the time."""
    spec = spec_of(seed)
    outcomes = Counter[int]()
    asked: set[int] = set()
    answered = 0

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        nonlocal answered
        if isinstance(event, RequestArrived):
            asked.add(event.request)
        for decision in decisions:
            if isinstance(decision, Settlement):
                outcomes[decision.request] += 1
                answered += isinstance(decision, CompleteRequest)

    names = [[f"node{node}-{part}" for part in range(A_NODE)] for node in range(NODES)]
    nodes = [SimulatedNode(f"node{node}", tuple(each), GBIT_10, 100_000, True) for node, each in enumerate(names)]
    gateway = VirtualGateway(spec, {each.name: tables() for each in spec.partitions}, nodes=nodes, observe=observe)
    gateway.simulator.lose_node(int(seconds * NS_PER_S / 3), "node0", int(seconds * NS_PER_S * 2 / 3))
    gateway.play(arrivals(spec, seed, seconds))
    return DagRun(len(asked), sum(outcomes[request] == 1 for request in asked), answered)


def longest_plan_ms(seed: int) -> tuple[float, int]:
    """The processor time of the plan that takes longest, each pipeline planned by itself, and the stages of that."""
    spec = spec_of(seed)
    observed = {name: {KIND: table} for name, table in tables().items()}
    longest = 0.0, 0
    for pipeline in spec.pipelines:
        alone = msgspec.structs.replace(spec, pipelines=(pipeline,))
        took_s = []
        for _ in range(PLANNED_TIMES):
            began_s = time.process_time()
            build_plan(alone, Observed(observed, {pipeline.name: 1.0}, {}))
            took_s.append(time.process_time() - began_s)
        longest = max(longest, (1000 * min(took_s), len(pipeline.stages)))
    return longest


def run(effort: Effort) -> ExperimentReport:
    """All shapes on four nodes, of which one is lost for a while, with each seed."""
    seeds = range(1, (1 if effort.quick else min(effort.seeds, 3)) + 1)
    runs = [play(seed, QUICK_SECONDS if effort.quick else SECONDS) for seed in seeds]
    requests, once, answered = (sum(getattr(each, name) for each in runs) for name in ("requests", "once", "answered"))
    plan_ms, longest = longest_plan_ms(1)
    findings = (
        gated(
            f"requests with one outcome, {DAGS} pipelines up to {DEEPEST} stages deep and {WIDEST} wide",
            f"{once} of {requests}",
            published="depth up to 47, width up to 10.9 thousand",
            gate="all",
            is_met=once == requests,
        ),
        ExperimentFinding(
            "requests that are answered, with a node lost for a third of the time", f"{answered / requests:.1%}"
        ),
        timed(
            effort,
            "time to plan a pipeline, at most",
            f"at most {PLAN_MS} ms" if plan_ms <= PLAN_MS else f"{plan_ms:.0f} ms",
            gate=f"at most {PLAN_MS} ms",
            is_met=plan_ms <= PLAN_MS,
            why=f"that is the plan of a pipeline with {longest} stages",
        ),
        ExperimentFinding(
            "stages of a pipeline that a server takes, at most; more are refused at load",
            f"{MAX_STAGES}, or {MAX_PLANNED_STAGES} with an objective",
        ),
    )
    return ExperimentReport(findings)


EXPERIMENT = PaperExperiment(
    "dags",
    "wide, deep and skewed pipelines with large tensors are planned in time, and every request ends once",
    "WiseFuse, SIGMETRICS 2022, as a survey of serverless workflows quotes it",
    given="depth, the share of calls that few DAGs have, tensors of 1 MB between stages, and a skew of 100",
    assumed="times of models, shapes by chance, four nodes behind 10 Gbit/s, and half of what they can do row by row",
    run=run,
)
