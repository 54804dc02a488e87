"""Loads for later stages of random branching pipelines: one for each model, each used or counted as missed."""

import random
from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, StageConfig, WhenConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CombineOutputs,
    DispatchBatch,
    LoadModel,
    Settlement,
    UnloadModel,
)
from sluice.batcher.interface.events import AnyEvent, Confidences, PartitionReady, RequestArrived, RequestCancelled
from sluice.batcher.interface.residency_config import Footprint, Loading, OnMiss, Prewarm, ResidencyConfig
from sluice.batcher.residency.on_demand import OnDemandLoader
from sluice.batcher.scheduler.scheduler import Scheduler
from tests.support.scheduling.builders import CERTAINTY, MS, ONE, S, model, spec_of

RESIDENCIES = st.builds(
    ResidencyConfig,
    st.just(Loading.DEMAND),
    prewarm=st.sampled_from((Prewarm.JIT, Prewarm.SPECULATIVE)),
    min_probability=st.sampled_from((0.0, 0.6)),
    on_miss=st.sampled_from(OnMiss),
)


class BranchingTrial:
    """A seeded run of one pipeline, whose models have a partition each that they are loaded to when they are needed."""

    def __init__(self, seed: int, stages: int, residency: ResidencyConfig) -> None:
        self.random = draw = random.Random(seed)
        keys = [f"m{number}" for number in range(stages)]
        models = [
            msgspec.structs.replace(
                model(key, 2, confidences=(CERTAINTY,)),
                memory_bytes=1,
                footprints={"cpu1": Footprint(1, load_ns=8 * MS, table=ONE)},
            )
            for key in keys
        ]
        configs = [StageConfig(keys[0], keys[0])]
        for number in range(1, stages):
            before = draw.randrange(number)
            if draw.random() < 0.6:
                configs.append(StageConfig(keys[number], keys[number], when=WhenConfig(before, 0, draw.random())))
            else:
                configs.append(StageConfig(keys[number], keys[number], (before,)))
        spec = spec_of(
            models,
            [PipelineConfig("branching", tuple(configs))],
            partitions=[PartitionConfig(key, "cpu1", memory_bytes=1) for key in keys],
        )
        spec = msgspec.structs.replace(spec, residency=residency)
        self.scheduler = Scheduler(spec)
        self.journal: list[bytes] = []
        self._writer = JournalWriter(self.journal.append, spec)
        self.outcomes, self.loads, self.ran = Counter[int](), Counter[str](), Counter[str]()
        self.simulator = Simulator(
            self.scheduler,
            self,
            self._observe,
            tables={key: dict.fromkeys(keys, ONE) for key in keys},
            load_ns=lambda order: draw.randint(4, 16) * MS,
        )
        for key in keys:
            self.simulator.at(0, PartitionReady(key, {}))

    def run(self, requests: int) -> None:
        now_ns, arrivals = MS, list[tuple[int, AnyEvent]]()
        for request in range(requests):
            now_ns += self.random.choice((0, MS, 7 * MS, 60 * MS))
            arrivals.append((now_ns, RequestArrived(request, "branching", self.random.randint(1, 2), now_ns + S)))
            if self.random.random() < 0.2:
                self.simulator.at(now_ns + self.random.randint(0, 20) * MS, RequestCancelled(request))
        self.simulator.run(arrivals)

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        self._writer.record(now_ns, event, decisions)
        check_invariants(self.scheduler)
        for decision in decisions:
            assert not isinstance(decision, UnloadModel), "there is room for all"
            if isinstance(decision, Settlement):
                self.outcomes[decision.request] += 1
            elif isinstance(decision, LoadModel):
                self.loads[decision.model] += 1
            elif isinstance(decision, DispatchBatch):
                self.ran[decision.model] += 1

    def batch_ns(self, batch: DispatchBatch) -> int:
        return self.random.randint(1, 4) * MS

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        return (tuple(self.random.random() for _ in range(batch.rows)),)

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 7), RESIDENCIES)
def test_each_model_is_loaded_once_and_what_was_loaded_ahead_is_used_or_counted_as_missed(
    seed: int, stages: int, residency: ResidencyConfig
) -> None:
    trial = BranchingTrial(seed, stages, residency)
    trial.run(8)
    assert trial.outcomes == dict.fromkeys(range(8), 1)
    assert set(trial.loads.values()) <= {1}
    loader = trial.scheduler.served.loader
    assert isinstance(loader, OnDemandLoader)
    foresight = loader.foresight
    assert (foresight.undecided, foresight.lost) == (0, 0)
    assert foresight.hits + foresight.late + foresight.missed == loader.prewarms
    unused = [key for key in trial.loads if not trial.ran[key] and key != "m0"]
    assert len(unused) <= foresight.missed
    assert replay(trial.journal) is None
