"""The stage latency model against the scheduler in virtual time: measured over predicted latency."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, product

import numpy as np
import pytest

from benchmarks.conftest import Report
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import (
    Limits,
    PartitionConfig,
    PipelineConfig,
    PolicyConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
)
from sluice.batcher.interface.decisions import AnyDecision, CompleteRequest, DispatchBatch
from sluice.batcher.interface.events import AnyEvent, PartitionReady, RequestArrived
from sluice.batcher.interface.plan_data import Observed
from sluice.batcher.planner.demand import demand_table
from sluice.batcher.planner.exact import ExactPlanner
from sluice.batcher.planner.stage_latency import stage_latency
from sluice.batcher.planner.stage_options import pipeline_candidates, problem_of
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S
from tests.support.scheduling.services import WithoutConfidences

SHAPES: dict[str, Callable[[int], float]] = {
    "affine": lambda rows: 10 + rows,
    "flat": lambda rows: 20 + 0.1 * rows,
    "root": lambda rows: 2 + 5 * rows**0.5,
}
"""Milliseconds of a batch: the cost of a further row is high, close to nothing, or falling."""
SERVERS = (1, 2, 4)
BATCHES = (2, 4, 8, 16, 32)
UTILISATIONS = (0.3, 0.88, 0.5, 0.8)
"""In turns."""
REQUESTS = 5_000
WARM_UP = 250
SLO_NS = 3600 * NS_PER_S
ONLY = StageConfig("m", "m:1")
VOTE = [StageConfig(key, f"{key}:1") for key in "abc"]
DIAMOND = [StageConfig(key, f"{key}:1", before) for key, before in zip("abcd", ((), (0,), (0,), (1, 2)), strict=True)]
CHAINS = [StageConfig(key, f"{key}:1", before) for key, before in zip("abcd", ((), (), (0,), (1,)), strict=True)]


class Run(WithoutConfidences):
    """A simulated run of a pipeline of identical models, and the simulated machine at the same time."""

    def __init__(
        self,
        table: LatencyTable,
        servers: int,
        policy: PolicyConfig,
        stages: Sequence[StageConfig] = (ONLY,),
        requests: int = REQUESTS,
    ) -> None:
        self._table = table
        self._requests = requests
        self._arrived_ns: list[int] = []
        self.latency_ns = np.zeros(requests, np.int64)
        self.pipeline = PipelineConfig("p:1", tuple(stages))
        keys = [stage.model for stage in stages if stage.model is not None]
        partitions = tuple(PartitionConfig(f"p{number}", "any") for number in range(servers))
        models = tuple(ScheduledModel(key, table.cells[-1][0], policy=policy) for key in keys)
        self.spec = SchedulerSpec(models, (self.pipeline,), partitions, Limits(queue_requests=requests))
        self.simulator = Simulator(Scheduler(self.spec), self, self._observe)
        for partition in partitions:
            self.simulator.at(0, PartitionReady(partition.name, dict.fromkeys(keys, table)))

    def batch_ns(self, batch: DispatchBatch) -> int:
        return self._table.latency_ns(batch.rows)

    def arrivals(self, rate: float) -> Iterator[tuple[int, RequestArrived]]:
        gaps = random.Random(7)
        now_ns = 0
        for request in range(self._requests):
            now_ns += int(gaps.expovariate(rate) * NS_PER_S) + 1
            self._arrived_ns.append(now_ns)
            yield now_ns, RequestArrived(request, "p:1", 1, now_ns + SLO_NS)

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, CompleteRequest):
                self.latency_ns[decision.request] = now_ns - self._arrived_ns[decision.request]


def ratios(policy_of: Callable[[int, float], tuple[PolicyConfig, int | None]]) -> list[tuple[float, float]]:
    """Measured over predicted p50 and p99 of every case; `policy_of(batch, time to fill it)` gives policy and wait."""
    found = []
    loads = cycle(UTILISATIONS)
    for shape, servers, batch in product(SHAPES.values(), SERVERS, BATCHES):
        table = LatencyTable.from_ms({rows: shape(rows) for rows in range(1, batch + 1)})
        rate = next(loads) * servers * batch * NS_PER_S / table.latency_ns(batch)
        policy, max_wait_ns = policy_of(batch, batch / rate * NS_PER_S)
        run = Run(table, servers, policy)
        run.simulator.run(run.arrivals(rate))
        p50, p99 = np.percentile(run.latency_ns[WARM_UP:], (50, 99))
        predicted = stage_latency(table.latency_ns, batch, rate, servers, max_wait_ns)
        assert predicted is not None, "below the cap"
        found.append((p50 / predicted.p50_ns, p99 / predicted.p99_ns))
    return found


def filled(batch: int, fill_ns: float) -> tuple[PolicyConfig, int | None]:
    """A wait of twice the time to fill a batch: batches are almost always full."""
    return TimeoutConfig((batch,), int(2 * fill_ns)), None


def half_filled(batch: int, fill_ns: float) -> tuple[PolicyConfig, int | None]:
    """A wait of half the time to fill a batch: batches leave by timeout."""
    return TimeoutConfig((batch,), int(fill_ns / 2)), int(fill_ns / 2)


def eager(batch: int, fill_ns: float) -> tuple[PolicyConfig, int | None]:
    """Sluice's own policy."""
    return DeadlineSettings(), 0


@pytest.mark.parametrize("policy_of", [filled, half_filled, eager], ids=["full batches", "half-full", "deadline"])
def test_true_over_predicted(
    policy_of: Callable[[int, float], tuple[PolicyConfig, int | None]], request: pytest.FixtureRequest, report: Report
) -> None:
    """45 cases: three shapes of the latency table, 1 to 4 partitions, 2 to 32 rows, utilisation of 0.3 to 0.88."""
    name = request.node.callspec.id
    for percentile, values in zip(("p50", "p99"), np.array(ratios(policy_of)).T, strict=True):
        low, median, high = np.percentile(values, (5, 50, 95))
        line = f"{median:.2f} / {low:.2f} / {high:.2f} / {values.max():.2f}"
        report(f"stage {percentile}, {name}: true / predicted, median / p5 / p95 / max", line, "1.00")


@pytest.mark.parametrize("stages", [VOTE, DIAMOND, CHAINS], ids=["three at once", "diamond", "two chains"])
def test_pipelines_with_stages_side_by_side(
    stages: list[StageConfig], request: pytest.FixtureRequest, report: Report
) -> None:
    """18 cases: three shapes of the latency table, 1 or 2 partitions, batches of up to 8, three utilisations.

    Where stages share partitions their batches are smaller at middling loads, and the waits longer, than is predicted;
    at high loads the percentiles of stages one after another add up to too much.
    """
    found = []
    for shape, servers, utilisation in product(SHAPES.values(), (1, 2), (0.1, 0.4, 0.8)):
        table = LatencyTable.from_ms({rows: shape(rows) for rows in range(1, 9)})
        rate = utilisation * servers * 8 * NS_PER_S / table.latency_ns(8) / len(stages)
        run = Run(table, servers, DeadlineSettings(), stages, 1_500)
        run.simulator.run(run.arrivals(rate))
        tables = {model.key: {"any": table} for model in run.spec.models}
        demand = demand_table(run.spec, Observed(tables, {"p:1": rate}, {}))
        largest = [choices[-1:] for choices in pipeline_candidates(demand, run.pipeline)]
        predicted_ns = ExactPlanner(problem_of(demand, run.pipeline, largest, SLO_NS)).quickest().latency_ns
        found.append(np.percentile(run.latency_ns[WARM_UP:], 99) / predicted_ns)
    low, median, high = np.percentile(found, (5, 50, 95))
    line = f"{median:.2f} / {low:.2f} / {high:.2f} / {max(found):.2f}"
    report(f"pipeline p99, {request.node.callspec.id}: true / predicted, median / p5 / p95 / max", line, "1.00")
