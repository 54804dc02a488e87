"""Batches by the rules of plans: 150 us of hand-off; a fast partition takes 1 ms a row, a slow one 3 ms for less."""

import msgspec

from sluice.batcher.interface.config import PartitionConfig, PipelineConfig
from sluice.batcher.interface.decisions import AnyDecision, BuildPlan, DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.events import PartitionLost, PlanBuilt, RequestArrived
from sluice.batcher.interface.plan_data import CostToGo, FixedOption, GroupSearch, Plan, StagePlan
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
    model,
    pipeline_plan,
    planned,
    single,
    spec_of,
    stage_plan,
    step,
)

FAST, SLOW = PartitionConfig("fast0", "fast", price=4), PartitionConfig("slow0", "slow")
THREE = LatencyTable.from_ms({1: 3})
TABLES = {"fast": {"m:1": ONE, "n:1": ONE}, "slow": {"m:1": THREE, "n:1": THREE}}
FULL, DELAY, IDLE = ReleaseReason.FULL, ReleaseReason.DELAY, ReleaseReason.IDLE


def ruled(rule: FixedOption | GroupSearch, rest: CostToGo | None = None) -> StagePlan:
    return msgspec.structs.replace(stage_plan("m:1", rest), rule=rule)


def following(
    rule: FixedOption | GroupSearch,
    *,
    rows: int = 4,
    partitions: tuple[PartitionConfig, ...] = (SLOW, FAST),
    pipeline: PipelineConfig | None = None,
    stages: tuple[StagePlan, ...] = (),
) -> Scheduler:
    """A scheduler whose plan has a rule for the stage of its pipeline."""
    pipeline = pipeline or single("m:1")
    spec = spec_of([model("m:1", rows), model("n:1", rows)], [pipeline], partitions=partitions)
    return planned(spec, TABLES, Plan((pipeline_plan(pipeline.name, *(stages or (ruled(rule),))),)))


def late(count: int) -> list[RequestArrived]:
    """Requests that are refused, but count as traffic."""
    return [arrival(1000 + number, 1) for number in range(count)]


def batches(decisions: list[AnyDecision]) -> list[AnyDecision]:
    return [each for each in decisions if isinstance(each, DispatchBatch)]


def rules(scheduler: Scheduler) -> list[str]:
    """By which rules the batches run that are under way."""
    return [batch.rule for batch in scheduler.dispatcher.batches.values()]


def fallbacks(scheduler: Scheduler) -> dict[str, int]:
    return dict(scheduler.dispatcher.rules.fallbacks)


# -- a fixed option


def test_a_fixed_batch_waits_on_its_kind_until_it_is_full() -> None:
    scheduler = following(FixedOption(3, "slow", 5 * MS))
    assert step(scheduler, 0, arrival(1, 50 * MS), arrival(2, 50 * MS)) == []
    assert step(scheduler, MS, arrival(3, 50 * MS)) == [dispatch(1, [1, 2, 3], FULL, partition="slow0")]
    assert fallbacks(scheduler) == {}
    assert rules(scheduler) == ["exact: fixed"]


def test_a_fixed_batch_is_closed_when_its_first_row_has_waited() -> None:
    scheduler = following(FixedOption(3, "slow", 5 * MS))
    assert step(scheduler, 0, arrival(1, 50 * MS)) == []
    assert step(scheduler, 4 * MS, arrival(2, 50 * MS)) == []
    assert scheduler.next_wakeup_ns() == 5 * MS
    assert step(scheduler, 5 * MS) == [dispatch(1, [1, 2], DELAY, partition="slow0")]


def test_a_fixed_batch_is_not_larger_than_its_plan_has_it() -> None:
    scheduler = following(FixedOption(2, "fast", 5 * MS))
    arrivals = [arrival(number, 50 * MS) for number in range(1, 6)]
    assert step(scheduler, 0, *arrivals) == [dispatch(1, [1, 2], FULL, partition="fast0")]


def test_rows_of_a_fixed_kind_wait_for_it_while_another_is_idle() -> None:
    scheduler = following(FixedOption(1, "slow", 0))
    assert step(scheduler, 0, arrival(1, 50 * MS), arrival(2, 50 * MS)) == [dispatch(1, [1], FULL, partition="slow0")]
    assert step(scheduler, MS) == []
    assert batches(step(scheduler, 3 * MS, completed(1, 0, 3 * MS))) == [dispatch(2, [2], FULL, partition="slow0")]


def test_rows_that_waited_by_a_plan_go_by_the_next_one_at_once() -> None:
    scheduler = following(FixedOption(4, "slow", 4 * S))
    assert step(scheduler, 0, arrival(1, 9 * S)) == []
    (order,) = [each for each in step(scheduler, S, *late(500)) if isinstance(each, BuildPlan)]
    assert batches(step(scheduler, S + MS)) == []
    plan = Plan((pipeline_plan("m:1", ruled(FixedOption(1, "fast", 0))),))
    assert step(scheduler, S + 2 * MS, PlanBuilt(order.build, plan)) == [dispatch(1, [1], FULL, partition="fast0")]


def test_without_its_kind_a_batch_runs_elsewhere_and_is_counted() -> None:
    scheduler = following(FixedOption(4, "slow", 20 * MS))
    assert step(scheduler, 0, arrival(1, 50 * MS)) == []
    assert batches(step(scheduler, MS, PartitionLost("slow0", "gone"))) == [dispatch(1, [1], partition="fast0")]
    assert fallbacks(scheduler) == {"m:1": 1}
    assert rules(scheduler) == ["exact: fallback"]


# -- a search over a group


def test_a_group_has_its_part_of_the_time_left() -> None:
    for share, partition in ((0.5, "slow0"), (0.4, "fast0")):
        scheduler = following(GroupSearch(share), rows=1)
        assert step(scheduler, 0, arrival(1, 7 * MS)) == [dispatch(1, [1], IDLE, partition=partition)]


def test_the_rest_of_a_group_has_its_time_as_well() -> None:
    rest = CostToGo((4 * MS,), (1.0,))
    for deadline_ns, partition in ((7150 * US, "slow0"), (7150 * US - 1, "fast0")):
        scheduler = following(GroupSearch(1.0), rows=1, stages=(ruled(GroupSearch(1.0), rest),))
        assert step(scheduler, 0, arrival(1, deadline_ns)) == [dispatch(1, [1], IDLE, partition=partition)]


def test_the_next_of_the_best_options_runs_while_the_cheapest_is_busy() -> None:
    scheduler = following(GroupSearch(1.0), rows=1)
    assert step(scheduler, 0, arrival(1, 20 * MS), arrival(2, 20 * MS)) == [
        dispatch(1, [1], IDLE, partition="slow0"),
        dispatch(2, [2], IDLE, partition="fast0"),
    ]
    assert rules(scheduler) == ["exact: search"] * 2


def test_rows_wait_while_no_good_option_is_free_and_run_anywhere_where_none_is_good() -> None:
    """Only the fast partition is within the group's part; the slow one is idle all the time."""
    scheduler = following(GroupSearch(0.1), rows=1)
    assert step(scheduler, 0, arrival(1, 15 * MS)) == [dispatch(1, [1], IDLE, partition="fast0")]
    assert step(scheduler, 10 * US, arrival(2, 15 * MS)) == []
    assert step(scheduler, 850 * US) == [dispatch(2, [2], IDLE, partition="fast0")]
    assert fallbacks(scheduler) == {}
    # At 1 ms, 4 ms are left to this one: its group may take 0.4 ms, which no option does.
    assert batches(step(scheduler, MS, completed(1, 0, MS), arrival(3, 5 * MS))) == [
        dispatch(3, [3], FULL, partition="slow0")
    ]
    assert fallbacks(scheduler) == {"m:1": 1}


def test_a_later_stage_runs_where_the_one_before_it_ran() -> None:
    partitions = tuple(PartitionConfig(f"fast{number}", "fast") for number in range(3))
    rule = GroupSearch(1.0)
    stages = ruled(rule), msgspec.structs.replace(stage_plan("n:1"), rule=rule)
    scheduler = following(rule, rows=1, partitions=partitions, pipeline=chain("m:1", "n:1"), stages=stages)
    assert step(scheduler, 0, arrival(1, 9 * MS, "chain:1"), arrival(2, 9 * MS, "chain:1")) == [
        dispatch(1, [1], IDLE, partition="fast0"),
        dispatch(2, [2], IDLE, partition="fast1"),
    ]
    assert step(scheduler, MS, completed(2, 0, MS)) == [
        dispatch(3, [Member(2, 1, 1)], IDLE, model="n:1", partition="fast1")
    ]
