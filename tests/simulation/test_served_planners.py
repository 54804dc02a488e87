"""Whole runs by every planner that a server can go by, with a kind of partitions that is lost and comes back."""

import random
from collections import Counter

import msgspec
import pytest

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CompleteRequest,
    DispatchBatch,
    EvictRequest,
    FailRequest,
    RejectRequest,
)
from sluice.batcher.interface.events import AnyEvent, PartitionLost, PartitionReady, PlanBuilt, RequestArrived
from sluice.batcher.interface.plan_data import FixedOption
from sluice.batcher.interface.planner_config import PlannerConfig, Replan, ServedPlanner
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.loadgen.papers.engines.virtual_gateway import TabledService
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, chain, ensemble, model, spec_of

KEYS = {"a": (4, 3), "b": (8, 6), "c": (3, 4)}
SPEEDS = {"small": 1.0, "large": 2.4}
PARTITIONS = [
    PartitionConfig(f"{kind}{number}", kind, price, share)
    for kind, price, share in (("small", 1.0, 0.1), ("large", 3.0, 0.3))
    for number in range(3)
]
TABLES = {
    partition.name: {
        key: LatencyTable.from_ms({rows: (base + each * rows) / SPEEDS[partition.kind] for rows in (1, 2, 4, 8)})
        for key, (base, each) in KEYS.items()
    }
    for partition in PARTITIONS
}
LARGE = [partition.name for partition in PARTITIONS if partition.kind == "large"]
REQUESTS = 250


class Run:
    """One run, and what was seen in it."""

    def __init__(self, planner: PlannerConfig, seed: int) -> None:
        pipelines = [chain(*KEYS, slo_ns=90 * MS), msgspec.structs.replace(ensemble("a", "b"), slo_ns=60 * MS)]
        spec = spec_of([model(key) for key in KEYS], pipelines, partitions=PARTITIONS)
        spec = msgspec.structs.replace(spec, planner=planner)
        self.journal: list[bytes] = []
        self.outcomes: Counter[int] = Counter()
        self.plans = 0
        self.unplanned = 0
        self._kinds = {partition.name: partition.kind for partition in PARTITIONS}
        self._pipeline_of: dict[int, str] = {}
        self._writer = JournalWriter(lambda line: self.journal.append(bytes(line)), spec)
        self.scheduler = Scheduler(spec, LivePlanner())
        simulator = Simulator(
            self.scheduler, TabledService(TABLES), self._observe, build_plan=build_plan, tables=TABLES
        )
        for name, tables in TABLES.items():
            simulator.at(0, PartitionReady(name, tables))
        for name in LARGE:
            simulator.at(3 * S, PartitionLost(name, "killed"))
            simulator.at(4 * S, PartitionReady(name, TABLES[name]))
        chance, now_ns, arrivals = random.Random(seed), 0, []
        for number in range(REQUESTS):
            now_ns += round(chance.expovariate(1 / 20) * MS)
            name = chance.choice([pipeline.name for pipeline in pipelines])
            arrivals.append((now_ns, RequestArrived(number, name, 1, now_ns + chance.choice((60, 90, 200)) * MS)))
        simulator.run(arrivals)

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        self._writer.record(now_ns, event, decisions)
        check_invariants(self.scheduler)
        match event:
            case PlanBuilt(plan=plan) if plan is not None:
                self.plans += 1
                assert plan.failed == {}
            case RequestArrived():
                self._pipeline_of[event.request] = event.pipeline
        for decision in decisions:
            match decision:
                case CompleteRequest() | RejectRequest() | EvictRequest() | FailRequest():
                    self.outcomes[decision.request] += 1
                case DispatchBatch():
                    self._check(decision)

    def _check(self, batch: DispatchBatch) -> None:
        """A batch of a stage with a fixed option is of its kind and size, unless it is counted as an exception."""
        first = batch.members[0]
        rule = self.scheduler.pipelines[self._pipeline_of[first.request]].stages[first.stage].rule
        if isinstance(rule, FixedOption):
            self.unplanned += self._kinds[batch.partition] != rule.kind or batch.rows > rule.rows


@pytest.mark.parametrize("replan", Replan)
@pytest.mark.parametrize("name", ServedPlanner)
def test_every_request_has_one_outcome_and_the_journal_replays(name: ServedPlanner, replan: Replan) -> None:
    run = Run(PlannerConfig(name.value, replan, seed=1), seed=7)
    assert run.outcomes == dict.fromkeys(range(REQUESTS), 1)
    assert run.plans >= 2
    # Batches that failed run again as they were, wherever there is a partition.
    assert run.unplanned <= run.scheduler.dispatcher.rules.fallbacks.total() + len(LARGE) * 2
    assert replay(run.journal, LivePlanner()) is None
