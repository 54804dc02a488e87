"""Pipelines none of whose admitted requests may be late: none is, as long as batches take the times of their tables."""

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, SchedulerSpec, StageConfig
from sluice.batcher.interface.decisions import AnyDecision, Settlement
from sluice.batcher.interface.events import AnyEvent, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.policies.deadline import DeadlineSettings, Objective
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.loadgen.papers.engines.virtual_gateway import TabledService
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import US, S, model

TIMES_MS = {"a": (1.0, 0.3), "b": (0.4, 2.0), "c": (3.0, 0.1)}
"""By model, the time of a batch, and of each row."""
FACTORS = {"fast": 1, "slow": 3}
TABLES = {
    kind: {
        f"{name}:1": LatencyTable.from_ms({rows: factor * (fixed + rows * each) for rows in (1, 2, 4, 8)})
        for name, (fixed, each) in TIMES_MS.items()
    }
    for kind, factor in FACTORS.items()
}
IN_TIME = {Outcome.COMPLETED, Outcome.REJECTED_DEADLINE, Outcome.REJECTED_COST}


class Arrival(NamedTuple):
    """A request that comes `gap_us` after the one before, with `slack` times what its stages take one by one."""

    gap_us: int
    dag: int
    rows: int
    slack: float
    max_cost: float | None


Dag = list[tuple[str, list[int]]]
"""By stage, its model and the stages that it waits for."""


@st.composite
def dags(draw: st.DrawFn) -> Dag:
    stages: Dag = []
    for index in range(draw(st.integers(1, 4))):
        sources = draw(st.lists(st.integers(0, index - 1), min_size=1, max_size=2, unique=True)) if index else []
        stages.append((draw(st.sampled_from(tuple(TIMES_MS))), sorted(sources)))
    return stages


def play(
    dags: Sequence[Dag], arrivals: Sequence[Arrival], kinds: Sequence[str], objectives: Sequence[Objective]
) -> set[Outcome]:
    """The outcomes of all requests; asserts the invariants after each step."""
    pipelines = tuple(
        PipelineConfig(
            f"d{number}",
            tuple(StageConfig(str(index), f"{name}:1", tuple(sources)) for index, (name, sources) in enumerate(dag)),
            late=Late.EVICT,
            percentile=100,
        )
        for number, dag in enumerate(dags)
    )
    models = tuple(
        model(f"{name}:1", 8, DeadlineSettings(objective)) for name, objective in zip(TIMES_MS, objectives, strict=True)
    )
    names = [f"p{number}" for number in range(len(kinds))]
    partitions = tuple(PartitionConfig(name, kind, price=1.0) for name, kind in zip(names, kinds, strict=True))
    tables = {name: TABLES[kind] for name, kind in zip(names, kinds, strict=True)}
    scheduler = Scheduler(SchedulerSpec(models, pipelines, partitions), LivePlanner())
    outcomes: set[Outcome] = set()

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        check_invariants(scheduler)
        outcomes.update(each.outcome for each in decisions if isinstance(each, Settlement))

    simulator = Simulator(scheduler, TabledService(tables), observe, build_plan=build_plan, tables=tables)
    for name, held in tables.items():
        simulator.at(0, PartitionReady(name, held))
    now_ns, events = S, []
    for number, each in enumerate(arrivals):
        now_ns += each.gap_us * US
        index = each.dag % len(dags)
        least_ns = sum(TABLES["fast"][f"{name}:1"].latency_ns(each.rows) for name, _ in dags[index])
        deadline_ns = now_ns + int(each.slack * least_ns)
        events.append((now_ns, RequestArrived(number, f"d{index}", each.rows, deadline_ns, max_cost=each.max_cost)))
    simulator.run(events)
    return outcomes


@settings(max_examples=40, deadline=None)
@given(
    dags=st.lists(dags(), min_size=1, max_size=3),
    arrivals=st.lists(
        st.builds(
            Arrival,
            st.integers(0, 3_000) | st.just(0),
            st.integers(0, 2),
            st.integers(1, 4),
            st.sampled_from((1.1, 1.5, 2.5, 5.0)),
            st.sampled_from((None, None, 0.005, 1.0)),
        ),
        min_size=5,
        max_size=25,
    ),
    kinds=st.lists(st.sampled_from(tuple(FACTORS)), min_size=1, max_size=4),
    objectives=st.lists(st.sampled_from(Objective), min_size=len(TIMES_MS), max_size=len(TIMES_MS)),
)
def test_no_admitted_request_is_late_while_batches_keep_to_their_times(
    dags: list[Dag], arrivals: list[Arrival], kinds: list[str], objectives: list[Objective]
) -> None:
    assert play(dags, arrivals, kinds, objectives) <= IN_TIME
