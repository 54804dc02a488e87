"""The work of a request as partitions and models become a hundred and a thousand times as many.

A fleet is worth its size only if its scheduler does not become the bottleneck. The work is counted in instructions of
the interpreter, in all that the scheduler and its driver do for a request, since those are the same in every run; what
runs inside built-in functions is not counted. The window has more than a second of virtual time where there are ten
partitions, so that it has all that is done once a second.
"""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FrameType, FunctionType
from typing import Any, Self

import msgspec

from sluice.batcher.interface.config import (
    Limits,
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
)
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.loadgen.papers.engines.virtual_gateway import VirtualGateway
from sluice.loadgen.papers.experiment import Effort, ExperimentFinding, ExperimentReport, PaperExperiment, gated
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_S

SIZES = ((10, 10), (100, 10), (1000, 10), (10, 100), (10, 1000), (10, 10_000), (100, 1000), (1000, 10_000))
QUICK_SIZES = ((10, 10), (1000, 10), (10, 10_000), (1000, 10_000))
"""Partitions and models; all are compared with the first."""
POOL = 10
"""Partitions that hold the same models, as soon as there are enough models."""
TABLE = LatencyTable.from_ms({1: 2.61, 2: 3.77, 4: 5.47, 8: 8.43})
LOAD = 0.3
"""The part of all partitions that would be busy with batches of one row."""
OBJECTIVE_NS = 100 * NS_PER_MS
MOST = 1.5
BEFORE, A_PARTITION = 300, 2
"""Requests before the count begins: some, and some for each partition."""
REQUESTS, QUICK_REQUESTS = 3000, 500
"""Requests that are counted with ten partitions; with more, whose second has too many, it is a quarter."""


class GrowthRun(msgspec.Struct, frozen=True):
    """One size: instructions a request, and the part of the requests that was in time."""

    instructions: float
    in_time: float


class Instructions:
    """Counts the interpreter's instructions in functions that are called while it is on."""

    def __init__(self) -> None:
        self.count = 0
        self._before = sys.gettrace()

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self._trace


def gateway_of(partitions: int, models: int) -> VirtualGateway:
    """Partitions in pools of ten, each of which holds its part of the models; all hold all where either is few."""
    names = [f"m{number}" for number in range(models)]
    pools = max(min(partitions, models) // POOL, 1)
    spec = SchedulerSpec(
        tuple(ScheduledModel(name, 8, DeadlineSettings()) for name in names),
        tuple(PipelineConfig(name, (StageConfig(name, name),)) for name in names),
        tuple(PartitionConfig(f"p{number}", "gpu") for number in range(partitions)),
        Limits(queue_requests=1 << 20),
    )
    held = [dict.fromkeys(names[pool::pools], TABLE) for pool in range(pools)]
    return VirtualGateway(spec, {f"p{number}": held[number % pools] for number in range(partitions)})


def play(partitions: int, models: int, requests: int) -> GrowthRun:
    """Requests for models drawn by chance, equally often; the count begins once the partitions have had some."""
    with ExitStack() as counting:
        instructions = Instructions()

        def arrivals() -> Iterator[tuple[int, RequestArrived]]:
            chance, now_ns = random.Random(1), NS_PER_S
            before = BEFORE + A_PARTITION * partitions
            for request in range(before + requests):
                if request == before:
                    counting.enter_context(instructions)
                now_ns += int(chance.expovariate(LOAD * partitions / TABLE.latency_ns(1)))
                yield now_ns, RequestArrived(request, f"m{chance.randrange(models)}", 1, now_ns + OBJECTIVE_NS)

        played = gateway_of(partitions, models).play(arrivals())
    return GrowthRun(instructions.count / requests, played.in_time)


def run(effort: Effort) -> ExperimentReport:
    """Each size once, since chance has little part."""
    if not isinstance(Scheduler.handle, FunctionType):
        return ExperimentReport((ExperimentFinding("work of a request", "not counted: the scheduler is compiled"),))
    requests = QUICK_REQUESTS if effort.quick else REQUESTS
    runs = {
        (partitions, models): play(partitions, models, requests if partitions == 10 else requests // 4)
        for partitions, models in (QUICK_SIZES if effort.quick else SIZES)
    }
    base = runs[SIZES[0]]
    findings = [
        gated(
            f"work of a request, {partitions} partitions and {models} models, by that of ten and ten",
            f"{result.instructions / base.instructions:.2f}",
            gate=f"at most {MOST}",
            is_met=result.instructions <= MOST * base.instructions,
        )
        for (partitions, models), result in runs.items()
        if (partitions, models) in QUICK_SIZES[1:]
    ]
    return ExperimentReport(tuple(findings), (_table(runs),))


def _table(runs: dict[tuple[int, int], GrowthRun]) -> str:
    lines = ["| partitions | models | instructions a request | in time |", "|---|---|---|---|"]
    for (partitions, models), result in runs.items():
        lines.append(f"| {partitions} | {models} | {result.instructions:,.0f} | {result.in_time:.1%} |")
    return "\n".join(lines) + "\n"


EXPERIMENT = PaperExperiment(
    "scale",
    "a request is as much work in a large fleet, and among many models, as in a small one",
    "no paper: what a gateway of many models on many partitions needs",
    given="nothing",
    assumed=(
        "times of ResNet-50 on a V100, partitions that would be busy for 30 % of the time, and pools of ten partitions "
        "that hold the same models; instructions of the interpreter stand for time"
    ),
    run=run,
)
