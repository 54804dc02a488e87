"""Where a batch runs and how big it is where there is a choice; 150 us of hand-off unless said otherwise.

The fast partition takes 1 ms for a row and costs 4 a second, the slow one 3 ms and 1: slow rows are a quarter cheaper.
"""

import pytest

from sluice.batcher.fleet.speed import ran_out_of_memory
from sluice.batcher.interface.config import Limits, PartitionConfig, PipelineConfig, SchedulerSpec, StageConfig
from sluice.batcher.interface.decisions import (
    BuildPlan,
    CompleteRequest,
    DispatchBatch,
    Member,
    RejectRequest,
    ReleaseReason,
)
from sluice.batcher.interface.events import PartitionLost, PartitionReady, PlanBuilt
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.plan_data import CostToGo, Plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    MS,
    ONE,
    US,
    S,
    arrival,
    chain,
    completed,
    dispatch,
    ensemble,
    model,
    pipeline_plan,
    planned,
    serving,
    single,
    spec_of,
    stage_plan,
    step,
)

FAST, SLOW = PartitionConfig("fast0", "fast", price=4), PartitionConfig("slow0", "slow")
THREE = LatencyTable.from_ms({1: 3})
FULL = ReleaseReason.FULL
TABLES = {"fast": {"m:1": ONE, "n:1": ONE}, "slow": {"m:1": THREE, "n:1": THREE}}


def two_kinds(*pipelines: PipelineConfig) -> Scheduler:
    """Models that take one row at a time, on a fast and a slow partition."""
    return planned(spec_of([model("m:1", 1), model("n:1", 1)], pipelines, partitions=(FAST, SLOW)), TABLES)


def test_a_request_with_slack_goes_to_the_cheap_partition() -> None:
    scheduler = two_kinds()
    assert step(scheduler, 0, arrival(1, 10 * MS)) == [dispatch(1, [1], FULL, partition="slow0")]


def test_a_request_without_slack_goes_to_the_fast_partition() -> None:
    scheduler = two_kinds()
    assert step(scheduler, 0, arrival(1, 3 * MS)) == [dispatch(1, [1], FULL, partition="fast0")]


def test_the_last_nanosecond_of_slack_decides() -> None:
    assert step(two_kinds(), 0, arrival(1, 3150 * US)) == [dispatch(1, [1], FULL, partition="slow0")]
    assert step(two_kinds(), 0, arrival(1, 3150 * US - 1)) == [dispatch(1, [1], FULL, partition="fast0")]


def test_with_slack_the_fast_partition_is_used_as_well_while_the_cheap_one_is_busy() -> None:
    scheduler = two_kinds()
    assert step(scheduler, 0, arrival(1, 20 * MS), arrival(2, 21 * MS)) == [
        dispatch(1, [1], FULL, partition="slow0"),
        dispatch(2, [2], FULL, partition="fast0"),
    ]


def test_a_tight_head_waits_for_the_fast_partition_and_what_is_planned_for_the_slow_one_goes_there() -> None:
    scheduler = two_kinds()
    assert step(scheduler, 0, arrival(1, 2 * MS)) == [dispatch(1, [1], FULL, partition="fast0")]
    # From 1 ms on the fast one has request 2 done at 2 ms and request 3 at 3 ms; the slow one would at 3.1 ms.
    assert step(scheduler, 100 * US, arrival(2, 2500 * US), arrival(3, 5 * MS)) == []
    # Request 4 would be done at 4 ms there.
    assert step(scheduler, 100 * US, arrival(4, 6 * MS)) == [dispatch(2, [4], FULL, partition="slow0")]
    assert scheduler.next_wakeup_ns() == 850 * US
    assert step(scheduler, 850 * US) == [dispatch(3, [2], FULL, partition="fast0")]
    step(scheduler, MS, completed(1, 0, MS))
    assert step(scheduler, 1850 * US) == [dispatch(4, [3], FULL, partition="fast0")]


def test_what_would_be_in_time_nowhere_is_refused() -> None:
    scheduler = two_kinds()
    step(scheduler, 0, arrival(1, 2 * MS))
    (refused,) = step(scheduler, 100 * US, arrival(2, 1500 * US))
    assert isinstance(refused, RejectRequest)
    # 1 ms from 1 ms on, and the hand-off.
    assert refused.reason == "predicted to complete in 2.0 ms, 1.4 ms are left"


def test_what_can_be_in_time_nowhere_any_more_is_served_all_the_same() -> None:
    scheduler = two_kinds()
    step(scheduler, 0, arrival(1, 2 * MS))
    assert step(scheduler, 100 * US, arrival(2, 2500 * US)) == []
    # The first batch is long over its time, and even the fast partition would be done at 3.55 ms.
    assert step(scheduler, 2400 * US) == [dispatch(2, [2], FULL, partition="fast0")]
    step(scheduler, 2500 * US, completed(1, 0, 2500 * US))
    assert step(scheduler, 3500 * US, completed(2, 2500 * US, 3500 * US)) == [
        CompleteRequest(2, Outcome.COMPLETED_LATE)
    ]


def test_what_was_left_to_a_partition_that_is_lost_goes_to_the_other() -> None:
    """The lost partition ran another model, which the other partition does not hold: nothing else comes."""
    spec = spec_of([model("m:1", 1), model("n:1", 1)], partitions=(FAST, SLOW))
    scheduler = planned(spec, {"fast": TABLES["fast"], "slow": {"m:1": THREE}})
    assert step(scheduler, 0, arrival(1, S, "n:1")) == [dispatch(1, [1], FULL, model="n:1", partition="fast0")]
    assert step(scheduler, 100 * US, arrival(2, 2500 * US)) == []
    assert step(scheduler, 200 * US, PartitionLost("fast0", "killed"))[-1] == dispatch(2, [2], FULL, partition="slow0")


def test_what_was_left_to_a_partition_that_overruns_is_looked_at_again_when_it_is_too_late_there() -> None:
    scheduler = two_kinds()
    step(scheduler, 0, arrival(1, 2 * MS), arrival(2, 2500 * US, "n:1"))
    due_ns = scheduler.next_wakeup_ns()
    assert due_ns is not None
    assert due_ns <= 2500 * US


def test_what_misses_only_by_the_plan_runs_here_although_it_would_elsewhere_too() -> None:
    """The plan asks for 8 ms for the second stage, which takes 1 ms: nothing fits for request 2, on either."""
    rest = CostToGo((8 * MS,), (1.0,))
    spec = spec_of(
        [model("m:1", 1), model("n:1", 1)],
        [chain("m:1", "n:1", slo_ns=20 * MS), single("m:1")],
        partitions=(FAST, SLOW),
    )
    plan = Plan((pipeline_plan("chain:1", stage_plan("m:1", rest), stage_plan("n:1")),))
    scheduler = planned(spec, TABLES, plan)
    assert step(scheduler, 0, arrival(1, 2 * MS)) == [dispatch(1, [1], FULL, partition="fast0")]
    assert step(scheduler, 100 * US, arrival(2, 9 * MS, "chain:1")) == [dispatch(2, [2], FULL, partition="slow0")]


# -- batch sizes


def sized(rest: CostToGo) -> Scheduler:
    """Stage a takes 1 ms for a row and 2 ms for four, for 1 and 2 in all; no hand-off; what follows costs `rest`."""
    spec = spec_of(
        [model("a:1", 4), model("b:1", 4)],
        [chain("a:1", "b:1", slo_ns=20 * MS)],
        partitions=(PartitionConfig("cpu0", "cpu1", price=1000),),
        limits=Limits(hand_off_ns=0),
    )
    tables = {"cpu1": {"a:1": LatencyTable.from_ms({1: 1, 4: 2}), "b:1": ONE}}
    return planned(spec, tables, Plan((pipeline_plan("chain:1", stage_plan("a:1", rest), stage_plan("b:1")),)))


@pytest.mark.parametrize(
    "deadline_us",
    [
        4_900,  # four leave less than the 3 ms of the rest
        5_000,  # 0.5 and 2 with four, 1 and 2 with one
        8_900,
        9_000,  # 0.5 and 2 with four, 1 and 1 with one
        9_999,
        10_000,  # 0.5 and 1 with four
    ],
)
def test_a_batch_has_the_rows_that_are_planned_for_it_although_a_row_by_itself_would_be_cheaper(
    deadline_us: int,
) -> None:
    scheduler = sized(CostToGo((3 * MS, 8 * MS), (2.0, 1.0)))
    arrivals = [arrival(number, deadline_us * US, "chain:1") for number in range(4)]
    assert step(scheduler, 0, *arrivals) == [dispatch(1, range(4), FULL, model="a:1")]


def test_a_batch_that_is_planned_with_less_than_is_worthwhile_is_not_divided() -> None:
    scheduler = sized(CostToGo((3 * MS, 8 * MS), (2.0, 1.0)))
    assert step(scheduler, 0, arrival(1, 10 * MS, "chain:1"), arrival(2, 10 * MS, "chain:1")) == [
        dispatch(1, [1, 2], ReleaseReason.IDLE, model="a:1")
    ]


def test_while_much_waits_batches_stay_efficient() -> None:
    scheduler = sized(CostToGo((3 * MS, 8 * MS), (2.0, 1.0)))
    arrivals = [arrival(number, 9_000 * US, "chain:1") for number in range(8)]
    assert step(scheduler, 0, *arrivals) == [dispatch(1, range(4), FULL, model="a:1")]


@pytest.mark.parametrize(("deadline_us", "partition"), [(4250, "fast0"), (4449, "fast0"), (4450, "slow0")])
def test_a_stage_runs_on_another_kind_only_if_the_later_ones_can_start_as_late_as_planned(
    deadline_us: int, partition: str
) -> None:
    """Slow, the first stage would end at 3.15 ms; the second one is planned right behind it on the fast one.

    It takes 1 ms there, a hand-off before and another one after it.
    """
    scheduler = two_kinds(chain("m:1", "n:1"))
    assert step(scheduler, 0, arrival(1, deadline_us * US, "chain:1")) == [dispatch(1, [1], FULL, partition=partition)]


@pytest.mark.parametrize(
    ("deadline_us", "is_left"),
    [
        pytest.param(2600, True, id="the second stage has to start by 1.45 ms"),
        pytest.param(3000, False, id="the second stage can start behind it"),
    ],
)
def test_a_head_that_is_planned_for_one_partition_is_left_to_it_where_another_would_be_delayed(
    deadline_us: int, is_left: bool
) -> None:
    """Of two equal partitions, cpu0 waits for the second stage of request 2, and cpu1 has the place of request 3."""
    models = [model("a:1", 1), model("b:1", 1), model("c:1", 1)]
    spec = spec_of(models, [chain("a:1", "b:1"), single("c:1")], partitions=("cpu0", "cpu1"))
    scheduler = serving(spec, ONE)
    assert step(scheduler, 0, arrival(1, S, "c:1")) == [dispatch(1, [1], FULL, model="c:1")]
    first = step(scheduler, 100 * US, arrival(2, deadline_us * US, "chain:1"))
    assert first == [dispatch(2, [2], FULL, model="a:1", partition="cpu1")]
    step(scheduler, 600 * US, completed(1, 0, 600 * US))
    decisions = step(scheduler, 600 * US, arrival(3, S, "c:1"))
    if is_left:
        assert decisions == []
        assert step(scheduler, 1100 * US, completed(2, 100 * US, 1100 * US)) == [
            dispatch(3, [Member(2, 1, 1)], FULL, model="b:1", partition="cpu1"),  # where the stage before ran
            dispatch(4, [3], FULL, model="c:1"),
        ]
    else:
        assert decisions == [dispatch(3, [3], FULL, model="c:1")]


def test_of_two_idle_partitions_a_batch_runs_on_the_one_that_it_is_planned_for() -> None:
    """The parts of a request are planned side by side; the one of the second stage comes first."""
    scheduler = serving(spec_of([model("a:1")], [ensemble("a:1", "a:1")], partitions=("cpu0", "cpu1")), ONE)
    (first,) = step(scheduler, 0, arrival(1, S, "ensemble:1"))
    assert isinstance(first, DispatchBatch)
    assert (first.partition, first.rows) == ("cpu1", 2)


# -- with more than a full batch waiting

TWO_SPEEDS = {
    "fast": {"m:1": LatencyTable.from_ms({1: 1, 4: 2}), "n:1": LatencyTable.from_ms({1: 10})},
    "slow": {"m:1": LatencyTable.from_ms({1: 3, 4: 6})},
}


def two_speeds(busy: str) -> Scheduler:
    """Rows of m take 0.5 and 1.5 ms in batches of four, no hand-off; the fast partition runs one of `busy` since 0."""
    spec = spec_of(
        [model("m:1", 4), model("n:1", 1)],
        partitions=(PartitionConfig("fast0", "fast"), SLOW),
        limits=Limits(hand_off_ns=0),
    )
    scheduler = planned(spec, TWO_SPEEDS)
    (first,) = step(scheduler, 0, arrival(1, S, busy))
    assert isinstance(first, DispatchBatch)
    assert first.partition == "fast0"
    return scheduler


def test_a_tight_head_is_left_to_the_partition_that_will_be_free_in_time_and_others_run_meanwhile() -> None:
    scheduler = two_speeds("m:1")
    arrivals = [arrival(2, 3_050 * US), *(arrival(number, 20 * MS) for number in range(3, 7))]
    # The batch of the fast one is full with request 5 and ends at 3 ms; one for the slow one is opened for request 6,
    # and would end at 3.1 ms with request 2.
    assert step(scheduler, 100 * US, *arrivals) == [dispatch(2, [3], FULL, partition="slow0")]
    assert step(scheduler, MS, completed(1, 0, MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(3, [2, 4, 5, 6], FULL, partition="fast0"),
    ]


def test_a_partition_runs_its_planned_batch_with_the_first_that_are_in_time_in_it() -> None:
    """Request 2 has its place on the fast one, and leaves it to request 6, whose batch is the one for the slow one."""
    scheduler = two_speeds("m:1")
    arrivals = [arrival(2, 5 * MS), *(arrival(number, 20 * MS) for number in range(3, 7))]
    assert step(scheduler, 100 * US, *arrivals) == [dispatch(2, [2], FULL, partition="slow0")]
    fast, slow = (scheduler.dispatcher.fleet.partitions[name] for name in ("fast0", "slow0"))
    assert [batch.rows for batch in fast.planned] == [4]
    assert slow.planned == []
    assert step(scheduler, MS, completed(1, 0, MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(3, range(3, 7), FULL, partition="fast0"),
    ]


def test_a_partition_takes_as_many_rows_as_are_planned_for_its_kind_of_those_that_have_the_time() -> None:
    """Here nothing ranks the options: the fast one has a batch of four that ends at 3 ms, the slow one one of two."""
    spec = spec_of([model("m:1", 4)], partitions=(PartitionConfig("fast0", "fast"), SLOW), limits=Limits(hand_off_ns=0))
    scheduler = Scheduler(spec)
    step(scheduler, 0, *(PartitionReady(f"{kind}0", {"m:1": TWO_SPEEDS[kind]["m:1"]}) for kind in TWO_SPEEDS))
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1], partition="fast0")]
    arrivals = [arrival(2, 5 * MS), *(arrival(number, 20 * MS) for number in range(3, 8))]
    assert step(scheduler, 100 * US, *arrivals) == [dispatch(2, [3, 4], FULL, partition="slow0")]
    assert step(scheduler, MS, completed(1, 0, MS))[-1] == dispatch(3, [2, 5, 6, 7], FULL, partition="fast0")


def test_a_head_that_has_no_other_partition_goes_by_itself_when_its_time_is_worth_no_more_than_two_rows() -> None:
    scheduler = two_speeds("n:1")
    arrivals = [arrival(2, 3200 * US), *(arrival(number, 20 * MS) for number in range(3, 7))]
    assert step(scheduler, 100 * US, *arrivals) == [dispatch(2, [2], FULL, partition="slow0")]


def test_a_head_with_a_place_of_its_own_is_in_time_also_with_two_full_batches_waiting() -> None:
    """Those were admitted because they are in time after it."""
    scheduler = two_speeds("n:1")
    arrivals = [arrival(2, 3200 * US), *(arrival(number, 20 * MS) for number in range(3, 10))]
    assert step(scheduler, 100 * US, *arrivals) == [dispatch(2, [2], FULL, partition="slow0")]
    assert step(scheduler, 3100 * US, completed(2, 100 * US, 3100 * US)) == [
        CompleteRequest(2, Outcome.COMPLETED),
        dispatch(3, range(3, 7), FULL, partition="slow0"),
    ]


# -- which partition of several equals


def chained() -> Scheduler:
    spec = spec_of(
        [model("a:1", 1), model("b:1", 1)], [chain("a:1", "b:1"), single("b:1")], partitions=("cpu0", "cpu1")
    )
    return serving(spec, ONE)


def test_a_stage_runs_where_the_one_before_ran() -> None:
    scheduler = chained()
    assert step(scheduler, 0, arrival(1, 40 * MS, "chain:1"), arrival(2, 30 * MS, "chain:1")) == [
        dispatch(1, [2], FULL, model="a:1", partition="cpu0"),
        dispatch(2, [1], FULL, model="a:1", partition="cpu1"),
    ]
    # Of the two that are idle then the first is the home of work that has run nowhere yet.
    assert step(scheduler, 10 * MS, completed(2, 0, 10 * MS), completed(1, 0, 10 * MS)) == [
        dispatch(3, [Member(2, 1, 1)], FULL, model="b:1", partition="cpu0"),
        dispatch(4, [Member(1, 1, 1)], FULL, model="b:1", partition="cpu1"),
    ]


def test_a_stage_runs_where_the_one_before_ran_even_though_another_partition_comes_first() -> None:
    scheduler = chained()
    step(scheduler, 0, arrival(1, 20 * MS, "chain:1"), arrival(2, 30 * MS, "chain:1"))
    assert step(scheduler, MS, completed(1, 0, MS), completed(2, 0, MS), arrival(3, 10 * MS, "b:1")) == [
        dispatch(3, [3], FULL, model="b:1", partition="cpu0"),
        dispatch(4, [Member(1, 1, 1)], FULL, model="b:1", partition="cpu1"),
    ]
    scheduler = chained()
    step(scheduler, 0, arrival(1, 30 * MS, "chain:1"), arrival(2, 20 * MS, "chain:1"))
    # Request 1 ran on cpu1, which is idle like cpu0.
    step(scheduler, MS, completed(1, 0, MS))
    step(scheduler, 2 * MS, completed(3, MS, 2 * MS))
    assert step(scheduler, 3 * MS, completed(2, 0, 3 * MS)) == [
        dispatch(4, [Member(1, 1, 1)], FULL, model="b:1", partition="cpu1")
    ]


def test_a_partition_that_ran_the_stage_before_is_not_waited_for() -> None:
    scheduler = chained()
    step(scheduler, 0, arrival(1, 20 * MS, "chain:1"), arrival(2, 30 * MS, "b:1"), arrival(3, 40 * MS, "b:1"))
    assert step(scheduler, 900 * US) == [dispatch(3, [3], FULL, model="b:1", partition="cpu0")]
    assert step(scheduler, MS, completed(2, 0, MS), completed(1, 0, MS)) == [
        CompleteRequest(2, Outcome.COMPLETED),
        dispatch(4, [Member(1, 1, 1)], FULL, model="b:1", partition="cpu1"),
    ]


def test_of_two_with_one_deadline_the_deeper_stage_comes_first() -> None:
    spec = spec_of([model("a:1", 1), model("b:1", 1)], [chain("a:1", "b:1"), single("a:1")])
    scheduler = serving(spec, ONE)
    step(scheduler, 0, arrival(1, 20 * MS, "chain:1"))
    assert step(scheduler, 100 * US, arrival(2, 20 * MS, "a:1")) == []
    assert step(scheduler, 800 * US, completed(1, 0, 800 * US)) == [dispatch(2, [Member(1, 1, 1)], FULL, model="b:1")]


# -- plans


VARIANTS = PipelineConfig("either:1", (StageConfig("s", "m:1", variants=("m:1", "n:1")),), slo_ns=20 * MS)


def awaiting_plan(spec: SchedulerSpec, tables: dict[str, dict[str, LatencyTable]]) -> Scheduler:
    """A scheduler that has asked for its first plan."""
    scheduler = Scheduler(spec, LivePlanner())
    ready = [PartitionReady(partition.name, tables[partition.kind]) for partition in spec.partitions]
    (order,) = step(scheduler, 0, *ready)
    assert isinstance(order, BuildPlan)
    assert order.build == 1
    return scheduler


def test_a_plan_for_a_variant_switches_the_model_and_what_is_queued_for_the_other_still_runs() -> None:
    spec = spec_of([model("m:1", 1), model("n:1", 1)], [VARIANTS])
    scheduler = awaiting_plan(spec, {"cpu1": {"m:1": ONE, "n:1": ONE}})
    assert step(scheduler, 0, arrival(1, 20 * MS, "either:1"), arrival(2, 30 * MS, "either:1")) == [
        dispatch(1, [1], FULL)
    ]
    assert step(scheduler, 100 * US, PlanBuilt(1, Plan((pipeline_plan("either:1", stage_plan("n:1")),)))) == []
    assert step(scheduler, 200 * US, arrival(3, 10 * MS, "either:1"), arrival(4, 40 * MS, "either:1")) == []
    assert step(scheduler, 850 * US) == [dispatch(2, [3], FULL, model="n:1")]
    assert step(scheduler, MS, completed(1, 0, MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    assert step(scheduler, 1850 * US) == [dispatch(3, [2], FULL, model="m:1")]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [CompleteRequest(3, Outcome.COMPLETED)]
    assert step(scheduler, 2850 * US) == [dispatch(4, [4], FULL, model="n:1")]


def test_a_plan_for_a_variant_that_no_partition_holds_changes_no_model() -> None:
    scheduler = awaiting_plan(spec_of([model("m:1", 1), model("n:1", 1)], [VARIANTS]), {"cpu1": {"m:1": ONE}})
    step(scheduler, 100 * US, PlanBuilt(1, Plan((pipeline_plan("either:1", stage_plan("n:1")),))))
    assert step(scheduler, 200 * US, arrival(1, 20 * MS, "either:1")) == [dispatch(1, [1], FULL)]


def test_options_are_those_of_the_partitions_that_there_are() -> None:
    """A worker comes back without the model while its stage, which has a choice of batch sizes, is ranked."""
    rest = CostToGo((3 * MS, 8 * MS), (2.0, 1.0))
    spec = spec_of([model("m:1", 4), model("n:1", 4)], [chain("m:1", "n:1", slo_ns=20 * MS)], partitions=(SLOW, FAST))
    plan = Plan((pipeline_plan("chain:1", stage_plan("m:1", rest), stage_plan("n:1")),))
    scheduler = planned(spec, TABLES, plan)
    assert step(scheduler, 0, arrival(1, 12 * MS, "chain:1")) == [
        dispatch(1, [1], ReleaseReason.IDLE, partition="slow0")
    ]
    step(scheduler, MS, PartitionReady("slow0", {"n:1": THREE}))
    assert step(scheduler, 2 * MS, arrival(2, 14 * MS, "chain:1")) == []
    gathered_ns = scheduler.next_wakeup_ns()
    assert gathered_ns is not None
    assert step(scheduler, gathered_ns) == [dispatch(2, [2], ReleaseReason.DELAY, partition="fast0")]


# -- kinds of partitions, with a plan


def with_plan() -> Scheduler:
    """Two stages of one row at a time on a fast and a slow partition; the second takes 1 ms at the least."""
    spec = spec_of(
        [model("m:1", 1), model("n:1", 1)],
        [chain("m:1", "n:1", slo_ns=20 * MS), single("m:1")],
        partitions=(FAST, SLOW),
    )
    rest = CostToGo((1150 * US, 3150 * US), (0.004, 0.003))
    plan = Plan((pipeline_plan("chain:1", stage_plan("m:1", rest), stage_plan("n:1", CostToGo((0,), (0.0,)))),))
    return planned(spec, TABLES, plan)


def test_places_of_a_plan_are_where_batches_cost_least() -> None:
    scheduler = with_plan()
    step(scheduler, 0, arrival(1, 20 * MS, "chain:1"))
    assert [place and place[0].partition.name for place in scheduler.requests[1].places] == [None, "slow0"]
    step(scheduler, 0, arrival(2, 5 * MS, "chain:1"))
    # It has no time for the slow partition, on which the first one runs.
    assert [place and place[0].partition.name for place in scheduler.requests[2].places] == [None, "fast0"]


def test_with_a_plan_what_has_time_does_not_wait_behind_what_needs_a_quicker_partition() -> None:
    scheduler = with_plan()
    assert step(scheduler, 0, arrival(1, 2 * MS)) == [dispatch(1, [1], FULL, partition="fast0")]
    assert step(scheduler, 100 * US, arrival(2, 3900 * US, "chain:1")) == []
    assert step(scheduler, 200 * US, arrival(3, 15 * MS, "chain:1")) == [dispatch(2, [3], FULL, partition="slow0")]
    assert step(scheduler, 850 * US) == [dispatch(3, [2], FULL, partition="fast0")]


def test_with_a_plan_what_is_late_in_any_case_takes_the_cheapest_open_partition() -> None:
    scheduler = with_plan()
    step(scheduler, 0, arrival(1, 5 * MS, "chain:1"))
    # The second stage is there so late that neither partition is in time.
    late = step(scheduler, 4900 * US, completed(1, 0, 4900 * US))
    assert dispatch(2, [Member(1, 1, 1)], FULL, model="n:1", partition="slow0") in late


def test_with_a_plan_what_is_late_runs_in_batches_that_the_cheapest_open_partition_can_run() -> None:
    spec = spec_of([model("m:1", 2), model("n:1", 2)], [chain("m:1", "n:1", slo_ns=20 * MS)], partitions=(FAST, SLOW))
    pairs = LatencyTable.from_ms({1: 1, 2: 1})
    tables = {"fast": {"m:1": pairs, "n:1": pairs}, "slow": {"m:1": THREE, "n:1": THREE}}
    rest = CostToGo((1150 * US, 3150 * US), (0.004, 0.003))
    plan = Plan((pipeline_plan("chain:1", stage_plan("m:1", rest), stage_plan("n:1", CostToGo((0,), (0.0,)))),))
    scheduler = planned(spec, tables, plan)
    ran_out_of_memory(scheduler.dispatcher.models["n:1"], "slow", 2, 0)
    first = step(scheduler, 0, arrival(1, 5 * MS, "chain:1"), arrival(2, 5 * MS, "chain:1"))
    ended = [completed(each.batch, 0, 4900 * US) for each in first if isinstance(each, DispatchBatch)]
    late = [each for each in step(scheduler, 4900 * US, *ended) if isinstance(each, DispatchBatch)]
    assert {(each.partition, each.rows) for each in late} <= {("slow0", 1), ("fast0", 1), ("fast0", 2)}
    assert ("slow0", 1) in {(each.partition, each.rows) for each in late}
