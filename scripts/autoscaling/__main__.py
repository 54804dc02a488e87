"""Prints the attainment and the cost of the autoscaler and of other rules, on four kinds of traffic.

A model on accelerators that do 20 requests a second each, in batches of 8, has an objective of 1.2 s. Between 1 and 24
of them are up; one takes 10 s to start (`--start-s`). Everything but the rule is the same: the scheduler of the gateway
in virtual time, which refuses requests that would be late. A request that is refused, or late, misses the objective.
The cost is that of the accelerators from their order until they are given up.

    python -m scripts.autoscaling [--start-s 10] [--trace steady …]
"""

import argparse
import csv
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from scripts.autoscaling.rules import KnativeRule, Measured, ReactiveRule, WithoutForecast
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, ScheduledModel, SchedulerSpec, StageConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CombineOutputs,
    CompleteRequest,
    DispatchBatch,
    SetPartitions,
    Settlement,
)
from sluice.batcher.interface.events import AnyEvent, Confidences, PartitionLost, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.scaling_config import ScaledClass, ScalingConfig
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.scaling.autoscaler import Autoscaler
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_S

TRACES = Path(__file__).parent / "traces"
TABLE = LatencyTable.from_ms({1: 200, 2: 220, 4: 260, 8: 400})
ROWS_PER_S = 20.0
BATCH = 8
SLOTS = tuple(f"edge-{number}" for number in range(24))
SCALED = ScaledClass("edge", SLOTS, 1, len(SLOTS))
SLO_NS = 1200 * NS_PER_MS
LEAD_S = 60
"""The time before the trace, at its first rate, which is not counted."""

RULES: dict[str, Callable[[Measured], Autoscaler]] = {
    "Sluice": lambda measured: Autoscaler(ScalingConfig(), SCALED),
    "Sluice without the forecast": lambda measured: WithoutForecast(ScalingConfig(), SCALED),
    "Knative, by concurrency": lambda measured: KnativeRule(SCALED, measured, BATCH, by_rate=False),
    "Knative, by rate": lambda measured: KnativeRule(SCALED, measured, ROWS_PER_S, by_rate=True),
    "reactive (HPA, utilisation)": lambda measured: ReactiveRule(SCALED, measured),
}


def read_trace(path: Path) -> list[tuple[float, float]]:
    """The rates of a trace: (seconds from when on, requests a second); the last one is 0."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [(float(row["from_s"]), float(row["requests_per_s"])) for row in rows]


class Experiment:
    """One rule on one trace."""

    def __init__(self, rule: Callable[[Measured], Autoscaler], start_s: float) -> None:
        pipeline = PipelineConfig("m:1", (StageConfig("m", "m:1"),), slo_ns=SLO_NS)
        scaled = msgspec.structs.replace(SCALED, start_ns=round(start_s * NS_PER_S))
        spec = SchedulerSpec(
            (ScheduledModel("m:1", BATCH, DeadlineSettings()),),
            (pipeline,),
            tuple(PartitionConfig(slot, "accelerator") for slot in SLOTS),
            scaling=ScalingConfig((scaled,)),
        )
        self.measured = Measured()
        self.scheduler = Scheduler(spec, LivePlanner())
        (partitions,) = self.scheduler.scaler.classes  # type: ignore[union-attr]
        partitions.autoscaler = rule(self.measured)
        self.simulator = Simulator(
            self.scheduler,
            self,
            self.observe,
            build_plan=build_plan,
            tables={slot: {"m:1": TABLE} for slot in SLOTS},
            start_ns=lambda slot: round(start_s * NS_PER_S),
        )
        self.up: set[str] = set()
        self.ordered = 0
        self.ordered_ns = 0
        self.seen_ns = 0
        self.first = self.in_time = self.requests = self.failed = 0

    def run(self, trace: Sequence[tuple[float, float]]) -> None:
        """Play a trace."""
        self.simulator.run(self.arrivals([(at_s + LEAD_S if at_s else 0.0, rate) for at_s, rate in trace]), 2 * SLO_NS)

    def arrivals(self, trace: Sequence[tuple[float, float]]) -> Iterator[tuple[int, RequestArrived]]:
        """Requests at random times (Poisson), the same for each rule."""
        chance, number = random.Random(3), 0
        for (from_s, rate), (until_s, _) in pairwise(trace):
            at_s = from_s
            while (at_s := at_s + chance.expovariate(rate)) < until_s:
                number += 1
                at_ns = round(at_s * NS_PER_S)
                yield at_ns, RequestArrived(number, "m:1", 1, at_ns + SLO_NS)

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        """Count what rules go by, and what becomes of requests."""
        measured = self.measured
        measured.pass_time(now_ns, len(self.up))
        counts = now_ns >= LEAD_S * NS_PER_S
        if counts:
            self.ordered_ns += self.ordered * (now_ns - max(self.seen_ns, LEAD_S * NS_PER_S))
        self.seen_ns = now_ns
        if isinstance(event, RequestArrived):
            measured.arrived += 1
            measured.in_flight += 1
            self.requests += counts
            self.first = self.first if counts else event.request + 1
        elif isinstance(event, PartitionReady):
            self.up.add(event.partition)
        elif isinstance(event, PartitionLost):
            self.up.discard(event.partition)
        for decision in decisions:
            if isinstance(decision, SetPartitions):
                self.ordered = decision.count
            elif isinstance(decision, DispatchBatch):
                measured.busy_ns += TABLE.latency_ns(decision.rows)
            elif isinstance(decision, Settlement):
                measured.in_flight -= 1
                self.in_time += decision.request >= self.first and decision.outcome is Outcome.COMPLETED
                self.failed += not isinstance(decision, CompleteRequest) and "rejected" not in decision.outcome

    def batch_ns(self, batch: DispatchBatch) -> int:
        """See `Service`."""
        return TABLE.latency_ns(batch.rows)

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        """See `Service`."""
        return ()

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        """See `Service`."""
        return ()


def main() -> None:
    """Print a table in Markdown, one line for each trace and rule."""
    parser = argparse.ArgumentParser(prog="python -m scripts.autoscaling", description=__doc__)
    parser.add_argument("--start-s", type=float, default=10.0, help="the time that a partition takes to start")
    parser.add_argument("--trace", nargs="+", default=["steady", "diurnal", "bursty", "spiky"], help="the traces")
    options = parser.parse_args()
    print("| trace | rule | requests | in time | partitions | failed |")
    print("|---|---|---|---|---|---|")
    for name in options.trace:
        trace = read_trace(TRACES / f"{name}.csv")
        for rule, make in RULES.items():
            experiment = Experiment(make, options.start_s)
            experiment.run(trace)
            attainment = experiment.in_time / experiment.requests
            partitions = experiment.ordered_ns / (trace[-1][0] * NS_PER_S)
            print(
                f"| {name} | {rule} | {experiment.requests} | {attainment:.2%} | {partitions:.2f} "
                f"| {experiment.failed} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
