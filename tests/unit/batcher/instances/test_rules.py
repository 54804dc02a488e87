"""Rules by which models share partitions: which request is next, on which partition, and what is loaded for it."""

import msgspec
import pytest

from sluice.batcher.interface.config import (
    Limits,
    PartitionConfig,
    PolicyConfig,
    PriorityLevels,
    ScheduledModel,
    SchedulerSpec,
)
from sluice.batcher.interface.decisions import (
    AnyDecision,
    DispatchBatch,
    EvictRequest,
    LoadModel,
    RejectRequest,
    UnloadModel,
)
from sluice.batcher.interface.events import (
    BatchFailed,
    FailureCause,
    ModelLoaded,
    ModelLoadFailed,
    PartitionLost,
    PartitionReady,
    RequestCancelled,
    ServingChanged,
)
from sluice.batcher.interface.instance_config import InstanceConfig, InstanceRule, instance_config
from sluice.batcher.interface.residency_config import Loading, ResidencyConfig
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.policies.no_batching import NoBatchingSettings
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.dynamic_batching import QueuePolicy
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, arrival, completed, spec_of, step

TABLES = {"short": LatencyTable.from_ms({1: 1, 4: 2}), "long": LatencyTable.from_ms({1: 10, 4: 20})}
BALANCE = InstanceRule.BALANCE


def pool_of(
    rule: InstanceRule | InstanceConfig,
    partitions: int = 2,
    *,
    policy: PolicyConfig | None = None,
    max_batch: int = 1,
    room: int = 0,
) -> SchedulerSpec:
    """Two models of one byte that share partitions; with `room` for that many of them they are loaded on demand."""
    models = [
        ScheduledModel(key, max_batch, policy or NoBatchingSettings(), memory_bytes=1, instances=instance_config(rule))
        for key in TABLES
    ]
    spec = spec_of(
        models,
        partitions=[PartitionConfig(f"p{number}", "gpu", memory_bytes=room) for number in range(partitions)],
        limits=Limits(hand_off_ns=0),
    )
    loading = Loading.DEMAND if room else Loading.PLAN
    return msgspec.structs.replace(spec, residency=ResidencyConfig(loading, min_resident_ns=0))


def up(spec: SchedulerSpec, **held: str) -> Scheduler:
    """A scheduler whose partitions hold all models, or on demand those in `held`."""
    scheduler = Scheduler(spec)
    on_demand = spec.residency.loading is Loading.DEMAND
    for partition in spec.partitions:
        keys = held.get(partition.name, "").split() if on_demand else list(TABLES)
        step(scheduler, 0, PartitionReady(partition.name, {key: TABLES[key] for key in keys}))
    return scheduler


def batches(decisions: list[AnyDecision]) -> list[tuple[str, str, list[int]]]:
    """The partition, the model and the requests of each batch."""
    found = [each for each in decisions if isinstance(each, DispatchBatch)]
    return [(each.partition, each.model, [member.request for member in each.members]) for each in found]


def orders(decisions: list[AnyDecision]) -> list[tuple[str, str, str]]:
    """The loads and unloads."""
    return [
        (type(each).__name__, each.partition, each.model)
        for each in decisions
        if isinstance(each, LoadModel | UnloadModel)
    ]


def end(scheduler: Scheduler, batch: int, now_ns: int) -> list[tuple[str, str, list[int]]]:
    """The batches after the end of a batch."""
    return batches(step(scheduler, now_ns, completed(batch, 0, now_ns)))


def test_round_robin_waits_for_the_partition_whose_turn_it_is() -> None:
    scheduler = up(pool_of(InstanceRule.ROUND_ROBIN))
    begun = step(scheduler, 1, arrival(1, S, "long"), arrival(2, S, "short"))
    assert batches(begun) == [("p0", "long", [1]), ("p1", "short", [2])]
    assert batches(step(scheduler, 2, arrival(3, S, "short"))) == []
    assert end(scheduler, 2, MS) == [], "p1 is free, but it is the turn of p0"
    assert end(scheduler, 1, 9 * MS) == [("p0", "short", [3])]


def test_balance_takes_the_partition_that_was_given_a_batch_the_longest_ago() -> None:
    scheduler = up(pool_of(BALANCE))
    assert batches(step(scheduler, 1, arrival(1, S, "short"))) == [("p0", "short", [1])]
    end(scheduler, 1, MS // 2)
    assert batches(step(scheduler, MS, arrival(2, S, "short"))) == [("p1", "short", [2])]
    end(scheduler, 2, MS + MS // 2)
    assert batches(step(scheduler, 2 * MS, arrival(3, S, "short"))) == [("p0", "short", [3])]


def test_the_shortest_request_goes_first_however_late_it_came() -> None:
    scheduler = up(pool_of(InstanceRule.SRTF, 1))
    step(scheduler, 1, arrival(1, S, "long"))
    step(scheduler, 2, arrival(2, S, "long"))
    step(scheduler, 3, arrival(3, S, "short"))
    assert end(scheduler, 1, 9 * MS) == [("p0", "short", [3])]
    assert end(scheduler, 2, 9 * MS + MS // 2) == [("p0", "long", [2])]


def test_buckets_are_drawn_about_equally_often_and_as_the_seed_says() -> None:
    def drawn(seed: int) -> list[str]:
        scheduler = up(pool_of(InstanceConfig(InstanceRule.MLFQ, seed=seed), 1))
        requests = [arrival(number, 100 * S, ("short", "long")[number % 2]) for number in range(200)]
        first = batches(step(scheduler, 1, *requests))
        return [first[0][1], *(end(scheduler, number, number * MS)[0][1] for number in range(1, 100))]

    first = drawn(7)
    assert first == drawn(7) != drawn(8)
    assert 35 <= first.count("short") <= 65


def test_each_model_has_its_own_partitions_and_takes_one_where_its_load_is_higher() -> None:
    scheduler = up(pool_of(InstanceRule.EXCLUSIVE, 4))
    begun = batches(step(scheduler, 1, *(arrival(number, S, "short") for number in range(3)), arrival(9, S, "long")))
    assert begun == [("p0", "short", [0]), ("p1", "short", [1]), ("p2", "long", [9])]
    requests = [arrival(100 + number, 1000 * S, "long") for number in range(300)]
    assert batches(step(scheduler, 2, *requests)) == [("p3", "long", [100])]
    assert scheduler.dispatcher.instances.steals == 0, "no model had to take what was no one's"
    assert end(scheduler, 1, MS // 2) == [("p0", "long", [101])], "long asks for 1000 times as much time"
    assert end(scheduler, 2, MS // 2 + 1) == [("p1", "short", [2])]
    assert scheduler.dispatcher.instances.steals == 1


def test_a_model_without_partitions_takes_one_of_those_that_have_several_or_are_idle() -> None:
    scheduler = up(pool_of(InstanceRule.EXCLUSIVE, 1))
    assert batches(step(scheduler, 1, arrival(1, S, "short"))) == [("p0", "short", [1])]
    assert batches(step(scheduler, 2, arrival(2, S, "long"))) == []
    assert end(scheduler, 1, MS // 2) == [("p0", "long", [2])]


def test_time_on_a_partition_without_the_model_counts_more_and_is_not_used_while_waiting_is_shorter() -> None:
    scheduler = up(pool_of(InstanceRule.CFS_AFFINITY, room=2), p0="short", p1="long")
    begun = step(scheduler, 1, *(arrival(number, 10 * S, "short") for number in range(3)))
    assert (batches(begun), orders(begun)) == ([("p0", "short", [0])], [])
    waiting = [arrival(100 + number, 1000 * S, "short") for number in range(1500)]
    assert orders([decision for each in waiting for decision in scheduler.handle(each, 2)]) == []
    found = step(scheduler, 3, RequestCancelled(1))
    assert orders(found) == [("LoadModel", "p1", "short")], "they would wait for longer than a load of a second"


def test_models_go_to_the_first_free_partition_from_their_home_on() -> None:
    """The hashes of "short" and "long", 109413500 and 3327612, are multiples of 4: both begin with p0."""
    scheduler = up(pool_of(InstanceRule.HOME_HASH, 4))
    begun = step(scheduler, 1, *(arrival(number, S, "short") for number in range(3)))
    assert [partition for partition, _, _ in batches(begun)] == ["p0", "p1", "p2"]
    end(scheduler, 1, MS // 2)
    assert batches(step(scheduler, MS // 2 + 1, arrival(4, S, "long"))) == [("p0", "long", [4])]


def test_a_chosen_partition_loads_the_model_and_runs_nothing_else_before() -> None:
    scheduler = up(pool_of(BALANCE, 1, room=1), p0="long")
    begun = step(scheduler, 1, arrival(1, 10 * S, "short"))
    assert orders(begun) == [("UnloadModel", "p0", "long"), ("LoadModel", "p0", "short")]
    assert step(scheduler, 2, arrival(2, 10 * S, "long")) == []
    assert batches(step(scheduler, 3, ModelLoaded("p0", "short", TABLES["short"]))) == [("p0", "short", [1])]
    after = step(scheduler, MS, completed(1, 0, MS))
    assert orders(after) == [("UnloadModel", "p0", "short"), ("LoadModel", "p0", "long")]
    instances = scheduler.dispatcher.instances
    assert (instances.warm, instances.cold) == (0, 2)


@pytest.mark.parametrize("trouble", [ModelLoadFailed("p0", "short", "broken"), PartitionLost("p0", "killed")])
def test_what_was_to_run_where_a_load_failed_or_a_worker_was_lost_runs_elsewhere(
    trouble: ModelLoadFailed | PartitionLost,
) -> None:
    scheduler = up(pool_of(BALANCE, room=1))
    assert orders(step(scheduler, 1, arrival(1, 10 * S, "short"))) == [("LoadModel", "p0", "short")]
    assert orders(step(scheduler, 2, trouble)) == [("LoadModel", "p1", "short")]
    assert batches(step(scheduler, 3, ModelLoaded("p1", "short", TABLES["short"]))) == [("p1", "short", [1])]


def test_a_batch_that_failed_competes_again() -> None:
    scheduler = up(pool_of(BALANCE, max_batch=4, policy=TimeoutConfig()))
    step(scheduler, 1, arrival(1, S, "short"), arrival(2, S, "short"))
    again = step(scheduler, 2, BatchFailed(1, FailureCause.BACKEND, "no"))
    assert batches(again) == [("p1", "short", [1]), ("p0", "short", [2])]


def test_a_batch_fills_while_its_partition_waits_or_loads() -> None:
    scheduler = up(pool_of(BALANCE, 1, max_batch=4, policy=TimeoutConfig(max_delay_ns=5 * MS)))
    assert batches(step(scheduler, 1, arrival(1, S, "short"))) == []
    assert batches(step(scheduler, MS, arrival(2, S, "short"))) == []
    assert batches(step(scheduler, 5 * MS + 1)) == [("p0", "short", [1, 2])]
    scheduler = up(pool_of(BALANCE, 1, max_batch=4, policy=TimeoutConfig(), room=1))
    step(scheduler, 1, arrival(1, 10 * S, "short"))
    step(scheduler, 2, *(arrival(number, 10 * S, "short") for number in range(2, 7)))
    loaded = step(scheduler, 3, ModelLoaded("p0", "short", TABLES["short"]))
    assert batches(loaded) == [("p0", "short", [1, 2, 3, 4])]


@pytest.mark.parametrize("lookahead", [False, True])
def test_a_request_that_is_sent_ahead_holds_others_up_only_with_lookahead(lookahead: bool) -> None:
    scheduler = up(pool_of(InstanceConfig(InstanceRule.SRTF, lookahead), 1))
    early = msgspec.structs.replace(arrival(1, S, "short"), not_before_ns=5 * MS)
    begun = batches(step(scheduler, 1, early, arrival(2, S, "long")))
    assert begun == ([] if lookahead else [("p0", "long", [2])])
    if lookahead:
        assert scheduler.next_wakeup_ns() == 5 * MS
        assert batches(step(scheduler, 5 * MS)) == [("p0", "short", [1])]
    else:
        assert end(scheduler, 1, 4 * MS) == []
        assert scheduler.next_wakeup_ns() == 5 * MS


@pytest.mark.parametrize("policy", [NoBatchingSettings(), DeadlineSettings(), TimeoutConfig()])
def test_a_request_that_is_sent_ahead_neither_delays_nor_joins_those_whose_time_has_come(policy: PolicyConfig) -> None:
    scheduler = up(pool_of(BALANCE, 1, policy=policy, max_batch=4))
    far, near = (
        msgspec.structs.replace(arrival(number, 10 * S, "short"), not_before_ns=begin * MS)
        for number, begin in ((1, 900), (2, 50))
    )
    assert batches(step(scheduler, 1, far, near)) == []
    assert batches(step(scheduler, 2, arrival(3, S, "short"))) == [("p0", "short", [3])]
    end(scheduler, 1, 3 * MS)
    assert scheduler.next_wakeup_ns() == 50 * MS
    begun = [
        (where, what, sorted(who)) for where, what, who in batches(step(scheduler, 50 * MS, arrival(4, S, "short")))
    ]
    assert begun == [("p0", "short", [2] if isinstance(policy, NoBatchingSettings) else [2, 4])]
    assert scheduler.queue_depths()["short"] == (2 if isinstance(policy, NoBatchingSettings) else 1)


def test_the_time_in_a_queue_counts_from_when_a_request_that_is_sent_ahead_may_begin() -> None:
    levels = PriorityLevels(policy=QueuePolicy(default_timeout_us=5000))
    scheduler = up(pool_of(BALANCE, 1, policy=TimeoutConfig(levels=levels), max_batch=4))
    ahead = [msgspec.structs.replace(arrival(number, S, "short"), not_before_ns=40 * MS) for number in (1, 2)]
    step(scheduler, 1, *ahead)
    step(scheduler, 30 * MS, RequestCancelled(1))
    step(scheduler, 39 * MS, arrival(3, S, "long"))
    assert batches(step(scheduler, 40 * MS)) == []
    evicted = [each for each in step(scheduler, 45 * MS) if isinstance(each, EvictRequest)]
    assert [each.request for each in evicted] == [2]


def test_a_request_that_is_sent_ahead_is_refused_if_it_has_too_little_time_from_its_start() -> None:
    scheduler = up(pool_of(BALANCE, 1))
    for number, deadline_ns, refused in ((1, 101 * MS, True), (2, 111 * MS, False)):
        ahead = msgspec.structs.replace(arrival(number, deadline_ns, "long"), not_before_ns=100 * MS)
        decisions = step(scheduler, number, ahead)
        assert [type(each) for each in decisions] == [RejectRequest] * refused


def test_withdrawn_requests_leave_the_partition_to_others() -> None:
    scheduler = up(pool_of(BALANCE, 1, room=1))
    step(scheduler, 1, arrival(1, 10 * S, "short"))
    step(scheduler, 2, arrival(2, 10 * S, "long"), RequestCancelled(1))
    loaded = step(scheduler, 3, ModelLoaded("p0", "short", TABLES["short"]))
    assert orders(loaded) == [("UnloadModel", "p0", "short"), ("LoadModel", "p0", "long")]


@pytest.mark.parametrize(
    "ended", [ModelLoaded("p0", "short", TABLES["short"]), ModelLoadFailed("p0", "short", "broken")]
)
def test_a_model_may_be_removed_while_it_is_loaded_for_a_request_that_is_cancelled(
    ended: ModelLoaded | ModelLoadFailed,
) -> None:
    scheduler = up(pool_of(BALANCE, 1, room=1))
    step(scheduler, 1, arrival(1, 10 * S, "short"))
    step(scheduler, 2, RequestCancelled(1), ServingChanged(retired=("short",)))
    step(scheduler, 3, ended)
    assert "short" not in scheduler.dispatcher.models
    assert not scheduler.dispatcher.instances.chosen
    assert orders(step(scheduler, 4, arrival(2, 10 * S, "long"))) == [("LoadModel", "p0", "long")]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"name": "srtf", "seed": 1}, "seed belongs to mlfq, not to srtf"),
        ({"name": "mlfq", "seed": -1}, "seed: expected at least 0, got -1"),
        ({"name": "exclusive", "steal_at": 0.5}, "steal_at: expected a finite number of at least 1, got 0.5"),
        ({"name": "locality", "lookahead": True}, "lookahead: expected another rule than locality"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.convert(settings, InstanceConfig)


def test_locality_is_no_policy() -> None:
    assert instance_config(InstanceRule.LOCALITY) is None
    assert instance_config(InstanceConfig(InstanceRule.LOCALITY)) is None
    assert instance_config(InstanceRule.SRTF) == InstanceConfig(InstanceRule.SRTF)
