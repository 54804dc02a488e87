"""Batches that ran out of memory: smaller ones are made on such partitions, and larger ones again later."""

from itertools import pairwise

import msgspec
import pytest

from sluice.batcher.estimates.batch_limit import BatchLimit
from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.interface.config import PartitionConfig, PolicyConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CompleteRequest,
    DispatchBatch,
    FailRequest,
    Member,
    ReleaseReason,
)
from sluice.batcher.interface.events import (
    BatchFailed,
    FailureCause,
    PartitionLost,
    PartitionReady,
    PartitionResized,
    RequestCancelled,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.residency_config import Footprint
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, arrival, completed, dispatch, model, serving, spec_of, step

FLAT = LatencyTable.from_ms({1: 1, 2: 1.1, 4: 1.2, 8: 1.3})
FULL, RETRY = ReleaseReason.FULL, ReleaseReason.RETRY
NO_MEMORY = "m:1: Failed to allocate memory for requested buffer of size 4194304"


def ran_out(batch: int) -> BatchFailed:
    return BatchFailed(batch, FailureCause.OUT_OF_MEMORY, NO_MEMORY)


def sizes(decisions: list[AnyDecision]) -> list[int]:
    return [each.rows for each in decisions if isinstance(each, DispatchBatch)]


def drive(scheduler: Scheduler, first: list[AnyDecision], now_ns: int, room: int) -> tuple[list[int], int]:
    """Run batches for 1 ms each, those of more than `room` rows in vain; their sizes, and when all is done."""
    batches = [each for each in first if isinstance(each, DispatchBatch)]
    ran = []
    while batches or scheduler.queue_depths()["m:1"]:
        if not batches:  # the last rows wait for others for a moment
            due_ns = scheduler.next_wakeup_ns()
            assert due_ns is not None, "rows wait for nothing"
            now_ns = due_ns
            batches += [each for each in step(scheduler, now_ns) if isinstance(each, DispatchBatch)]
            continue
        batch = batches.pop(0)
        ran.append(batch.rows)
        now_ns += MS
        event = completed(batch.batch, now_ns - MS, now_ns) if batch.rows <= room else ran_out(batch.batch)
        batches += [each for each in step(scheduler, now_ns, event) if isinstance(each, DispatchBatch)]
    return ran, now_ns


def burst(scheduler: Scheduler, now_ns: int, first: int, count: int = 8) -> list[AnyDecision]:
    return step(scheduler, now_ns, *(arrival(number, now_ns + 100 * S) for number in range(first, first + count)))


def test_a_batch_that_ran_out_of_memory_is_retried_in_halves_and_the_next_are_no_larger() -> None:
    scheduler = serving(spec_of([model("m:1")]), FLAT)
    assert burst(scheduler, 0, 0) == [dispatch(1, range(8), ReleaseReason.FULL)]
    assert step(scheduler, MS, ran_out(1)) == [dispatch(2, range(4), RETRY)]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [
        *(CompleteRequest(number, Outcome.COMPLETED) for number in range(4)),
        dispatch(3, range(4, 8), RETRY),
    ]
    step(scheduler, 3 * MS, completed(3, 2 * MS, 3 * MS))
    assert drive(scheduler, burst(scheduler, 4 * MS, 8), 4 * MS, 4)[0] == [4, 4]
    # Another kind of partition has memory of its own.
    assert {kind: each.rows for kind, each in scheduler.dispatcher.models["m:1"].batch_limits.items()} == {"cpu1": 4}


def test_one_row_without_memory_fails_alone_and_says_so() -> None:
    scheduler = serving(spec_of([model("m:1")]), FLAT)
    burst(scheduler, 0, 0, 2)
    assert step(scheduler, MS, ran_out(1)) == [dispatch(2, [0], RETRY)]
    reason = f"partition cpu0 has no memory for this request alone (1 row): {NO_MEMORY}"
    assert step(scheduler, 2 * MS, ran_out(2)) == [
        FailRequest(0, Outcome.FAILED_BACKEND, reason),
        dispatch(3, [1], RETRY),
    ]
    assert step(scheduler, 3 * MS, completed(3, 2 * MS, 3 * MS)) == [CompleteRequest(1, Outcome.COMPLETED)]


def test_a_request_of_many_rows_without_memory_fails_and_others_run() -> None:
    scheduler = serving(spec_of([model("m:1")]), FLAT)
    step(scheduler, 0, arrival(1, S, rows=8))
    reason = f"partition cpu0 has no memory for this request alone (8 rows): {NO_MEMORY}"
    assert step(scheduler, MS, ran_out(1)) == [FailRequest(1, Outcome.FAILED_BACKEND, reason)]
    assert drive(scheduler, burst(scheduler, 4 * MS, 8), 4 * MS, 4)[0] == [4, 4]


def test_what_was_cancelled_meanwhile_does_not_put_the_blame_on_the_other() -> None:
    scheduler = serving(spec_of([model("m:1")]), FLAT)
    burst(scheduler, 0, 0, 2)
    step(scheduler, MS // 2, RequestCancelled(1))
    assert step(scheduler, MS, ran_out(1)) == [dispatch(2, [0], RETRY)]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [CompleteRequest(0, Outcome.COMPLETED)]


@pytest.mark.parametrize("policy", [DeadlineSettings(), TimeoutConfig()])
def test_larger_batches_are_tried_again_after_a_minute_and_then_after_twice_as_long(policy: PolicyConfig) -> None:
    scheduler = serving(spec_of([model("m:1", 8, policy)]), FLAT)
    now_ns, number = 0, 0
    in_vain: list[int] = []
    while now_ns < 600 * S:
        ran, ended_ns = drive(scheduler, burst(scheduler, now_ns, number), now_ns, 4)
        in_vain += [round(now_ns / S)] * sum(rows > 4 for rows in ran)
        number += 8
        now_ns = max(ended_ns, now_ns + S)
    # The limit is looked at every 16 batches: 8 s here.
    assert len(in_vain) == 4
    waits = [later - sooner for sooner, later in pairwise(in_vain)]
    assert waits == sorted(waits)
    assert 60 <= waits[0] < 70
    assert 120 <= waits[1] < 130
    assert 240 <= waits[2] < 250


def test_with_memory_again_batches_are_as_large_as_ever_and_the_limit_is_forgotten() -> None:
    scheduler = serving(spec_of([model("m:1")]), FLAT)
    _, now_ns = drive(scheduler, burst(scheduler, 0, 0), 0, 2)
    limits = scheduler.dispatcher.models["m:1"].batch_limits
    assert limits["cpu1"].rows == 2
    largest = {}
    for number in range(8, 8 * 250, 8):
        ran, _ = drive(scheduler, burst(scheduler, now_ns, number), now_ns, 8)
        largest[now_ns // S] = max(ran)
        now_ns += S
    assert sorted(set(largest.values())) == [2, 4, 8]
    assert list(largest.values()) == sorted(largest.values())
    assert limits == {}


def test_a_worker_that_comes_back_keeps_to_the_limit() -> None:
    scheduler = serving(spec_of([model("m:1")]), FLAT)
    _, now_ns = drive(scheduler, burst(scheduler, 0, 0), 0, 4)
    slower = LatencyTable.from_ms({1: 0.5, 8: 0.9})
    step(scheduler, now_ns, PartitionReady("cpu0", {"m:1": slower}))
    assert drive(scheduler, burst(scheduler, now_ns, 8), now_ns, 4)[0] == [4, 4]


def test_a_limit_holds_when_partitions_are_of_its_kind_again() -> None:
    known = msgspec.structs.replace(model("m:1"), footprints={"cpu1": Footprint(1, table=FLAT)})
    scheduler = serving(spec_of([known]), FLAT)
    _, now_ns = drive(scheduler, burst(scheduler, 0, 0), 0, 4)
    step(scheduler, now_ns, PartitionLost("cpu0", "it died"), PartitionReady("cpu0", {}))
    for kind in ("cpu2", "cpu1"):
        step(scheduler, now_ns, PartitionResized("cpu0", kind, 1.0, 1.0, {}))
    step(scheduler, now_ns, PartitionLost("cpu0", "it died"), PartitionReady("cpu0", {"m:1": FLAT}))
    assert drive(scheduler, burst(scheduler, now_ns, 8), now_ns, 4)[0] == [4, 4]


def test_the_limit_is_of_one_kind_of_partition() -> None:
    partitions = (PartitionConfig("small", "cpu1"), PartitionConfig("big", "cpu4"))
    scheduler = serving(spec_of([model("m:1")], partitions=partitions), FLAT)
    first = burst(scheduler, 0, 0, 16)
    assert [(each.partition, each.rows) for each in first if isinstance(each, DispatchBatch)] == [
        ("small", 8),
        ("big", 8),
    ]
    step(scheduler, MS, ran_out(1), completed(2, 0, MS))
    estimates = scheduler.dispatcher.models["m:1"].estimates
    assert (estimates["cpu1"].sizes, estimates["cpu4"].sizes) == ((1, 2, 4), (1, 2, 4, 8))


def test_a_request_that_has_no_memory_on_one_kind_runs_on_another_and_so_do_the_next() -> None:
    partitions = (PartitionConfig("small", "cpu1"), PartitionConfig("big", "cpu4"))
    scheduler = serving(spec_of([model("m:1")], partitions=partitions), FLAT)
    assert step(scheduler, 0, arrival(1, S, rows=8)) == [dispatch(1, [Member(1, 0, 8)], FULL, partition="small")]
    assert step(scheduler, MS, ran_out(1)) == [dispatch(2, [Member(1, 0, 8)], RETRY, partition="big")]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    assert step(scheduler, 3 * MS, arrival(2, S, rows=8)) == [dispatch(3, [Member(2, 0, 8)], FULL, partition="big")]
    # The other partition does not wait for it, but what is small enough comes after what was first.
    assert step(scheduler, 4 * MS, completed(3, 3 * MS, 4 * MS)) == [CompleteRequest(2, Outcome.COMPLETED)]
    assert step(scheduler, 5 * MS, arrival(3, S, rows=4)) == [dispatch(4, [Member(3, 0, 4)], FULL, partition="small")]
    # Without the large one there is nothing to be lost by trying.
    step(scheduler, 6 * MS, completed(4, 5 * MS, 6 * MS), PartitionLost("big", "killed"))
    assert step(scheduler, 7 * MS, arrival(4, S, rows=8)) == [dispatch(5, [Member(4, 0, 8)], FULL, partition="small")]
    reason = f"partition small has no memory for this request alone (8 rows): {NO_MEMORY}"
    assert step(scheduler, 8 * MS, ran_out(5)) == [FailRequest(4, Outcome.FAILED_BACKEND, reason)]


def test_what_is_left_to_another_kind_runs_here_when_that_is_lost() -> None:
    partitions = (PartitionConfig("small", "cpu1"), PartitionConfig("big", "cpu4"))
    scheduler = serving(spec_of([model("m:1")], partitions=partitions), FLAT)
    step(scheduler, 0, arrival(1, S, rows=8))
    step(scheduler, MS, ran_out(1))
    assert step(scheduler, 2 * MS, arrival(2, 10 * S, rows=8)) == []
    lost = BatchFailed(2, FailureCause.WORKER_LOST, "killed")
    assert step(scheduler, 3 * MS, PartitionLost("big", "killed"), lost) == [
        dispatch(3, [Member(1, 0, 8)], RETRY, partition="small"),
    ]


def test_what_failed_above_the_limit_says_nothing_new() -> None:
    limit = BatchLimit(64)
    assert limit.ran_out(64, 0)
    assert limit.rows == 32
    assert not limit.ran_out(64, 5)
    assert not limit.held(60 * S - 1)
    assert limit.held(60 * S)
    assert (limit.rows, limit.lapsed) == (64, False)
    assert limit.ran_out(64, 61 * S)
    assert not limit.held(61 * S + 120 * S - 1)
    assert limit.held(61 * S + 120 * S)


def test_a_limit_is_at_least_one_row_and_waits_an_hour_at_most() -> None:
    limit = BatchLimit(1)
    now_ns = 0
    for _ in range(20):
        assert limit.ran_out(1, now_ns)
        assert (limit.rows, limit.room) == (1, 0)
        now_ns += 3600 * S
        assert limit.held(now_ns)
        assert (limit.rows, limit.room) == (1, 1)


def test_one_row_that_has_no_memory_anywhere_is_tried_once_on_each_kind() -> None:
    partitions = (PartitionConfig("small", "cpu1"), PartitionConfig("big", "cpu4"))
    scheduler = serving(spec_of([model("m:1")], partitions=partitions), FLAT)
    step(scheduler, 0, arrival(1, S))
    assert step(scheduler, MS, ran_out(1)) == [dispatch(2, [1], RETRY, partition="big")]
    reason = f"partition big has no memory for this request alone (1 row): {NO_MEMORY}"
    assert step(scheduler, 2 * MS, ran_out(2)) == [FailRequest(1, Outcome.FAILED_BACKEND, reason)]
    assert step(scheduler, 3 * MS, arrival(2, S)) == [dispatch(3, [2], FULL, partition="small")]


def test_an_estimate_with_a_limit_predicts_more_rows_in_pieces() -> None:
    estimate = LatencyEstimate(FLAT, 8, 100_000)
    estimate.observe(4, 12 * MS // 10)
    before = [estimate.service_ns(rows) for rows in range(1, 9)]
    estimate.limit(3)
    assert estimate.sizes == (1, 2, 3)
    assert estimate.max_rows == estimate.efficient_rows == 3
    of_three = estimate.service_ns(3)
    assert of_three == before[2]
    assert [round(estimate.service_ns(rows) / (of_three + 100_000), 1) for rows in (4, 6, 7, 8)] == [2, 2, 3, 3]
    estimate.limit(8)
    assert [estimate.service_ns(rows) for rows in range(1, 9)] == before
