"""A group's partitions and what waits for them; batches take 1 ms, the hand-off 150 us."""

from sluice.batcher.fleet.partition_group import (
    first_available,
    first_idle,
    planned_until_ns,
    start_after_backlog_ns,
    start_ns,
)
from sluice.batcher.fleet.run_queue import RunQueue
from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import BuildPlan, CompleteRequest, ReleaseReason, UnloadModel
from sluice.batcher.interface.events import ModelLoaded, PartitionLost, PartitionReady, PlanBuilt
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.plan_data import Plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.queues.queue import Queue
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.state import PartitionGroup
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    MS,
    ONE,
    US,
    S,
    arrival,
    completed,
    dispatch,
    model,
    serving,
    spec_of,
    step,
)

FULL = ReleaseReason.FULL
OTHER = LatencyTable.from_ms({1: 5})


def scheduler_of(*names: str) -> Scheduler:
    """Equal partitions; requests for m take 1 ms each, those for n 5 ms, one after the other."""
    return serving(spec_of([model("m:1", 1), model("n:1", 1)], partitions=names), {"m:1": ONE, "n:1": OTHER})


def group_of(scheduler: Scheduler, name: str = "cpu0") -> PartitionGroup:
    group = scheduler.dispatcher.fleet.partitions[name].group
    assert group is not None
    return group


def test_the_first_idle_partition_takes_the_first_batch() -> None:
    scheduler = scheduler_of("cpu0", "cpu1", "cpu2")
    assert step(scheduler, 0, arrival(1, 10 * MS), arrival(2, 20 * MS)) == [
        dispatch(1, [1], FULL, partition="cpu0"),
        dispatch(2, [2], FULL, partition="cpu1"),
    ]
    idle = first_idle(group_of(scheduler))
    assert idle is not None
    assert idle.name == "cpu2"


def test_the_next_batch_starts_on_the_partition_that_is_free_first() -> None:
    scheduler = scheduler_of("cpu0", "cpu1")
    step(scheduler, 0, arrival(1, 10 * MS, "n:1"), arrival(2, 20 * MS))
    group = group_of(scheduler)
    assert start_ns(group, 100 * US) == MS
    assert first_available(group, 849 * US) is None
    opening = first_available(group, 850 * US)
    assert opening is not None
    assert opening.name == "cpu1"
    assert step(scheduler, 100 * US, arrival(3, 30 * MS)) == []
    assert step(scheduler, 850 * US) == [dispatch(3, [3], FULL, partition="cpu1")]
    # cpu1 is now to be free at 2 ms, cpu0 at 5 ms.
    assert start_ns(group, 900 * US) == 2 * MS
    assert step(scheduler, MS, completed(2, 0, MS)) == [CompleteRequest(2, Outcome.COMPLETED)]
    assert start_ns(group, MS) == 2 * MS


def test_the_work_that_is_promised_is_spread_over_the_partitions_that_are_up() -> None:
    scheduler = scheduler_of("cpu0", "cpu1")
    step(scheduler, 0, *(arrival(number, S) for number in range(6)))
    partitions = scheduler.dispatcher.fleet.partitions
    # Four wait, 1 ms each; both partitions are free at 1 ms.
    assert [partitions[name].planned_ns for name in ("cpu0", "cpu1")] == [2 * MS, 2 * MS]
    assert start_after_backlog_ns(group_of(scheduler), 0) == 3 * MS


def test_the_gaps_that_are_seen_between_batches_count_for_all_that_is_planned() -> None:
    scheduler = scheduler_of("cpu0")
    step(scheduler, 0, *(arrival(number, S) for number in range(7)))
    step(scheduler, 850 * US)
    step(scheduler, MS, completed(1, 0, MS))
    partition = scheduler.dispatcher.fleet.partitions["cpu0"]
    assert partition.between_ns == 0
    # The second batch was there before the first one ended, and began 200 us after that: a twentieth is believed.
    step(scheduler, 2_200 * US, completed(2, 1_200 * US, 2_200 * US))
    assert partition.between_ns == 10 * US
    # One runs until 3.2 ms, and four are planned.
    assert planned_until_ns(partition, 2_200 * US) == 7_200 * US + 4 * 10 * US


def test_the_gap_before_a_batch_that_came_later_is_none_between_batches() -> None:
    scheduler = scheduler_of("cpu0")
    step(scheduler, 0, arrival(1, S))
    step(scheduler, MS, completed(1, 0, MS))
    step(scheduler, 5 * MS, arrival(2, S))
    step(scheduler, 6 * MS, completed(2, 5 * MS, 6 * MS))
    assert scheduler.dispatcher.fleet.partitions["cpu0"].between_ns == 0


def test_partitions_of_different_speed_are_promised_as_much_as_each_can_do() -> None:
    """3 ms and 0.9 ms a row: each row is for the partition where it ends first."""
    spec = spec_of([model("m:1", 1)], partitions=(PartitionConfig("a", "fast"), PartitionConfig("b", "slow")))
    scheduler = Scheduler(spec)
    tables = {"a": LatencyTable.from_ms({1: 0.9}), "b": LatencyTable.from_ms({1: 3})}
    step(scheduler, 0, *(PartitionReady(name, {"m:1": table}) for name, table in tables.items()))
    step(scheduler, 0, *(arrival(number, S) for number in range(10)))
    # Two run, eight wait: one of them for the slow one, which ends at 6 ms, the other at 7.2 ms.
    assert [scheduler.dispatcher.fleet.partitions[name].planned_ns for name in "ab"] == [6_300 * US, 3_000 * US]


def test_what_a_busy_partition_runs_counts_also_once_it_has_an_equal() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], partitions=("cpu0", "cpu1")), ONE)
    step(scheduler, 0, PartitionLost("cpu1", "killed"), PartitionReady("cpu1", {}))
    step(scheduler, 0, arrival(1, S))
    assert group_of(scheduler).only is not None
    step(scheduler, 500 * US, PartitionReady("cpu1", {"m:1": ONE}), arrival(2, S))
    group = group_of(scheduler)
    assert len(group.partitions) == 2
    # cpu0 is free at 1 ms, cpu1 at 1.5 ms.
    assert start_ns(group, 500 * US) == MS


def test_a_partition_that_gets_another_model_takes_what_waits_along() -> None:
    """Loading cpu1 makes it the equal of cpu0; what waited for either still runs there."""
    spec = spec_of([model("m:1", 1), model("n:1", 1)], partitions=("cpu0", "cpu1"))
    scheduler = serving(spec, {"m:1": ONE, "n:1": ONE})
    step(scheduler, 0, PartitionLost("cpu1", "killed"), PartitionReady("cpu1", {"m:1": ONE}))
    step(scheduler, 0, *(arrival(number, S) for number in range(4)), arrival(4, S, "n:1"), arrival(5, S, "n:1"))
    assert [partition.name for partition in group_of(scheduler).partitions.values()] == ["cpu0"]
    # Each partition has one batch; requests 2 and 3 and those for n wait.
    assert step(scheduler, 100 * US, ModelLoaded("cpu1", "n:1", ONE)) == []
    assert group_of(scheduler) is group_of(scheduler, "cpu1")
    assert step(scheduler, 850 * US) == [
        dispatch(3, [2], FULL, partition="cpu0"),
        dispatch(4, [3], FULL, partition="cpu1"),
    ]
    step(scheduler, MS, completed(1, 0, MS), completed(2, 0, MS))
    assert step(scheduler, 1850 * US) == [
        dispatch(5, [4], FULL, model="n:1", partition="cpu0"),
        dispatch(6, [5], FULL, model="n:1", partition="cpu1"),
    ]


def test_a_lone_request_is_gathered_for_also_on_a_partition_that_unloads_another_model_meanwhile() -> None:
    """Idle cpu0 waits for company for request 1 and gives up n, which moves it: nothing else reminds of the request."""
    table = LatencyTable.from_ms({1: 1, 2: 1.1, 4: 1.2, 8: 1.4})
    spec = spec_of([model("m:1"), model("n:1")], partitions=("cpu0", "cpu1"))
    scheduler = Scheduler(spec, LivePlanner())
    assert isinstance(step(scheduler, 0, PartitionReady("cpu0", {"m:1": table, "n:1": table}))[0], BuildPlan)
    step(scheduler, 0, PartitionReady("cpu1", {"n:1": table}))
    step(scheduler, 0, *(arrival(number, S) for number in range(3)))
    step(scheduler, 2 * MS, completed(1, 0, 2 * MS))
    assert step(scheduler, 2 * MS, arrival(7, S)) == []
    decisions = step(scheduler, 2 * MS, PlanBuilt(1, Plan((), {"cpu0": ("m:1",)})))
    assert decisions == [UnloadModel("cpu0", "n:1")]
    # A tenth of the time of three rows: of 1.2 ms, 0.2 % longer by the median, and 59.4 us for the tail.
    assert scheduler.next_wakeup_ns() == 2_126_180
    assert step(scheduler, 2_126_180) == [dispatch(2, [7], ReleaseReason.DELAY)]


def test_a_queue_whose_time_has_come_is_forgotten_also_where_a_partition_that_never_idles_would_recall_it() -> None:
    """Queues come and go with the shapes of requests: on a busy partition those that are gone must not pile up."""
    group = PartitionGroup(0, "cpu1", frozenset({"m:1"}), 1.0)
    queue = Queue("m:1", "x=3")
    run_queue = RunQueue(group)
    run_queue.defer(queue, 5, 8)
    run_queue.wait_for_idle(queue, 3)
    run_queue.fire_timers(4)
    assert queue in run_queue.waiting_for_idle
    run_queue.fire_timers(5)
    assert (run_queue.waiting_for_idle, run_queue.deferred, run_queue.waiting) == ({}, {}, [])
