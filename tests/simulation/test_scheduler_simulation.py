"""Seeded runs of the scheduler in virtual time, with and without faults."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import Limits, PipelineConfig, PolicyConfig, SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision, CombineOutputs, DispatchBatch, Settlement
from sluice.batcher.interface.events import (
    AnyEvent,
    Confidences,
    PartitionLost,
    PartitionReady,
    RequestArrived,
    RequestCancelled,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.policies.no_batching import NoBatchingSettings
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    CERTAINTY,
    MS,
    S,
    cascade,
    ensemble,
    model,
    single,
    spec_of,
)

MLP = LatencyTable.from_ms({1: 0.67, 2: 0.8, 4: 1.03, 8: 1.66, 16: 2.46, 32: 3.81, 64: 6.01})
LARGE = LatencyTable.from_ms({1: 2, 2: 2.6, 4: 3.8, 8: 6.5})
TABLES = {"m:1": MLP, "large:1": LARGE}
MODELS = (model("m:1", 64, confidences=(CERTAINTY,)), model("large:1", 8))
PIPELINES = {
    "single": single("m:1"),
    "hard": single("m:1", Late.EVICT, name="hard:1"),
    "cascade": cascade("m:1", "large:1", below=0.2),
    "ensemble": ensemble("m:1", "large:1", late=Late.EVICT),
}
RATES = {"underload": 300, "overload": 20_000}
SEEDS = (1, 2, 3)


class Machine:
    """Batches take the time of the table and up to a fifth more; confidences are uniform."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def batch_ns(self, batch: DispatchBatch) -> int:
        return int(TABLES[batch.model].latency_ns(batch.rows) * self._random.uniform(1, 1.2))

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        return (tuple(self._random.random() for _ in range(batch.rows)),)

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()


class StoppedMachine(Machine):
    """As `Machine`, with a worker that stands still for 1.5 s every two seconds: the one and the other in turn."""

    simulator: Simulator

    def batch_ns(self, batch: DispatchBatch) -> int:
        turn, since_ns = divmod(self.simulator.now_ns, 2 * S)
        still_ns = 1_500 * MS - since_ns if batch.partition == f"cpu{turn % 2}" else 0
        return max(still_ns, 0) + super().batch_ns(batch)


class Run:
    """One simulation and its results."""

    def __init__(self, spec: SchedulerSpec, seed: int, machine: Machine | None = None) -> None:
        self.scheduler = Scheduler(spec)
        self.journal: list[bytes] = []
        self.outcomes: dict[int, Outcome] = {}
        self.settled_ns: dict[int, int] = {}
        self._writer = JournalWriter(self.journal.append, spec)
        self.simulator = Simulator(self.scheduler, machine or Machine(seed), self._observe)
        for partition in spec.partitions:
            self.simulator.at(
                0, PartitionReady(partition.name, {model.key: TABLES[model.key] for model in spec.models})
            )

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        self._writer.record(now_ns, event, decisions)
        for decision in decisions:
            if isinstance(decision, Settlement):
                assert decision.request not in self.outcomes, f"request {decision.request} is settled twice"
                self.outcomes[decision.request] = decision.outcome
                self.settled_ns[decision.request] = now_ns
        if len(self.journal) % 50 == 0:
            check_invariants(self.scheduler)


def arrivals(seed: int, pipeline: str, rate: float, count: int, slo_ns: int) -> Iterator[tuple[int, RequestArrived]]:
    """Poisson arrivals of one to four rows."""
    source = random.Random(seed)
    now_ns = 1
    for number in range(count):
        now_ns += int(source.expovariate(rate) * S)
        rows = source.choice((1, 1, 1, 4))
        yield now_ns, RequestArrived(number, pipeline, rows, now_ns + slo_ns, memory_bytes=1)


def simulate(pipeline: PipelineConfig, rate: float, seed: int, *, faults: bool, count: int = 1_000) -> Run:
    """Run to the end; with `faults`, workers die and come back, and clients cancel requests."""
    spec = spec_of(MODELS, [pipeline], partitions=("cpu0", "cpu1"), limits=Limits(queue_requests=200))
    run = Run(spec, seed)
    source = random.Random(-seed)
    if faults:
        length_ns = int(count / rate * S)
        for _ in range(3):
            lost_ns = source.randrange(1, length_ns)
            name = source.choice(("cpu0", "cpu1"))
            run.simulator.at(lost_ns, PartitionLost(name, "killed"))
            run.simulator.at(lost_ns + source.randrange(length_ns), PartitionReady(name, TABLES))
    events: list[tuple[int, AnyEvent]] = []
    for now_ns, event in arrivals(seed, pipeline.name, rate, count, 30 * MS):
        events.append((now_ns, event))
        if faults and source.random() < 0.05:
            run.simulator.at(now_ns + source.randrange(10 * MS), RequestCancelled(event.request))
    run.simulator.run(events)
    return run


@pytest.mark.parametrize("faults", [False, True], ids=["sound", "faults"])
@pytest.mark.parametrize("load", RATES)
@pytest.mark.parametrize("kind", PIPELINES)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_has_one_outcome_and_nothing_is_left(seed: int, kind: str, load: str, faults: bool) -> None:
    again = f"{__file__} -k '{'faults' if faults else 'sound'}-{load}-{kind}-{seed}'"
    run = simulate(PIPELINES[kind], RATES[load], seed, faults=faults)
    counts = Counter(run.outcomes.values())
    message = f"seed {seed}, outcomes {dict(counts)}; to see it again: pytest {again}"
    assert sorted(run.outcomes) == list(range(1_000)), message
    scheduler = run.scheduler
    check_invariants(scheduler)
    assert scheduler.requests == {}, message
    assert scheduler.dispatcher.batches == {}, message
    assert scheduler.memory.used_bytes == 0, message
    assert set(scheduler.queue_depths().values()) == {0}, message
    answered = counts[Outcome.COMPLETED] + counts[Outcome.COMPLETED_LATE]
    if load == "underload" and not faults:
        assert counts[Outcome.COMPLETED] >= 990, message
    if load == "overload":
        assert counts[Outcome.COMPLETED] >= 10, message
        assert answered < 1_000, message
    if not faults:
        assert not counts.keys() & {Outcome.FAILED_WORKER_LOST, Outcome.FAILED_UNAVAILABLE}, message


@pytest.mark.parametrize("kind", PIPELINES)
def test_a_run_replays_identically_and_another_run_of_the_seed_is_the_same(kind: str) -> None:
    run = simulate(PIPELINES[kind], 5_000, seed=7, faults=True, count=400)
    assert replay(run.journal) is None
    assert simulate(PIPELINES[kind], 5_000, seed=7, faults=True, count=400).journal == run.journal
    assert simulate(PIPELINES[kind], 5_000, seed=8, faults=True, count=400).journal != run.journal


@pytest.mark.parametrize(("slo_ns", "most_late"), [(60 * MS, 6), (500 * MS, 0)])
@pytest.mark.parametrize("kind", PIPELINES)
def test_thirty_stopped_workers_cost_hardly_a_request_its_deadline(kind: str, slo_ns: int, most_late: int) -> None:
    pipeline = PIPELINES[kind]
    machine = StoppedMachine(seed=1)
    run = Run(spec_of(MODELS, [pipeline], partitions=("cpu0", "cpu1")), 1, machine)
    machine.simulator = run.simulator
    run.simulator.run(arrivals(1, pipeline.name, 100, 6_000, slo_ns))
    assert run.simulator.now_ns > 59 * S
    counts = Counter(run.outcomes.values())
    assert counts.total() == 6_000
    assert counts[Outcome.COMPLETED] >= 6_000 - most_late
    assert run.scheduler.memory.used_bytes == 0
    assert run.scheduler.dispatcher.batches == {}
    assert replay(run.journal) is None


def rates_at(requests_per_s: int, policy: PolicyConfig) -> tuple[float, float]:
    """Requests a second within 100 ms, and in all, of one partition under 0.6 s of load."""
    run = Run(spec_of([model("m:1", 64, policy)]), seed=1)
    run.simulator.run(
        (at_ns, RequestArrived(number, "m:1", 1, at_ns + 100 * MS))
        for number, at_ns in enumerate(range(0, 600 * MS, S // requests_per_s))
    )
    counts = Counter(run.outcomes.values())
    ended_s = max(run.settled_ns.values()) / S
    in_time = counts[Outcome.COMPLETED]
    return in_time / ended_s, (in_time + counts[Outcome.COMPLETED_LATE]) / ended_s


def test_batching_by_deadline_serves_at_least_five_times_what_single_requests_reach() -> None:
    _, one_by_one = rates_at(11_000, NoBatchingSettings())
    assert 1_200 <= one_by_one <= 1_500
    in_time, _ = rates_at(11_000, DeadlineSettings())
    assert in_time >= 5 * one_by_one


@pytest.mark.parametrize(
    ("policy", "limit"), [(NoBatchingSettings(), 1_350), (TimeoutConfig(), 9_600), (DeadlineSettings(), 9_600)]
)
def test_twice_its_capacity_does_not_bring_a_partition_down(policy: PolicyConfig, limit: int) -> None:
    in_time, _ = rates_at(2 * limit, policy)
    assert in_time >= limit / 2


@pytest.mark.parametrize("seed", SEEDS)
def test_at_low_load_a_request_takes_no_more_than_its_service_time(seed: int) -> None:
    run = Run(spec_of([model("m:1", 64)]), seed)
    arrived_ns = {number: 1 + number * 10 * MS for number in range(200)}
    run.simulator.run(
        (at_ns, RequestArrived(number, "m:1", 1, at_ns + 100 * MS)) for number, at_ns in arrived_ns.items()
    )
    assert set(run.outcomes.values()) == {Outcome.COMPLETED}
    assert max(run.settled_ns[number] - at_ns for number, at_ns in arrived_ns.items()) <= 1.2 * 0.67 * MS, (
        f"seed {seed}"
    )
