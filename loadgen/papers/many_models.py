"""Thousands of models on eight GPUs, each with an objective of 100 ms: nothing that is admitted is late.

A. Gujarati et al., Serving DNNs like Clockwork: Performance Predictability from the Bottom Up (OSDI 2020), serves 4026
models on GPUs that hold a part of them, plays the per-minute counts of a trace of functions on them, and answers
99.99 % of what it does not refuse within 100 ms. Times and sizes of the models are those of ResNet-50 in the appendix
of the paper, as recalled. The trace is drawn here, with what the published one is known for: few functions have most of
the calls, many are called at fixed intervals, and some in bursts.
"""

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice

import msgspec

from sluice.batcher.interface.config import (
    Limits,
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
)
from sluice.batcher.interface.decisions import AnyDecision
from sluice.batcher.interface.events import AnyEvent, RequestArrived
from sluice.batcher.interface.residency_config import Footprint, Loading, ResidencyConfig
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.loadgen.papers.engines.virtual_gateway import VirtualGateway
from sluice.loadgen.papers.experiment import Effort, ExperimentFinding, ExperimentReport, PaperExperiment, gated
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_S

MODELS, GPUS = 4000, 8
HELD = 280
"""Models that a GPU of 32 GB holds."""
KIND = "v100"
OBJECTIVE_NS = 100 * NS_PER_MS
TABLE = LatencyTable.from_ms({1: 2.61, 2: 3.77, 4: 5.47, 8: 8.43, 16: 14.4})
LOAD_NS = round(8.33 * NS_PER_MS)
CAPACITY = GPUS * 1000 / 2.61
"""Requests a second when each is a batch by itself, and all models are held."""
LOADS = (1.0, 2.0, 10.0)
"""Speeds of the trace: mean rates, by `CAPACITY`."""
MINUTE_NS = 60 * NS_PER_S
REQUESTS, QUICK_REQUESTS = 340_000, 3_000
"""Requests at each speed."""
PERIODIC, STEADY, BURSTY = 0.5, 0.4, 0.1
"""Parts of the functions by the kind of their calls."""
BURST_NS = 2 * NS_PER_S
"""All calls of a minute of a bursty function come within this time."""
BURST_EVERY = 10
"""Minutes from one burst of a function to the next."""


class ClockworkRun(msgspec.Struct, frozen=True):
    """One load: the requests by how they ended, and the loads of models."""

    requests: int
    admitted: int
    late: int
    in_time: float
    loads: int

    @property
    def kept(self) -> float:
        """The part of the admitted requests that were in time."""
        return 1 - self.late / self.admitted if self.admitted else 1.0


def arrivals(seed: int, speed: float) -> Iterator[tuple[int, RequestArrived]]:
    """The requests of a trace without end that is played at a `speed`: minute by minute the calls of each function.

    At speed 1 they come at `CAPACITY`. The popularity of functions falls as one over their rank.
    """
    source = random.Random(seed)
    total = sum(1 / rank for rank in range(1, MODELS + 1))
    kinds = source.choices(("periodic", "steady", "bursty"), (PERIODIC, STEADY, BURSTY), k=MODELS)
    phases = [source.randrange(BURST_EVERY) for _ in range(MODELS)]
    number = 0
    for minute in count():
        due: list[tuple[int, int]] = []
        for model, kind in enumerate(kinds):
            mean = CAPACITY * 60 / total / (model + 1)
            if kind == "bursty":
                if minute % BURST_EVERY != phases[model]:
                    continue
                start_ns, length_ns = source.randrange(MINUTE_NS - BURST_NS), BURST_NS
                mean *= BURST_EVERY
            else:
                start_ns, length_ns = 0, MINUTE_NS
            calls = int(mean) + (source.random() < mean % 1)
            if kind == "periodic":
                step_ns = length_ns // max(calls, 1)
                first_ns = source.randrange(step_ns)
                due += [(start_ns + first_ns + each * step_ns, model) for each in range(calls)]
            else:
                due += [(start_ns + source.randrange(length_ns), model) for _ in range(calls)]
        due.sort()
        for at_ns, model in due:
            came_ns = round((minute * MINUTE_NS + at_ns) / speed)
            yield came_ns, RequestArrived(number, f"m{model}", 1, came_ns + OBJECTIVE_NS)
            number += 1


def gateway(observe: Callable[[int, AnyEvent | None, list[AnyDecision]], None] | None = None) -> VirtualGateway:
    """The models, each with a pipeline of its own, and the GPUs, which are empty."""
    names = [f"m{number}" for number in range(MODELS)]
    footprint = Footprint(1, load_ns=LOAD_NS, table=TABLE)
    spec = SchedulerSpec(
        tuple(
            ScheduledModel(name, 16, DeadlineSettings(), memory_bytes=1, footprints={KIND: footprint}) for name in names
        ),
        tuple(
            PipelineConfig(name, (StageConfig(name, name),), Late.EVICT, OBJECTIVE_NS, percentile=99.99)
            for name in names
        ),
        tuple(PartitionConfig(f"gpu{number}", KIND, memory_bytes=HELD) for number in range(GPUS)),
        Limits(queue_requests=1 << 20),
        ResidencyConfig(Loading.DEMAND, load_ns=LOAD_NS),
    )
    tables = dict.fromkeys(names, TABLE)
    return VirtualGateway(
        spec,
        {partition.name: tables for partition in spec.partitions},
        holding={},
        load_ns=lambda order: LOAD_NS,
        observe=observe,
    )


def play(seed: int, load: float, most: int) -> ClockworkRun:
    """Play that many requests of the trace of a seed, at a multiple of the capacity."""
    played = gateway().play(islice(arrivals(seed, load), most))
    admitted = [each for each in played.requests if not each.outcome.name.startswith("REJECTED")]
    late = sum(not each.is_in_time for each in admitted)
    return ClockworkRun(
        len(played.requests),
        len(admitted),
        late,
        played.in_time,
        sum(played.loads.values()),
    )


def run(effort: Effort) -> ExperimentReport:
    """The first requests of a trace at each load, from empty GPUs on."""
    most = QUICK_REQUESTS if effort.quick else REQUESTS
    runs = dict(zip(LOADS, effort.each(partial(play, 1, most=most), LOADS), strict=True))
    findings = []
    for load, result in runs.items():
        findings.append(
            gated(
                f"admitted requests in time, {load:g} times the capacity",
                f"{result.kept:.4%} of {result.admitted}",
                published="99.99 %",
                gate="at least 99.99 %",
                is_met=result.kept >= 0.9999,
                why="they were late, or evicted when their deadlines were out of reach",
            )
        )
        findings.append(
            ExperimentFinding(
                f"requests in time, {load:g} times the capacity",
                f"{result.in_time:.1%} of {result.requests}, {result.loads} loads",
            )
        )
    return ExperimentReport(tuple(findings))


EXPERIMENT = PaperExperiment(
    "clockwork",
    "nothing that is admitted is late, with more models than the GPUs hold",
    "Gujarati et al., Clockwork, OSDI 2020",
    given="an objective of 100 ms, models on demand, and the part of the admitted requests that is in time",
    assumed=(
        "times and sizes of ResNet-50 as recalled, GPUs that hold 280 models, a trace that is drawn like those of "
        "functions and played faster for more load, and requests of one row"
    ),
    run=run,
)
