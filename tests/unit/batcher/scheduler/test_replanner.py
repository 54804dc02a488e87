"""When a new plan is asked for, and what is done with it."""

import itertools
import random
from itertools import accumulate

import msgspec
import pytest

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.interface.config import PipelineConfig, StageConfig, WhenConfig
from sluice.batcher.interface.decisions import AnyDecision, BuildPlan, DispatchBatch, LoadModel, UnloadModel
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchCompleted,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
    PlanBuilt,
    RequestArrived,
)
from sluice.batcher.interface.plan_data import Observed, Plan
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.pipelines import new_pipeline
from sluice.batcher.scheduler.replanner import Replanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    CERTAINTY,
    MS,
    ONE,
    US,
    S,
    arrival,
    completed,
    model,
    pipeline_plan,
    planned,
    single,
    spec_of,
    stage_plan,
    step,
)

CASCADE = PipelineConfig(
    "cascade:1",
    (StageConfig("first", "m:1"), StageConfig("second", "n:1", (), WhenConfig(0, 0, 0.5))),
    slo_ns=20 * MS,
)
SPEC = spec_of([model("m:1", confidences=(CERTAINTY,)), model("n:1")], [single("m:1"), CASCADE])
TABLES = {"cpu1": {"m:1": ONE, "n:1": ONE}}


SEEN = {key: {"cpu1": LatencyTable(((1, MS), (8, MS)))} for key in ("m:1", "n:1")}
"""The tables as they are observed, by model: up to the maximum batch size."""


def rejected(count: int, pipeline: str = "m:1", rows: int = 3) -> list[RequestArrived]:
    """Requests for which it is too late."""
    return [arrival(1_000 + number, 1, pipeline, rows=rows) for number in range(count)]


def orders(decisions: list[AnyDecision]) -> list[BuildPlan]:
    return [decision for decision in decisions if isinstance(decision, BuildPlan)]


def test_the_first_plan_is_asked_for_as_soon_as_a_partition_is_up_without_any_rates() -> None:
    scheduler = Scheduler(SPEC, LivePlanner())
    assert step(scheduler, 5, PartitionReady("cpu0", TABLES["cpu1"])) == [
        BuildPlan(1, Observed(SEEN, {}, {"cascade:1": (1.0, 1.0)}, {"cpu0": ("m:1", "n:1")}, ("cpu0",)))
    ]


def test_without_a_planner_no_plan_is_asked_for() -> None:
    scheduler = Scheduler(SPEC)
    assert step(scheduler, 5, PartitionReady("cpu0", TABLES["cpu1"])) == []


def test_rates_are_of_what_was_offered_in_rows_and_a_look_is_no_wake_up() -> None:
    scheduler = planned(SPEC, TABLES)
    step(scheduler, 0, arrival(1, S, rows=8), *rejected(11))
    step(scheduler, MS, completed(1, 0, MS))
    assert scheduler.next_wakeup_ns() is None
    (order,) = orders(step(scheduler, 2 * S, arrival(3, 3 * S, rows=5)))
    assert order.observed.rates == {"m:1": 23.0, "cascade:1": 0.0}


# -- when a plan is asked for


class Watched:
    """A replanner, and what it watches."""

    def __init__(self, rows: int = 10_000, *, once: bool = False) -> None:
        """Make a plan after a second with `rows` rows."""
        self.fleet = Fleet(SPEC)
        self.fleet.ready(PartitionReady("cpu0", TABLES["cpu1"]))
        self.pipelines = {
            config.name: new_pipeline(number, config, self.fleet.models) for number, config in enumerate(SPEC.pipelines)
        }
        self.replanner = Replanner(self.fleet, self.pipelines, once=once)
        self.build = 0
        (order,) = self.look(S, rows)
        assert order.observed.rates == {"m:1": rows, "cascade:1": 0.0}

    def look(self, now_ns: int, rows: int = 10_000) -> list[BuildPlan]:
        """The order for a plan, if any, when `rows` more rows have come; an empty one is built at once."""
        self.pipelines["m:1"].arrived_rows += rows
        order = self.replanner.review(now_ns)
        assert self.replanner.next_ns > now_ns
        if order is None:
            return []
        self.build += 1
        assert order.build == self.build
        self.replanner.built(order.build, Plan(()), 0)
        return [order]


def test_as_long_as_nothing_moves_no_plan_is_asked_for() -> None:
    watched = Watched()
    assert [watched.look(second * S) for second in range(2, 20)] == [[]] * 18


@pytest.mark.parametrize(
    ("rows", "rate"),
    [(15_200, None), (15_300, 12_544), (4_800, None), (4_700, 7_456)],
    ids=["up", "UP", "down", "DOWN"],
)
def test_a_rate_that_moves_by_more_than_a_quarter_calls_for_a_plan(rows: int, rate: float | None) -> None:
    """Of a step the estimate makes 0.48 at once."""
    found = [order.observed.rates["m:1"] for order in Watched().look(2 * S, rows)]
    assert found == ([] if rate is None else [pytest.approx(rate)])


def test_a_rate_that_moves_slowly_calls_for_a_plan_when_it_has_moved_far_from_what_was_planned_for() -> None:
    watched = Watched()
    # 500 rows a second more with every second, which the estimate foresees after a few.
    assert [second for second in range(2, 30) if watched.look(second * S, 10_000 + 500 * second)] == [6, 12, 21]


def test_a_plan_that_is_made_once_waits_for_the_first_rows_and_then_stands_until_partitions_change() -> None:
    watched = Watched(0, once=True)
    assert watched.look(2 * S, 0) == []
    assert len(watched.look(3 * S, 1)) == 1
    assert [watched.look(second * S, 10_000 * second) for second in range(4, 9)] == [[]] * 5
    watched.replanner.changed()
    assert len(watched.look(9 * S)) == 1


@pytest.mark.parametrize(("rows", "asked"), [(18, False), (19, True)])
def test_the_first_requests_call_for_a_plan_when_they_are_more_than_chance_brings(rows: int, asked: bool) -> None:
    """Of a step the estimate makes 0.48 at once, and 9 a second are three times their standard deviation."""
    assert bool(Watched(0).look(2 * S, rows)) == asked


@pytest.mark.parametrize("rate", [1, 3, 10, 100])
def test_chance_alone_does_not_call_for_plans(rate: int) -> None:
    source = random.Random(rate)
    watched = Watched(rate)
    plans = 0
    for second in range(2, 602):
        gaps = accumulate(source.expovariate(rate) for _ in range(10 * rate + 20))
        plans += len(watched.look(second * S, sum(at < 1 for at in gaps)))
    assert plans <= 4


def test_between_two_looks_there_is_a_second() -> None:
    watched = Watched()
    assert watched.look(2 * S - 1, 1_000_000) == []
    assert watched.replanner.next_ns == 2 * S
    assert len(watched.look(2 * S, 1_000_000)) == 1


@pytest.mark.parametrize(("probability", "asked"), [(0.951, False), (0.949, True), (0.0, True)])
def test_a_probability_that_moves_by_more_than_a_twentieth_calls_for_a_plan(probability: float, asked: bool) -> None:
    watched = Watched()
    watched.pipelines["cascade:1"].stages[1].run_probability = probability
    found = [order.observed.probabilities for order in watched.look(2 * S)]
    assert found == ([{"cascade:1": (1.0, probability)}] if asked else [])


@pytest.mark.parametrize(("batches", "asked"), [(12, False), (13, True)])
def test_a_latency_that_moves_by_more_than_a_fifth_calls_for_a_plan(batches: int, asked: bool) -> None:
    """Batches that take longer than half of them were seen to raise that, and the mean: 13 in a row make 21.5 %."""
    watched = Watched()
    for _ in range(batches):
        watched.fleet.models["n:1"].estimates["cpu1"].observe(1, 2 * MS)
    found = [order.observed.tables["n:1"]["cpu1"].latency_ns(1) for order in watched.look(2 * S)]
    assert found == ([1_214_827] if asked else [])


def test_a_model_that_is_known_on_one_more_kind_of_partition_calls_for_a_plan() -> None:
    watched = Watched()
    watched.fleet.learn("n:1", "gpu", ONE)
    assert len(watched.look(2 * S)) == 1


def test_one_plan_is_built_at_a_time() -> None:
    watched = Watched()
    pipeline = watched.pipelines["m:1"]
    pipeline.arrived_rows += 1_000
    order = watched.replanner.review(2 * S)
    assert order is not None
    for second in (3, 4):
        pipeline.arrived_rows += 10_000
        watched.replanner.changed()
        assert watched.replanner.review(second * S) is None
    watched.replanner.built(order.build, Plan(()), 0)
    pipeline.arrived_rows += 20_000
    following = watched.replanner.review(6 * S)
    assert following is not None
    assert following.build == order.build + 1
    # What came while the plan was built counts by the four seconds since the rates were taken.
    assert following.observed.rates["m:1"] > 4_000


def test_the_plan_in_force_is_kept_with_what_it_was_made_from() -> None:
    watched = Watched()
    watched.replanner.changed()
    order = watched.replanner.review(2 * S)
    assert order is not None
    plan = Plan(())
    watched.replanner.built(order.build, plan, 3 * S)
    assert watched.replanner.in_force == (plan, order.observed, 3 * S)
    watched.replanner.changed()
    order = watched.replanner.review(4 * S)
    assert order is not None
    watched.replanner.built(order.build, None, 5 * S)
    kept = watched.replanner.in_force  # a plan that could not be built leaves the one before
    assert kept is not None
    assert kept.plan is plan


def test_a_plan_that_was_not_asked_for_is_a_broken_rule() -> None:
    with pytest.raises(AssertionError, match="plan 7 was not asked for"):
        Watched().replanner.built(7, None, 0)


def test_one_request_that_is_refused_for_want_of_a_model_calls_for_a_plan() -> None:
    watched = Watched(0)
    assert watched.replanner.wake_ns is None
    watched.replanner.refused("m:1")
    assert watched.replanner.wake_ns == 2 * S
    assert [order.observed.rates["m:1"] for order in watched.look(2 * S, 1)] == [pytest.approx(0.48)]
    assert watched.replanner.wake_ns is None
    assert watched.look(3 * S, 1) == []


def test_many_requests_that_are_refused_call_for_a_plan_when_they_become_more() -> None:
    watched = Watched(100)
    for second in range(2, 10):
        watched.replanner.refused("m:1")
        assert watched.look(second * S, 90 + 20 * (second % 2)) == []
    assert watched.replanner.wake_ns is None


def test_what_is_refused_while_a_plan_is_built_is_reviewed_after_it() -> None:
    watched = Watched(0)
    watched.replanner.changed()
    order = watched.replanner.review(S + 5)
    assert order is not None
    watched.replanner.refused("m:1")
    assert watched.replanner.wake_ns is None
    watched.replanner.built(order.build, Plan(()), 0)
    assert watched.replanner.wake_ns == 2 * S + 5


def test_a_partition_that_is_lost_for_five_seconds_is_not_planned_with() -> None:
    watched = Watched(0)
    watched.fleet.lost("cpu0", 3 * S)
    watched.replanner.changed()
    assert [(order.observed.up, order.observed.gone) for order in watched.look(3 * S, 0)] == [((), ())]
    assert watched.replanner.wake_ns == 8 * S
    assert watched.look(8 * S - 1, 0) == []
    assert [(order.observed.up, order.observed.gone) for order in watched.look(9 * S, 0)] == [((), ("cpu0",))]
    assert watched.replanner.wake_ns is None
    assert watched.look(20 * S, 0) == []


def test_a_partition_that_is_lost_and_one_that_comes_back_call_for_a_plan_at_once() -> None:
    scheduler = planned(SPEC, TABLES)
    (order,) = orders(step(scheduler, 10 * MS, PartitionLost("cpu0", "killed")))
    step(scheduler, 11 * MS, PlanBuilt(order.build, None))
    assert len(orders(step(scheduler, 20 * MS, PartitionReady("cpu0", TABLES["cpu1"])))) == 1


def test_a_partition_that_is_lost_while_a_plan_is_built_calls_for_another_one_after_it() -> None:
    scheduler = planned(SPEC, TABLES)
    (order,) = orders(step(scheduler, S, arrival(1, 2 * S, rows=8), *rejected(11)))
    assert orders(step(scheduler, S + MS, completed(1, S, S + MS), PartitionLost("cpu0", "killed"))) == []
    step(scheduler, S + 20 * MS, PlanBuilt(order.build, build_plan(SPEC, order.observed)))
    (following,) = orders(step(scheduler, S + 30 * MS, PartitionReady("cpu0", TABLES["cpu1"])))
    assert following.build == order.build + 1


# -- what a plan does


def test_a_plan_that_is_given_up_is_ordered_again_after_gaps_that_double_and_at_most_six_times() -> None:
    """Reviews are a second apart; a gap begins once a plan is given up."""
    watched = Watched()
    replanner, ordered = watched.replanner, []
    watched.pipelines["m:1"].arrived_rows += 30_000
    for second in range(2, 200):
        watched.pipelines["m:1"].arrived_rows += 0 if second == 2 else 24_400
        if (order := replanner.review(second * S)) is not None:
            ordered.append(second)
            replanner.built(order.build, None, second * S)
    assert [after - before for before, after in itertools.pairwise(ordered)][-6:] == [1, 2, 4, 8, 16, 32]
    assert ordered[-1] < 100
    assert replanner.wake_ns is None


def test_a_plan_that_could_not_be_built_changes_nothing_and_is_not_asked_for_again_at_once() -> None:
    spec = spec_of(
        [model("m:1", 1), model("n:1", 1)],
        [PipelineConfig("either:1", (StageConfig("s", "m:1", variants=("m:1", "n:1")),), slo_ns=20 * MS)],
    )
    plan = Plan((pipeline_plan("either:1", stage_plan("n:1")),))
    scheduler = planned(spec, TABLES, plan)
    (order,) = orders(step(scheduler, S, arrival(1, 2 * S, "either:1"), *rejected(11, "either:1", 1)))
    step(scheduler, S + MS, completed(1, S, S + MS), PlanBuilt(order.build, None))
    stage = scheduler.pipelines["either:1"].stages[0]
    assert stage.model is scheduler.dispatcher.models["n:1"]
    assert stage.cost_to_go is not None
    assert orders(step(scheduler, S + 2 * MS, arrival(2, 2 * S, "either:1"))) == []


def test_what_follows_costs_a_row_that_comes_to_a_stage_more_than_one_that_may_not() -> None:
    """Half of the rows come to the second stage, and half of those to the third, which takes a millisecond for 1."""
    stages = (
        StageConfig("a", "m:1"),
        StageConfig("b", "m:1", (), WhenConfig(0, 0, 0.5)),
        StageConfig("c", "n:1", (), WhenConfig(1, 0, 0.5)),
    )
    spec = spec_of(
        [model("m:1", 1, confidences=(CERTAINTY,)), model("n:1", 1)], [PipelineConfig("p:1", stages, slo_ns=S)]
    )
    plan = build_plan(spec, Observed(SEEN, {"p:1": 10.0}, {"p:1": (1.0, 0.5, 0.5)}))
    (pipeline,) = plan.pipelines
    costs = [stage.rest.cost[-1] for stage in pipeline.stages]
    # A millisecond of a partition of price 1 costs 0.001.
    assert costs == pytest.approx([0.5 * 0.001 + 0.25 * 0.001, 0.5 * 0.001, 0.0])


# -- replay


STEPS: list[tuple[int, AnyEvent | None]] = [
    (1, PartitionReady("a", {"m:1": ONE})),
    (1, PartitionReady("b", {"m:1": ONE, "n:1": ONE})),
    (1, None),
    (2, arrival(1, 10 * MS, "cascade:1")),
    (2, None),
    (3, PlanBuilt(1, Plan((), {"a": ("m:1", "n:1"), "b": ("n:1",)}))),
    (MS, ModelLoaded("a", "n:1", ONE)),
    (MS, None),
    (MS + 5, BatchCompleted(1, 2, MS + 2, ((0.1,),))),
    (MS + 5, None),
    (2 * MS, ModelUnloaded("b", "m:1")),
    (2 * MS, None),
    (2 * MS, PlanBuilt(2, Plan((), {"a": ("m:1", "n:1"), "b": ("m:1", "n:1")}))),
    (2 * MS + 1, ModelLoadFailed("b", "m:1", "there is no memory left")),
    (S + 2 * MS + 1, None),
    (S + 3 * MS, arrival(2, 4 * S)),
    (S + 3 * MS, None),
    (2 * S, None),
]


def journal() -> tuple[list[bytes], list[AnyDecision]]:
    """A run with plans; its lines and all decisions."""
    spec = msgspec.structs.replace(SPEC, partitions=spec_of(SPEC.models, partitions=("a", "b")).partitions)
    lines: list[bytes] = []
    decided: list[AnyDecision] = []
    scheduler = Scheduler(spec, LivePlanner())
    writer = JournalWriter(lines.append, spec)
    for now_ns, event in STEPS:
        decisions = scheduler.handle_wakeup(now_ns) if event is None else scheduler.handle(event, now_ns)
        check_invariants(scheduler)
        writer.record(now_ns, event, decisions)
        decided += decisions
    return lines, decided


def test_a_journal_with_plans_replays_to_the_same_decisions() -> None:
    lines, decided = journal()
    kinds = {type(decision) for decision in decided}
    assert {BuildPlan, LoadModel, UnloadModel, DispatchBatch} <= kinds
    assert [each.model for each in decided if isinstance(each, LoadModel)] == ["n:1", "m:1", "m:1"]
    assert replay(lines, LivePlanner()) is None
    difference = replay(lines)
    assert difference is not None
    assert difference.decisions == ()


def test_a_plan_that_misses_its_objective_survives_the_journal() -> None:
    spec = spec_of([model("m:1"), model("n:1")], [msgspec.structs.replace(CASCADE, slo_ns=US)])
    plan = build_plan(spec, Observed(SEEN, {"cascade:1": 1e9}, {"cascade:1": (1.0, 0.0)}))
    assert not plan.pipelines[0].feasible
    event = PlanBuilt(1, plan)
    assert msgspec.json.decode(msgspec.json.encode(event), type=PlanBuilt) == event
