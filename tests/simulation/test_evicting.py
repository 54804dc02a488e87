"""Requests of pipelines that evict: while batches keep to their times, what is admitted is in time."""

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import pytest

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision, CombineOutputs, DispatchBatch, RejectRequest, Settlement
from sluice.batcher.interface.events import AnyEvent, Confidences, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import CERTAINTY, MS, S, cascade, chain, ensemble, model, single, spec_of

FAST = {
    "m:1": LatencyTable.from_ms({1: 0.67, 2: 0.8, 4: 1.03, 8: 1.66, 16: 2.46, 32: 3.81}),
    "large:1": LatencyTable.from_ms({1: 6, 2: 7, 4: 10, 8: 17}),
}
SLOW = {
    key: LatencyTable(tuple((rows, 2 * latency_ns) for rows, latency_ns in table.cells)) for key, table in FAST.items()
}
TABLES = {"fast": FAST, "slow": SLOW}
MODELS = (model("m:1", 32, confidences=(CERTAINTY,)), model("large:1", 8, confidences=(CERTAINTY,)))
MACHINES = {
    "one": ("fast",),
    "two": ("fast", "fast"),
    "unequal": ("fast", "slow", "slow"),
}
EVICTING = {
    "single": single("m:1", Late.EVICT, name="evicting:1"),
    "cascade": cascade("m:1", "large:1", name="evicting:1", below=0.4, late=Late.EVICT),
    "ensemble": ensemble("m:1", "large:1", name="evicting:1", late=Late.EVICT),
    "chain": msgspec.structs.replace(chain("m:1", "large:1", "m:1", name="evicting:1"), late=Late.EVICT),
}
SERVING = single("m:1", name="serving:1")
TOO_DEAR = re.compile("costs (.*) at least, max_cost is (.*)")
SLO_NS = {"single": 8 * MS, "cascade": 30 * MS, "ensemble": 30 * MS, "chain": 40 * MS}
OUTCOMES = {Outcome.COMPLETED, Outcome.REJECTED_DEADLINE, Outcome.REJECTED_COST, Outcome.EVICTED_DEADLINE}
MOST_EVICTED = 0.05
"""The largest part of what is in time that is evicted, where requests of several rows and limited costs are mixed."""
RATES = {"single": 4_000, "cascade": 350, "ensemble": 200, "chain": 200}


class ExactMachine:
    """Batches take the time of the tables; confidences are uniform."""

    def __init__(self, kinds: dict[str, str], seed: int) -> None:
        self._kinds = kinds
        self._random = random.Random(seed)

    def batch_ns(self, batch: DispatchBatch) -> int:
        return TABLES[self._kinds[batch.partition]][batch.model].latency_ns(batch.rows)

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        return (tuple(self._random.random() for _ in range(batch.rows)),)

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()


class Run(NamedTuple):
    """The result of a simulation: arrivals, outcomes, rejections and costs by request.

    The cost of a request is its share, by rows, of the time of its batches.
    """

    outcomes: dict[int, Outcome]
    rejected: dict[int, RejectRequest]
    arrived: dict[int, RequestArrived]
    costs: Counter[int]


def simulate(
    spec: SchedulerSpec, arrivals: Sequence[tuple[int, RequestArrived]], seed: int, *, check_every: int = 200
) -> Run:
    """Run to the end with a planner that builds no plans."""
    scheduler = Scheduler(spec, LivePlanner())
    run = Run({}, {}, {event.request: event for _, event in arrivals}, Counter())
    prices = {partition.name: partition.price for partition in spec.partitions}
    steps = 0

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        nonlocal steps
        steps += 1
        if steps % check_every == 0:
            check_invariants(scheduler)
        for decision in decisions:
            if isinstance(decision, DispatchBatch):
                cost = prices[decision.partition] * machine.batch_ns(decision) / S
                run.costs.update({each.request: cost * each.rows / decision.rows for each in decision.members})
            if isinstance(decision, RejectRequest):
                run.rejected[decision.request] = decision
            if isinstance(decision, Settlement):
                assert decision.request not in run.outcomes
                run.outcomes[decision.request] = decision.outcome

    kinds = {partition.name: partition.kind for partition in spec.partitions}
    machine = ExactMachine(kinds, seed)
    simulator = Simulator(scheduler, machine, observe)
    for name, kind in kinds.items():
        simulator.at(0, PartitionReady(name, TABLES[kind]))
    simulator.run(arrivals)
    check_invariants(scheduler)
    assert run.outcomes.keys() == run.arrived.keys()
    assert scheduler.requests == {}
    return run


def spec(kinds: Sequence[str], *pipelines: PipelineConfig) -> SchedulerSpec:
    prices = {"fast": 3.0, "slow": 1.0}
    partitions = [PartitionConfig(f"p{number}", kind, prices[kind]) for number, kind in enumerate(kinds)]
    return spec_of(MODELS, pipelines, partitions=partitions)


def poisson(source: random.Random, rate: float) -> Callable[[], int]:
    return lambda: int(source.expovariate(rate) * S)


def bursts(source: random.Random, rate: float) -> Callable[[], int]:
    """As many arrivals, most of them in bursts: nine of ten follow at once."""
    return lambda: int(source.expovariate(rate / 10) * S) if source.random() < 0.1 else source.randrange(20_000)


PROCESSES = {"poisson": poisson, "bursts": bursts}


def mixed(
    kind: str, process: str, load: float, serving_rate: float, seed: int, length_ns: int
) -> list[tuple[int, RequestArrived]]:
    """Requests that are evicted when late, with and without a cost limit, and others, in order of time."""
    source = random.Random(seed)
    events: list[tuple[int, str]] = []
    for name, gap in (
        ("evicting:1", PROCESSES[process](source, RATES[kind] * load)),
        ("serving:1", poisson(source, serving_rate)),
    ):
        now_ns = 1
        while (now_ns := now_ns + gap()) < length_ns:
            events.append((now_ns, name))
    arrivals = []
    for request, (now_ns, name) in enumerate(sorted(events)):
        rows = source.choice((1, 1, 1, 4))
        slo_ns = int(SLO_NS[kind] * source.choice((0.4, 1, 1, 2))) if name == "evicting:1" else 100 * MS
        max_cost = source.choice((None, None, None, 0.02, 0.05)) if name == "evicting:1" else None
        arrivals.append((now_ns, RequestArrived(request, name, rows, now_ns + slo_ns, max_cost=max_cost)))
    return arrivals


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("machine", ["one", "two"])
@pytest.mark.parametrize("load", [0.5, 1.5])
def test_no_request_of_one_row_that_is_admitted_is_evicted(load: float, machine: str, process: str) -> None:
    source = random.Random(1)
    gap = PROCESSES[process](source, RATES["single"] * load * len(MACHINES[machine]))
    arrivals: list[tuple[int, RequestArrived]] = []
    now_ns = 1
    while (now_ns := now_ns + gap()) < S // 2:
        slo_ns = int(SLO_NS["single"] * source.choice((0.4, 1, 1, 2)))
        arrivals.append((now_ns, RequestArrived(len(arrivals), "evicting:1", 1, now_ns + slo_ns)))
    found = Counter(simulate(spec(MACHINES[machine], EVICTING["single"]), arrivals, 1).outcomes.values())
    assert found.keys() <= {Outcome.COMPLETED, Outcome.REJECTED_DEADLINE}, dict(found)
    assert found[Outcome.COMPLETED] > 0.5 * found.total()


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", EVICTING)
def test_nearly_no_request_that_is_admitted_is_evicted(kind: str, machine: str, process: str) -> None:
    total = Counter[Outcome]()
    for seed in (1, 2):
        load = len(MACHINES[machine]) * (0.5, 1.5)[seed % 2]
        arrivals = mixed(kind, process, load, 300.0, seed, S // 2)
        run = simulate(spec(MACHINES[machine], EVICTING[kind], SERVING), arrivals, seed)
        mine = (request for request, event in run.arrived.items() if event.pipeline == "evicting:1")
        found = Counter(run.outcomes[request] for request in mine)
        assert found.keys() <= OUTCOMES, dict(found)
        assert found[Outcome.COMPLETED] > 0.2 * found.total()
        total += found
        for request, rejection in run.rejected.items():
            if rejection.outcome is Outcome.REJECTED_COST:
                reason = TOO_DEAR.fullmatch(rejection.reason)
                assert reason is not None, rejection
                assert float(reason[1]) >= float(reason[2]) == run.arrived[request].max_cost, rejection
            else:
                assert (rejection.retry_after_ns or 0) > 0, rejection  # the soonest end minus the deadline
    assert total[Outcome.EVICTED_DEADLINE] <= max(MOST_EVICTED * total[Outcome.COMPLETED], 2), dict(total)


@pytest.mark.parametrize("kind", EVICTING)
def test_requests_with_a_limit_of_cost_cost_no_more(kind: str) -> None:
    pipeline = msgspec.structs.replace(EVICTING[kind], late=Late.SERVE)
    arrivals = mixed(kind, "poisson", 2.0, 300.0, 3, S // 2)
    run = simulate(spec(MACHINES["unequal"], pipeline, SERVING), arrivals, 3)
    limited = {request: event.max_cost for request, event in run.arrived.items() if event.max_cost is not None}
    admitted = [request for request in limited if run.outcomes[request].answered]
    found = Counter(run.outcomes[request] for request in limited)
    assert found[Outcome.COMPLETED_LATE] <= max(MOST_EVICTED * found[Outcome.COMPLETED], 2), dict(found)
    assert len(admitted) > 0.1 * len(limited)
    for request in admitted:
        assert run.costs[request] <= limited[request] * (1 + 1e-9), request
