"""Planned batches under random arrivals, cancellations, batches that are early or late, lost partitions and resizes."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig
from sluice.batcher.interface.decisions import AnyDecision, CombineOutputs, DispatchBatch, Settlement
from sluice.batcher.interface.events import (
    AnyEvent,
    Confidences,
    PartitionLost,
    PartitionReady,
    PartitionResized,
    RequestArrived,
    RequestCancelled,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    CERTAINTY,
    US,
    S,
    cascade,
    chain,
    ensemble,
    model,
    single,
    spec_of,
)

FAST = {
    "m:1": LatencyTable.from_ms({1: 1, 2: 1.5, 4: 2.5, 8: 4}),
    "n:1": LatencyTable.from_ms({1: 2, 2: 2.2, 4: 2.6}),
    "t:1": LatencyTable.from_ms({1: 1, 2: 1.1, 4: 1.3}),
}
SLOW = {
    key: LatencyTable(tuple((rows, 2 * latency_ns) for rows, latency_ns in table.cells)) for key, table in FAST.items()
}
TABLES = {"fast": FAST, "slow": SLOW}
MODELS = (
    model("m:1", 8, confidences=(CERTAINTY,)),
    model("n:1", 4, confidences=(CERTAINTY,)),
    model("t:1", 4, TimeoutConfig(), confidences=(CERTAINTY,)),
)
PIPELINES: dict[str, PipelineConfig] = {
    each.name: each
    for each in (
        single("m:1", name="single"),
        single("m:1", Late.EVICT, name="evicted", weight=3),
        single("t:1", name="fixed"),
        chain("m:1", "n:1", "m:1", name="chain"),
        cascade("m:1", "n:1", name="cascade", below=0.4, late=Late.EVICT),
        ensemble("m:1", "n:1", "t:1", name="ensemble"),
    )
}
IN_TIME = {Outcome.COMPLETED, Outcome.REJECTED_DEADLINE}


class Arrival(NamedTuple):
    """A request that comes `gap_us` after the one before, and is cancelled `cancelled_us` later (0 for never)."""

    gap_us: int
    pipeline: str
    rows: int
    slo_us: int
    cancelled_us: int = 0
    max_cost: float | None = None
    client: str = ""


class Trouble(NamedTuple):
    """At `at_us` a partition is lost for `away_us`, or (0) changes its kind."""

    at_us: int
    partition: int
    away_us: int


class Machine:
    """Batches take a `percent` of the tables' times, in turn; confidences are uniform."""

    def __init__(self, kinds: dict[str, str], percent: Sequence[int]) -> None:
        self.kinds = kinds
        self._percent = percent
        self._batches = 0
        self._random = random.Random(1)

    def batch_ns(self, batch: DispatchBatch) -> int:
        self._batches += 1
        percent = self._percent[self._batches % len(self._percent)]
        return TABLES[self.kinds[batch.partition]][batch.model].latency_ns(batch.rows) * percent // 100

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        return (tuple(self._random.random() for _ in range(batch.rows)),)

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        return ()


def play(
    arrivals: Sequence[Arrival],
    kinds: Sequence[str],
    percent: Sequence[int] = (100,),
    troubles: Sequence[Trouble] = (),
    *,
    late: Late | None = None,
    percentile: float = 99.0,
) -> dict[int, Outcome]:
    """The outcomes of all requests; asserts that every step leaves the sums right, and that the last leaves nothing."""
    pipelines = [
        msgspec.structs.replace(each, late=late or each.late, percentile=percentile)
        for each in PIPELINES.values()
        if any(each.name == arrival.pipeline for arrival in arrivals)
    ]
    names = [f"p{number}" for number in range(len(kinds))]
    partitions = [PartitionConfig(name, kind) for name, kind in zip(names, kinds, strict=True)]
    scheduler = Scheduler(spec_of(MODELS, pipelines, partitions=partitions))
    outcomes: dict[int, Outcome] = {}

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        check_invariants(scheduler)
        if isinstance(event, PartitionResized):
            machine.kinds[event.partition] = event.kind
        outcomes.update((each.request, each.outcome) for each in decisions if isinstance(each, Settlement))

    machine = Machine(dict(zip(names, kinds, strict=True)), percent)
    simulator = Simulator(scheduler, machine, observe)
    for name, kind in machine.kinds.items():
        simulator.at(0, PartitionReady(name, TABLES[kind]))
    now_ns, events = S, []
    for number, each in enumerate(arrivals):
        now_ns += each.gap_us * US
        deadline_ns = now_ns + each.slo_us * US
        arrived = RequestArrived(
            number, each.pipeline, each.rows, deadline_ns, max_cost=each.max_cost, client=each.client
        )
        events.append((now_ns, arrived))
        if each.cancelled_us:
            simulator.at(now_ns + each.cancelled_us * US, RequestCancelled(number))
    for trouble in troubles:
        name, at_ns = names[trouble.partition % len(names)], S + trouble.at_us * US
        if trouble.away_us:
            simulator.at(at_ns, PartitionLost(name, "killed"))
            kind = kinds[trouble.partition % len(names)]
            simulator.at(at_ns + trouble.away_us * US, PartitionReady(name, TABLES[kind]))
        else:
            kind = ("fast", "slow")[trouble.at_us % 2]
            simulator.at(at_ns, PartitionResized(name, kind, 1.0, 1.0, TABLES[kind]))
    simulator.run(events)
    assert sorted(outcomes) == list(range(len(arrivals)))
    assert scheduler.requests == {}
    for partition in scheduler.dispatcher.fleet.partitions.values():
        assert (partition.planned, partition.planned_ns) == ([], 0)
    for pipeline in scheduler.pipelines.values():
        assert not any(pipeline.planned_rows)
        assert not any(rows for client in pipeline.clients.values() for rows in client.planned_rows)
    return outcomes


def requests(pipelines: Sequence[str], most_rows: int = 4) -> st.SearchStrategy[Arrival]:
    return st.tuples(
        st.integers(0, 4_000) | st.just(0),
        st.sampled_from(pipelines),
        st.integers(1, most_rows),
        st.integers(1, 40_000) | st.just(20_000),
    ).map(lambda each: Arrival(*each))


def trying_requests(pipelines: Sequence[str]) -> st.SearchStrategy[Arrival]:
    """Requests with limited costs and clients, of which some are cancelled."""
    return st.builds(
        lambda arrival, *fields: Arrival(*arrival[:4], *fields),
        requests(pipelines),
        st.just(0) | st.integers(1, 20_000),
        st.sampled_from((None, None, 0.01, 1.0)),
        st.sampled_from(("", "", "one", "other")),
    )


kinds = st.lists(st.sampled_from(tuple(TABLES)), min_size=1, max_size=3)


@settings(max_examples=100, deadline=None)
@given(
    arrivals=st.lists(trying_requests(tuple(PIPELINES)), min_size=1, max_size=30),
    kinds=kinds,
    percent=st.lists(st.integers(20, 400), min_size=1, max_size=10),
    troubles=st.lists(
        st.builds(Trouble, st.integers(0, 40_000), st.integers(0, 2), st.just(0) | st.integers(1, 20_000)), max_size=4
    ),
    percentile=st.sampled_from((99.0, 100.0)),
)
def test_whatever_happens_places_add_up_and_none_is_left(
    arrivals: list[Arrival], kinds: list[str], percent: list[int], troubles: list[Trouble], percentile: float
) -> None:
    play(arrivals, kinds, percent, troubles, percentile=percentile)


@settings(max_examples=200, deadline=None)
@given(
    arrivals=st.lists(requests(("single", "evicted"), most_rows=1), min_size=1, max_size=30),
    kind=st.sampled_from(tuple(TABLES)),
)
def test_requests_of_one_row_that_are_admitted_are_in_time_while_batches_keep_to_their_times(
    arrivals: list[Arrival], kind: str
) -> None:
    assert set(play(arrivals, [kind], late=Late.EVICT).values()) <= IN_TIME
