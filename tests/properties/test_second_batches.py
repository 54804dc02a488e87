"""Second batches are revoked under random faults: every request has one outcome, and journals replay."""

import random
from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, StageConfig
from sluice.batcher.interface.decisions import AnyDecision, CombineOutputs, DispatchBatch, RevokeBatch, Settlement
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchRevoked,
    Confidences,
    PartitionLost,
    PartitionReady,
    RequestArrived,
    RequestCancelled,
)
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, model, spec_of

KINDS = {"cpu0": "cpu", "cpu1": "cpu", "gpu0": "gpu"}
TABLES = {
    "cpu": {"a": LatencyTable.from_ms({1: 4, 4: 9}), "b": LatencyTable.from_ms({1: 2, 4: 5})},
    "gpu": {"a": LatencyTable.from_ms({1: 2, 4: 3}), "b": LatencyTable.from_ms({1: 1, 4: 2})},
}
PIPELINES = [
    PipelineConfig("a", (StageConfig("a", "a"),)),
    PipelineConfig("b", (StageConfig("b", "b"),), late=Late.EVICT),
    PipelineConfig("ab", (StageConfig("a", "a"), StageConfig("b", "b", (0,)))),
]


class Straggling:
    """A seeded run on three partitions of two kinds: a tenth of the batches takes ten times as long."""

    def __init__(self, seed: int, rate: float) -> None:
        self.random = random.Random(seed)
        self.outcomes: Counter[int] = Counter()
        self.asked: set[int] = set()
        self.given_back = 0
        partitions = [PartitionConfig(name, kind, 1.0 + 3 * (kind == "gpu")) for name, kind in KINDS.items()]
        spec = spec_of([model("a", 4), model("b", 4)], PIPELINES, partitions=partitions)
        self.scheduler = Scheduler(spec, LivePlanner())
        self.journal: list[bytes] = []
        self._writer = JournalWriter(self.journal.append, spec)
        self.simulator = Simulator(self.scheduler, self, self._observe)
        for name, kind in KINDS.items():
            self.simulator.at(0, PartitionReady(name, dict(TABLES[kind])))
        self._rate = rate

    def run(self, requests: int) -> None:
        draw, now_ns, arrivals = self.random, MS, []
        for number in range(requests):
            now_ns += int(draw.expovariate(self._rate) * MS)
            deadline_ns = now_ns + draw.choice((15, 40, 200, 10_000)) * MS
            arrivals.append(
                (now_ns, RequestArrived(number, draw.choice(PIPELINES).name, draw.randint(1, 2), deadline_ns))
            )
            if draw.random() < 0.05:
                self.simulator.at(now_ns + draw.randint(0, 20) * MS, RequestCancelled(number))
        lost_ns = draw.randint(1, now_ns)
        self.simulator.at(lost_ns, PartitionLost("cpu1", "it died"))
        self.simulator.at(lost_ns + 30 * MS, PartitionReady("cpu1", dict(TABLES["cpu"])))
        self.simulator.run(arrivals)

    def batch_ns(self, batch: DispatchBatch) -> int:
        usual_ns = TABLES[KINDS[batch.partition]][batch.model].latency_ns(batch.run_rows)
        return usual_ns * (10 if self.random.random() < 0.1 else 1)

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        return ()

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        self._writer.record(now_ns, event, decisions)
        check_invariants(self.scheduler)
        if isinstance(event, BatchRevoked):
            assert event.batch in self.asked
            self.given_back += 1
        for decision in decisions:
            if isinstance(decision, RevokeBatch):
                assert decision.batch not in self.asked, "a batch is asked back once"
                self.asked.add(decision.batch)
            elif isinstance(decision, Settlement):
                self.outcomes[decision.request] += 1


@settings(deadline=None, max_examples=8)
@example(75225, 0.5)  # entries of a lost worker wait again, and their first timeouts may have been dropped or not
@given(st.integers(0, 10**6), st.sampled_from((0.2, 0.5, 1.0)))
def test_every_request_has_one_outcome_whatever_is_revoked(seed: int, rate: float) -> None:
    played = Straggling(seed, rate)
    played.run(120)
    assert played.outcomes == dict.fromkeys(range(120), 1)
    assert played.scheduler.requests == {}
    assert not played.scheduler.dispatcher.second_batches.waiting
    assert replay(played.journal, LivePlanner()) is None


def test_such_runs_have_batches_to_move() -> None:
    runs = [Straggling(seed, 0.5) for seed in range(4)]
    for played in runs:
        played.run(250)
    found = [played.scheduler.dispatcher.second_batches for played in runs]
    assert sum(each.moved for each in found) >= 4
    assert sum(played.given_back for played in runs) >= 4
