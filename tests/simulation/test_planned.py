"""Seeded runs with a planner: every request is served or rejected, for ordinary and for extreme inputs."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import msgspec
import pytest

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import (
    PartitionConfig,
    PipelineConfig,
    PolicyConfig,
    SchedulerSpec,
    StageConfig,
)
from sluice.batcher.interface.decisions import (
    AnyDecision,
    BuildPlan,
    CancelRequest,
    CombineOutputs,
    CompleteRequest,
    DispatchBatch,
    EvictRequest,
    FailRequest,
    LoadModel,
    RejectRequest,
    UnloadModel,
)
from sluice.batcher.interface.events import (
    AnyEvent,
    Confidences,
    PartitionLost,
    PartitionReady,
    PlanBuilt,
    RequestArrived,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.plan_data import Observed, Plan
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    CERTAINTY,
    GAINING,
    MS,
    US,
    S,
    cascade,
    chain,
    ensemble,
    model,
    single,
    spec_of,
)

SETTLING = CompleteRequest | RejectRequest | EvictRequest | FailRequest | CancelRequest
Tables = Mapping[str, Mapping[str, LatencyTable]]
FAST_AND_SLOW = (PartitionConfig("fast0", "fast", price=4.0), PartitionConfig("slow0", "slow"))


def slower(table: LatencyTable, times: int) -> LatencyTable:
    return LatencyTable(tuple((rows, times * latency_ns) for rows, latency_ns in table.cells))


def two_kinds(**tables: LatencyTable) -> Tables:
    """Tables by partition: the slow one takes three times as long."""
    fast = {f"{key}:1": table for key, table in tables.items()}
    return {"fast0": fast, "slow0": {key: slower(table, 3) for key, table in fast.items()}}


class Machine:
    """Batches take the time of the tables, and up to `spread` more; every row has the given `confidence`."""

    def __init__(self, tables: Tables, seed: int, confidence: float | None, spread: float = 0.1) -> None:
        self._spread = spread
        self._tables = tables
        self._random = random.Random(seed)
        self._confidence = confidence

    def batch_ns(self, batch: DispatchBatch) -> int:
        return int(
            self._tables[batch.partition][batch.model].latency_ns(batch.rows)
            * self._random.uniform(1, 1 + self._spread)
        )

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        sure = self._confidence
        return (tuple(self._random.random() if sure is None else sure for _ in range(batch.rows)),)

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()


class Run:
    """One simulation and its results."""

    def __init__(
        self,
        spec: SchedulerSpec,
        tables: Tables,
        build: Callable[[SchedulerSpec, Observed], Plan] | None = build_plan,
        *,
        confidence: float | None = None,
        spread: float = 0.1,
        check_every: int = 20,
    ) -> None:
        self.scheduler = Scheduler(spec, LivePlanner())
        self.outcomes: dict[int, Outcome] = {}
        self.decided: Counter[type[AnyDecision]] = Counter()
        self.rows: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self.plans: list[Plan | None] = []
        self.observed: list[Observed] = []
        self.journal: list[bytes] = []
        self._steps = 0
        self._check_every = check_every
        self._writer = JournalWriter(self.journal.append, spec)
        self.simulator = Simulator(
            self.scheduler, Machine(tables, 1, confidence, spread), self._observe, build_plan=build, tables=tables
        )
        for partition in spec.partitions:
            self.simulator.at(0, PartitionReady(partition.name, dict(tables[partition.name])))

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        self._writer.record(now_ns, event, decisions)
        if isinstance(event, PlanBuilt):
            self.plans.append(event.plan)
        for decision in decisions:
            self.decided[type(decision)] += 1
            if isinstance(decision, BuildPlan):
                self.observed.append(decision.observed)
            if isinstance(decision, DispatchBatch):
                self.rows[decision.partition] += decision.rows
                self.models[decision.model] += decision.rows
            if isinstance(decision, SETTLING):
                assert decision.request not in self.outcomes, f"request {decision.request} is settled twice"
                self.outcomes[decision.request] = decision.outcome
        self._steps += 1
        if self._steps % self._check_every == 0:
            check_invariants(self.scheduler)

    def counts(self, arrivals: Iterator[tuple[int, RequestArrived]]) -> Counter[Outcome]:
        """The outcomes of the requests; asserts that nothing is left of any."""
        events = list(arrivals)
        self.simulator.run(events)
        assert sorted(self.outcomes) == sorted(event.request for _, event in events)
        scheduler = self.scheduler
        check_invariants(scheduler)
        assert scheduler.requests == {}
        assert scheduler.dispatcher.batches == {}
        assert set(scheduler.queue_depths().values()) == {0}
        return Counter(self.outcomes.values())


def poisson(
    pipeline: str, rate: float, seconds: float, slo_ns: int, seed: int = 1, first: int = 0
) -> Iterator[tuple[int, RequestArrived]]:
    source = random.Random(seed)
    now_ns, request = 1, first
    while (now_ns := now_ns + int(source.expovariate(rate) * S)) < seconds * S:
        yield now_ns, RequestArrived(request, pipeline, 1, now_ns + slo_ns)
        request += 1


def planned_for(pipeline: PipelineConfig, slo_ns: int) -> PipelineConfig:
    return msgspec.structs.replace(pipeline, slo_ns=slo_ns)


# -- what a plan has to cope with


@pytest.mark.parametrize(("confidence", "probability"), [(1.0, 0.0), (0.0, 1.0)])
def test_a_stage_that_never_runs_and_one_that_always_does_are_planned_for(
    confidence: float, probability: float
) -> None:
    spec = spec_of(
        [model("small:1", confidences=(CERTAINTY,)), model("large:1")],
        [planned_for(cascade("small:1", "large:1"), 30 * MS)],
        partitions=FAST_AND_SLOW,
    )
    run = Run(spec, two_kinds(small=GAINING, large=LatencyTable.from_ms({1: 2, 8: 5})), confidence=confidence)
    counts = run.counts(poisson("cascade:1", 150, 12, 30 * MS))
    assert counts[Outcome.COMPLETED] >= 0.99 * counts.total()
    assert run.scheduler.pipelines["cascade:1"].stages[1].run_probability == pytest.approx(probability, abs=0.001)
    assert run.decided[BuildPlan] >= 2


def test_a_cascade_whose_traffic_turns_easy_keeps_its_plans() -> None:
    """The share of its second stage falls by a two-hundredth with each request, and rates fall while nothing comes."""
    spec = spec_of(
        [model("small:1", confidences=(CERTAINTY,)), model("large:1")],
        [planned_for(cascade("small:1", "large:1"), 30 * MS), planned_for(single("large:1"), 30 * MS)],
        partitions=("cpu0",),
    )
    run = Run(spec, {"cpu0": {"small:1": GAINING, "large:1": GAINING}}, confidence=1.0, check_every=200)
    counts = run.counts(poisson("cascade:1", 3_000, 16, 30 * MS))
    assert counts[Outcome.COMPLETED] >= 0.95 * counts.total()
    share = run.scheduler.pipelines["cascade:1"].stages[1].run_probability
    assert 0 < share < 1e-100
    assert len(run.plans) >= 2
    last = build_plan(spec, msgspec.structs.replace(run.observed[-1], probabilities={"cascade:1": (1.0, share)}))
    for plan in (*run.plans, last):
        assert plan is not None
        assert plan.failed == {}
        assert [each.pipeline for each in plan.pipelines] == ["cascade:1", "large:1"]
    assert [each.feasible for each in last.pipelines] == [True, True]


def test_a_pipeline_of_forty_stages_is_served() -> None:
    spec = spec_of([model("m:1")], [chain(*["m:1"] * 40, slo_ns=200 * MS)], partitions=FAST_AND_SLOW)
    run = Run(spec, two_kinds(m=GAINING))
    counts = run.counts(poisson("chain:1", 20, 3, 400 * MS))
    assert counts[Outcome.COMPLETED] >= 0.95 * counts.total()
    plan = run.plans[-1]
    assert plan is not None
    assert len(plan.pipelines[0].stages) == 40


def test_a_stage_with_four_thousand_configurations_is_served() -> None:
    """64 batch sizes on 64 kinds of partition."""
    sizes = range(1, 65)
    partitions = [PartitionConfig(f"p{number}", f"kind{number}", price=1 + number / 64) for number in range(64)]
    tables = {
        f"p{number}": {
            key: LatencyTable(tuple((rows, (500 - 5 * number + 20 * rows) * US) for rows in sizes))
            for key in ("a:1", "b:1")
        }
        for number in range(64)
    }
    spec = spec_of([model("a:1", 64), model("b:1", 64)], [chain("a:1", "b:1", slo_ns=20 * MS)], partitions=partitions)
    run = Run(spec, tables, check_every=100)
    counts = run.counts(poisson("chain:1", 400, 1.5, 20 * MS))
    assert counts[Outcome.COMPLETED] >= 0.99 * counts.total()
    assert run.decided[BuildPlan] >= 2


def test_an_objective_that_no_plan_meets_gets_the_quickest_plan() -> None:
    spec = spec_of([model("m:1")], [planned_for(single("m:1"), 100 * US)], partitions=FAST_AND_SLOW)
    run = Run(spec, two_kinds(m=GAINING))
    counts = run.counts(poisson("m:1", 100, 2, 20 * MS))
    assert counts[Outcome.COMPLETED] == counts.total()
    assert run.plans
    assert [plan is not None and plan.pipelines[0].feasible for plan in run.plans] == [False] * len(run.plans)
    assert [plan is not None and plan.pipelines[0].latency_ns > 100 * US for plan in run.plans] == [True] * len(
        run.plans
    )


def test_a_load_beyond_the_capacity_is_planned_for() -> None:
    spec = spec_of([model("m:1")], [planned_for(single("m:1"), 20 * MS)], partitions=FAST_AND_SLOW)
    run = Run(spec, two_kinds(m=GAINING), check_every=500)
    counts = run.counts(poisson("m:1", 20_000, 1.5, 20 * MS))
    # The fast partition completes 5 500 rows a second, and the slow one a third of that.
    assert counts[Outcome.COMPLETED] >= 1.5 * 6_000
    assert counts[Outcome.REJECTED_DEADLINE] >= 1.5 * 8_000


def test_the_scheduler_works_without_plans_that_cannot_be_built() -> None:
    spec = spec_of([model("m:1")], [planned_for(single("m:1"), 20 * MS)], partitions=FAST_AND_SLOW)
    counts = Run(spec, two_kinds(m=GAINING), None).counts(poisson("m:1", 500, 3, 20 * MS))
    assert counts[Outcome.COMPLETED] == counts.total()


# -- partitions that are lost, and models that move


def moving(spec: SchedulerSpec, observed: Observed) -> Plan:
    """Every plan moves the models: one partition holds all, and the other one only one of them."""
    keys = tuple(sorted(observed.tables))
    names = [partition.name for partition in spec.partitions]
    turn = int(sum(observed.rates.values())) % len(names)
    held = {name: keys if number == turn else keys[:1] for number, name in enumerate(names)}
    return msgspec.structs.replace(build_plan(spec, observed), residency=held)


@pytest.mark.parametrize("late", list(Late))
@pytest.mark.parametrize("seed", range(4))
def test_partitions_may_be_lost_at_any_time_while_models_move(seed: int, late: Late) -> None:
    pipelines = [
        planned_for(cascade("small:1", "large:1", late=late), 30 * MS),
        msgspec.structs.replace(single("small:1", late, weight=3), slo_ns=10 * MS),
    ]
    spec = spec_of([model("small:1", confidences=(CERTAINTY,)), model("large:1")], pipelines, partitions=FAST_AND_SLOW)
    tables = two_kinds(small=GAINING, large=LatencyTable.from_ms({1: 2, 8: 5}))
    run = Run(spec, tables, moving)
    source = random.Random(seed)
    for _ in range(6):
        lost_ns = source.randrange(1, 5 * S)
        name = source.choice(("fast0", "slow0"))
        run.simulator.at(lost_ns, PartitionLost(name, "killed"))
        # The partition returns with its initial models, or with half of them.
        keys = source.choice([("large:1", "small:1"), ("small:1",)])
        ready = PartitionReady(name, {key: tables[name][key] for key in keys})
        run.simulator.at(lost_ns + source.randrange(1, 500 * MS), ready)
    both = sorted([*poisson("cascade:1", 150, 5, 60 * MS, seed), *poisson("small:1", 300, 5, 40 * MS, seed, 10_000)])
    counts = run.counts(iter(both))
    assert counts[Outcome.COMPLETED] >= 0.6 * counts.total(), f"seed {seed}: {dict(counts)}"
    assert run.decided[LoadModel] >= 1
    assert run.decided[UnloadModel] >= 1
    assert replay(run.journal, LivePlanner()) is None


def test_requests_that_are_evicted_when_late_are_in_time_while_variants_change_and_models_move() -> None:
    """One variant is fast for single rows, the other in large batches; each partition has memory for one of them."""
    keys = ("quick:1", "bulk:1", "tail:1")
    models = [msgspec.structs.replace(model(key, 16), memory_bytes=1) for key in keys]
    stages = (StageConfig("s", "quick:1", variants=keys[:2]), StageConfig("tail", "tail:1", (0,)))
    pipeline = PipelineConfig("p:1", stages, Late.EVICT, slo_ns=80 * MS)
    partitions = [PartitionConfig(name, "cpu1", memory_bytes=2) for name in ("a", "b")]
    held = {
        "quick:1": LatencyTable.from_ms({1: 3, 2: 6, 4: 12, 8: 24, 16: 48}),
        "bulk:1": LatencyTable.from_ms({1: 8, 2: 8, 4: 9, 8: 10, 16: 14}),
        "tail:1": LatencyTable.from_ms({1: 1, 2: 1.1, 4: 1.3, 8: 1.7, 16: 2.5}),
    }
    run = Run(spec_of(models, [pipeline], partitions=partitions), {"a": held, "b": held}, spread=0.0)
    calm = [*poisson("p:1", 20, 4, 80 * MS)]
    busy = [(4 * S + now_ns, moved(event, 4 * S)) for now_ns, event in poisson("p:1", 600, 4, 80 * MS, 2, 10_000)]
    calm_again = [(8 * S + now_ns, moved(event, 8 * S)) for now_ns, event in poisson("p:1", 20, 4, 80 * MS, 3, 20_000)]
    counts = run.counts(iter([*calm, *busy, *calm_again]))
    assert counts.keys() <= {Outcome.COMPLETED, Outcome.REJECTED_DEADLINE}, dict(counts)
    assert counts[Outcome.COMPLETED] >= 0.8 * counts.total(), dict(counts)
    chosen = [plan.pipelines[0].stages[0].model for plan in run.plans if plan is not None and plan.pipelines]
    assert {"quick:1", "bulk:1"} == set(chosen)
    assert min(run.models["quick:1"], run.models["bulk:1"]) > 50
    assert run.decided[UnloadModel] >= 1


def moved(event: RequestArrived, later_ns: int) -> RequestArrived:
    return msgspec.structs.replace(event, deadline_ns=event.deadline_ns + later_ns)


# -- what it is for


def test_with_slack_the_cheap_partition_does_most_of_the_work_and_without_it_the_fast_one() -> None:
    spec = spec_of([model("m:1")], [planned_for(single("m:1"), 50 * MS)], partitions=FAST_AND_SLOW)
    rows: dict[int, Counter[str]] = {}
    for slo_ns in (50 * MS, 3 * MS):
        run = Run(spec, two_kinds(m=LatencyTable.from_ms({1: 1, 8: 2})))
        counts = run.counts(poisson("m:1", 150, 4, slo_ns))
        assert counts[Outcome.COMPLETED] >= 0.98 * counts.total()
        rows[slo_ns] = run.rows
    assert rows[50 * MS]["slow0"] > 1.5 * rows[50 * MS]["fast0"]
    assert rows[3 * MS]["fast0"] > 20 * rows[3 * MS]["slow0"]


def test_a_pipeline_with_far_deadlines_is_not_starved_by_an_overloaded_one_with_tight_ones() -> None:
    """Equal weights: one pipeline offers four times the capacity, and the other half of it, which is its share."""
    pipelines = [single("m:1", name="greedy:1"), single("m:1", name="modest:1")]
    run = Run(spec_of([model("m:1")], pipelines), {"cpu0": {"m:1": GAINING}}, check_every=1_000)
    greedy = poisson("greedy:1", 22_000, 1, 20 * MS)
    modest = list(poisson("modest:1", 2_800, 1, 300 * MS, 2, 1_000_000))
    run.counts(iter(sorted([*greedy, *modest])))
    kept = sum(run.outcomes[event.request] is Outcome.COMPLETED for _, event in modest)
    assert kept >= 0.99 * len(modest)


def test_models_side_by_side_on_one_partition_are_admitted_as_far_as_all_of_them_can_be_in_time() -> None:
    """Three models of 5 ms each with an objective of 25 ms; the best batches complete 220 rows a second of each."""
    table = LatencyTable.from_ms({1: 5, 2: 6, 4: 8, 8: 12})
    keys = ("a:1", "b:1", "c:1")
    spec = spec_of([model(key) for key in keys], [planned_for(ensemble(*keys), 25 * MS)])
    run = Run(spec, {"cpu0": dict.fromkeys(keys, table)}, check_every=500)
    counts = run.counts(poisson("ensemble:1", 150, 4, 25 * MS))
    assert counts[Outcome.COMPLETED] >= 0.4 * counts.total(), dict(counts)
    assert counts[Outcome.COMPLETED_LATE] <= 0.1 * counts.total(), dict(counts)


# -- against fixed assignments

TIMED = {
    "encode:1": LatencyTable.from_ms({1: 6, 2: 7, 4: 9, 8: 13, 16: 21}),
    "rank:1": LatencyTable.from_ms({1: 4, 2: 6, 4: 10, 8: 18, 16: 34}),
}
ON_BOTH = {"fast0": TIMED, "slow0": {key: slower(table, 3) for key, table in TIMED.items()}}
PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    "fast": {"fast0": ("encode:1", "rank:1")},
    "slow": {"slow0": ("encode:1", "rank:1")},
    "both": {"fast0": ("encode:1", "rank:1"), "slow0": ("encode:1", "rank:1")},
    "encode fast, rank slow": {"fast0": ("encode:1",), "slow0": ("rank:1",)},
    "encode slow, rank fast": {"fast0": ("rank:1",), "slow0": ("encode:1",)},
}


def most(place: str, batch: int) -> float:
    """Upper bound on an assignment's requests a second: full batches without pauses."""
    seconds = {
        name: sum(ON_BOTH[name][key].latency_ns(batch) for key in keys) / batch / S
        for name, keys in PLACES[place].items()
    }
    return sum(1 / each for each in seconds.values()) if place == "both" else 1 / max(seconds.values())


def in_time(place: str, max_batch: int, policy: PolicyConfig, rate: float, seed: int) -> int:
    """Requests answered within 150 ms, of 3 s of arrivals."""
    spec = spec_of(
        [model(key, max_batch, policy) for key in TIMED],
        [chain("encode:1", "rank:1", slo_ns=150 * MS)],
        partitions=[PartitionConfig(name, name.rstrip("0")) for name in PLACES[place]],
    )
    tables = {name: {key: ON_BOTH[name][key] for key in keys} for name, keys in PLACES[place].items()}
    run = Run(spec, tables, check_every=10_000)
    return run.counts(poisson("chain:1", rate, 3, 150 * MS, seed))[Outcome.COMPLETED]


@pytest.mark.parametrize("rate", [200.0, 250.0, 290.0, 330.0, 400.0])
def test_as_many_requests_are_in_time_as_by_any_fixed_batch_size_and_partition(rate: float) -> None:
    """Two unequal partitions: 388 requests a second at most in the largest batches, and 344 in batches of 8.

    A plan may be late by chance, as the percentile of the objective allows: here by 1 of 1000 requests, where the best
    fixed assignment has all of them in time.
    """
    seeds = (0, 1, 2)
    planned = sum(in_time("both", 16, DeadlineSettings(), rate, seed) for seed in seeds)
    for place in PLACES:
        for batch in (1, 2, 4, 8, 16):
            if most(place, batch) * 3 * len(seeds) >= planned:
                fixed = TimeoutConfig((batch,), 20 * MS)
                found = sum(in_time(place, batch, fixed, rate, seed) for seed in seeds)
                assert planned >= 0.999 * found, f"{place}, batches of {batch}: {found} of {rate:g} requests a second"
