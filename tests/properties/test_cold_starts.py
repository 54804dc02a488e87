"""On-demand loading under random faults: memory is never exceeded, and every request has one outcome."""

import random
from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import (
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
    WhenConfig,
)
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CombineOutputs,
    DispatchBatch,
    LoadModel,
    Settlement,
    UnloadModel,
)
from sluice.batcher.interface.events import (
    AnyEvent,
    Confidences,
    ModelLoaded,
    ModelLoadFailed,
    PartitionLost,
    PartitionReady,
    RequestArrived,
    RequestCancelled,
    ServingChanged,
)
from sluice.batcher.interface.residency_config import (
    Eviction,
    Footprint,
    Likelihood,
    Loading,
    OnMiss,
    Prewarm,
    ResidencyConfig,
)
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.measurement import ModelMemory
from sluice.mps.packing.peak_safe import PeakSafe
from sluice.mps.packing.policies import POLICIES
from tests.support.scheduling.builders import (
    CERTAINTY,
    MS,
    S,
    cascade,
    chain,
    ensemble,
    model,
    single,
    spec_of,
)

KEYS = tuple("abcdefgh")
NEW_KEYS = tuple("stu")
UNIT = 2 << 20
"""Unit of model sizes, so that random sizes differ noticeably."""
DAY_MS = 86_400_000
"""The longest time limit of a request; with it no request is rejected for its deadline."""
PIPELINES = (
    *(single(key) for key in KEYS),
    single("a", Late.EVICT, name="hard"),
    single("b", name="keyed", keyed=True),
    cascade("a", "b", "c", name="cascade"),
    cascade("d", "e", name="tight", late=Late.EVICT),
    chain("e", "f", "g", name="chain", slo_ns=60 * MS),
    ensemble("g", "h", name="ensemble"),
    PipelineConfig(
        "branches",
        (
            StageConfig("start", "a"),
            StageConfig("left", "c", when=WhenConfig(0, 0, 0.6)),
            StageConfig("right", "d", when=WhenConfig(0, 0, 0.4)),
            StageConfig("after left", "e", (1,)),
            StageConfig("after right", "f", when=WhenConfig(2, 0, 0.5)),
            StageConfig("last", "g", (4,)),
        ),
    ),
    PipelineConfig("family", (StageConfig("any", "f", variants=("f", "h"), accuracies=(0.9, 0.8)),), slo_ns=50 * MS),
)
RESIDENCIES = st.builds(
    ResidencyConfig,
    st.just(Loading.DEMAND),
    st.sampled_from(Eviction),
    st.sampled_from((0, 5 * MS, 100 * MS)),
    st.integers(1, 3),
    st.just(10 * MS),
    st.sampled_from(Prewarm),
    st.sampled_from(Likelihood),
    packing=st.sampled_from((None, POLICIES["exclusive"], POLICIES["best_fit"], PeakSafe(headroom_mib=2))),
    on_miss=st.sampled_from(OnMiss),
)


class Trial:
    """A seeded run on three partitions: a tenth of the loads fails, two partitions are lost, and one of them returns.

    Three models are added during the run. A model without a profile may turn out larger than
    its `sizes` when it is loaded.
    """

    def __init__(self, seed: int, residency: ResidencyConfig, memory: list[int], known: bool) -> None:
        self.random = random.Random(seed)
        self.tables = {key: LatencyTable.from_ms({1: self.random.uniform(0.5, 3), 4: 4}) for key in KEYS + NEW_KEYS}
        self.sizes = {key: self.random.randint(1, 3) for key in KEYS + NEW_KEYS}
        self.found = {key: size + self.random.choice((0, 0, 1, 2)) for key, size in self.sizes.items()}
        self.profiled = frozenset(KEYS if known else "")
        self.capacity = {f"p{number}": memory for number, memory in enumerate(memory)}
        self.held: dict[str, set[str]] = {name: set() for name in self.capacity}
        self.coming: dict[str, set[str]] = {name: set() for name in self.capacity}
        self.outcomes: Counter[int] = Counter()
        spec = self._spec(residency, known)
        self.scheduler = Scheduler(spec, LivePlanner())
        self.journal: list[bytes] = []
        self._writer = JournalWriter(self.journal.append, spec)
        self._steps = 0
        self.simulator = Simulator(
            self.scheduler,
            self,
            self._observe,
            build_plan=build_plan,
            tables=dict.fromkeys(self.capacity, self.tables),
            load_ns=lambda order: self.random.randint(2 * MS, 30 * MS),
            report=self._report,
        )

    def _report(self, time_ns: int, event: AnyEvent) -> AnyEvent:
        """Let a tenth of the loads fail, and report what the models of the others take."""
        if not isinstance(event, ModelLoaded):
            return event
        if time_ns % 10 == 0:
            return ModelLoadFailed(event.partition, event.model, "it is broken")
        return ModelLoaded(event.partition, event.model, event.table, ModelMemory(self.found[event.model] * UNIT))

    def _spec(self, residency: ResidencyConfig, known: bool) -> SchedulerSpec:
        models = [self._model(key, known) for key in KEYS]
        partitions = [PartitionConfig(name, "cpu1", memory_bytes=size * UNIT) for name, size in self.capacity.items()]
        return msgspec.structs.replace(spec_of(models, PIPELINES, partitions=partitions), residency=residency)

    def _model(self, key: str, known: bool) -> ScheduledModel:
        return msgspec.structs.replace(
            model(key, 4, confidences=(CERTAINTY,)),
            memory_bytes=self.sizes[key] * UNIT,
            footprints={"cpu1": Footprint(self.sizes[key] * UNIT, 0, 8 * MS, self.tables[key])} if known else {},
            pinned=key == "a",
            priority=int(key == "b"),
        )

    def _sent(self, event: RequestArrived, now_ns: int) -> RequestArrived:
        return event

    def run(self, requests: int) -> None:
        draw = self.random
        for name in self.capacity:
            self.simulator.at(0, PartitionReady(name, {}))
        now_ns = MS
        arrivals: list[tuple[int, AnyEvent]] = []
        for request in range(requests):
            now_ns += int(draw.expovariate(1 / (3 * MS)))
            pipeline = draw.choice(PIPELINES).name
            key = draw.choice(["x", "y"]) if pipeline == "keyed" else ""
            cost = draw.choice([None, None, None, 0.1])
            deadline_ns = now_ns + draw.choice([5, 20, 60, 500, DAY_MS]) * MS
            accuracy = draw.choice([0, 0.75, 0.85]) if pipeline == "family" else 0
            event = RequestArrived(
                request, pipeline, draw.randint(1, 3), deadline_ns, key, max_cost=cost, min_accuracy=accuracy
            )
            arrivals.append((now_ns, self._sent(event, now_ns)))
            if draw.random() < 0.05:
                self.simulator.at(now_ns + draw.randint(0, 20) * MS, RequestCancelled(request))
        lost = draw.sample(list(self.capacity), 2)
        for name in lost:
            lost_ns = draw.randint(1, now_ns)
            self.simulator.at(lost_ns, PartitionLost(name, "it died"))
            if name == lost[0]:
                self.simulator.at(lost_ns + draw.choice([50 * MS, 6 * S]), PartitionReady(name, {}))
        for key in NEW_KEYS:
            change = ServingChanged((self._model(key, known=False),), (single(key),))
            self.simulator.at(draw.randint(1, now_ns), change)
        self.simulator.run(arrivals)
        check_invariants(self.scheduler)
        assert replay(self.journal, LivePlanner()) is None

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        self._writer.record(now_ns, event, decisions)
        assert now_ns < 60 * S or not self.scheduler.requests, "what waits is not given up although nothing comes of it"
        if isinstance(event, PartitionLost | PartitionReady):
            self.held[event.partition].clear()
            self.coming[event.partition].clear()
        elif isinstance(event, ModelLoadFailed | ModelLoaded):
            self.coming[event.partition].discard(event.model)
            if isinstance(event, ModelLoadFailed):
                self.held[event.partition].discard(event.model)
            elif event.model not in self.profiled:
                self.sizes[event.model] = self.found[event.model]
        for decision in decisions:
            if isinstance(decision, LoadModel):
                held = self.held[decision.partition]
                assert decision.model not in held, f"{decision.model} is loaded twice"
                held.add(decision.model)
                self.coming[decision.partition].add(decision.model)
                assert self._taken(decision.partition) <= self.capacity[decision.partition], "memory is exceeded"
            elif isinstance(decision, UnloadModel):
                self.held[decision.partition].remove(decision.model)
            elif isinstance(decision, Settlement):
                self.outcomes[decision.request] += 1
            elif isinstance(decision, DispatchBatch):
                assert decision.model in self.held[decision.partition], "a batch goes where its model is not"
        for name, held in self.held.items():
            # A load in progress cannot be cancelled, and the pinned model stays.
            may_go = held - self.coming[name] - {"a"}
            assert not may_go or self._taken(name) <= self.capacity[name], f"memory is exceeded beside {may_go}"
        self._steps += 1
        if self._steps % 20 == 0:
            check_invariants(self.scheduler)

    def _taken(self, name: str) -> int:
        """Memory of the models that a partition holds or loads, by their known sizes."""
        return sum(self.sizes[key] for key in self.held[name])

    def batch_ns(self, batch: DispatchBatch) -> int:
        return self.tables[batch.model].latency_ns(batch.rows)

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        return (tuple(self.random.random() for _ in range(batch.rows)),)

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), RESIDENCIES, st.lists(st.integers(2, 8), min_size=3, max_size=3), st.booleans())
def test_memory_is_never_exceeded_and_every_request_has_one_outcome(
    seed: int, residency: ResidencyConfig, memory: list[int], known: bool
) -> None:
    trial = Trial(seed, residency, memory, known)
    trial.run(150)
    assert trial.outcomes == dict.fromkeys(range(150), 1)
    assert trial.scheduler.requests == {}
