"""Partitions that share a device: who has used up an elastic share waits while another one has something to run."""

from collections.abc import Iterable

import pytest

from sluice.batcher.fleet.shared_device import DeviceAccount, SharedDevice, parts
from sluice.batcher.interface.config import DeviceShare, Limits, PartitionConfig
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch, RejectRequest, RevokeBatch
from sluice.batcher.interface.events import BatchRevoked, PartitionReady, PartitionResized
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.state import PartitionState
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, US, S, arrival, completed, model, single, spec_of, step

TEN_MS = LatencyTable.from_ms({1: 10})
SMALL = DeviceShare("gpu", 0.2, 1.0)
LARGE = DeviceShare("gpu", 0.8, 1.0)
HARD = DeviceShare("gpu", 0.8, 0.8)


def two_on_a_device(
    small: DeviceShare | None = SMALL, large: DeviceShare | None = LARGE, late: Late = Late.SERVE
) -> Scheduler:
    """Partition `small` runs model `a`, `large` model `b`; a batch is one request."""
    spec = spec_of(
        [model("a", 1), model("b", 1)],
        [single("a", late), single("b")],
        partitions=[PartitionConfig("small", "s", device=small), PartitionConfig("large", "l", device=large)],
        limits=Limits(hand_off_ns=0),
    )
    scheduler = Scheduler(spec)
    step(scheduler, 0, PartitionReady("small", {"a": TEN_MS}), PartitionReady("large", {"b": TEN_MS}))
    return scheduler


def started(decisions: Iterable[AnyDecision]) -> list[str]:
    return [decision.partition for decision in decisions if isinstance(decision, DispatchBatch)]


def a_has_run_beside_b(scheduler: Scheduler) -> list[str]:
    """Both run from 0 to 20 ms, and have as much to do then; what is started at 20 ms."""
    arrivals = [arrival(n, S, "a" if n % 2 else "b") for n in range(1, 9)]
    assert started(step(scheduler, 0, *arrivals)) == ["small", "large"]
    assert started(step(scheduler, 10 * MS)) == []  # the one behind waits for what the device will be used for
    return started(step(scheduler, 20 * MS, completed(1, 0, 20 * MS), completed(2, 0, 20 * MS)))


def test_a_partition_that_has_used_up_its_share_waits_until_the_other_has_had_as_much_for_its_own() -> None:
    scheduler = two_on_a_device()
    assert a_has_run_beside_b(scheduler) == ["large"]
    # Of 20 ms each had 10. For a share of 0.2 that is what is due to it in 50 ms.
    assert started(step(scheduler, 30 * MS, completed(3, 20 * MS, 30 * MS))) == ["large"]
    assert started(step(scheduler, 40 * MS, completed(4, 30 * MS, 40 * MS))) == ["large"]
    assert started(step(scheduler, 50 * MS - 1)) == []
    assert scheduler.next_wakeup_ns() == 50 * MS
    assert started(step(scheduler, 50 * MS)) == ["small"]


def test_a_partition_that_waits_continues_when_the_other_has_nothing_more() -> None:
    scheduler = two_on_a_device()
    step(scheduler, 0, arrival(1, S, "a"), arrival(2, S, "b"), arrival(3, S, "a"))
    # The other may be about to have something: it is waited for during a tenth of its last batch.
    assert started(step(scheduler, 20 * MS, completed(1, 0, 20 * MS), completed(2, 0, 20 * MS))) == []
    assert scheduler.next_wakeup_ns() == 22 * MS
    assert started(step(scheduler, 22 * MS)) == ["small"]


def test_no_partition_waits_for_one_that_has_nothing_to_run() -> None:
    scheduler = two_on_a_device()
    step(scheduler, 0, *(arrival(n, S, "a") for n in range(1, 9)))
    for batch in range(1, 8):
        ended_ns = batch * 10 * MS
        decisions = step(scheduler, ended_ns, completed(batch, ended_ns - 10 * MS, ended_ns))
        assert scheduler.dispatcher.fleet.partitions["small"].batches, f"it waits after {decisions}"


def test_a_batch_behind_the_one_that_runs_is_taken_back_when_the_other_comes() -> None:
    scheduler = two_on_a_device()
    step(scheduler, 0, arrival(1, S, "a"), arrival(2, S, "a"))
    assert started(step(scheduler, 10 * MS)) == ["small"]  # the first one is late: the next one is behind it
    decisions = step(scheduler, 11 * MS, arrival(3, S, "b"))
    assert started(decisions) == ["large"]
    assert RevokeBatch(2) in decisions
    assert started(step(scheduler, 11 * MS, BatchRevoked(2))) == []
    assert started(step(scheduler, 12 * MS, completed(1, 0, 12 * MS))) == []


def test_a_hard_share_never_waits() -> None:
    scheduler = two_on_a_device(large=HARD)
    arrivals = [arrival(n, S, "a" if n % 2 else "b") for n in range(1, 9)]
    assert started(step(scheduler, 0, *arrivals)) == ["small", "large"]
    assert started(step(scheduler, 10 * MS)) == ["large"]  # the next one is behind the first, as ever
    assert started(step(scheduler, 20 * MS, completed(1, 0, 20 * MS), completed(2, 0, 20 * MS))) == []
    assert started(step(scheduler, 30 * MS)) == ["large"]


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (DeviceShare("gpu", 0.2, 0.2), HARD),
        (DeviceShare("gpu", 0.0, 1.0), DeviceShare("gpu", 0.0, 1.0)),
        (SMALL, DeviceShare("another", 0.8, 1.0)),
        (None, None),
    ],
    ids=["hard", "uncapped", "two devices", "cores"],
)
def test_nobody_waits_where_no_elastic_share_has_a_neighbour(
    small: DeviceShare | None, large: DeviceShare | None
) -> None:
    scheduler = two_on_a_device(small, large)
    step(scheduler, 0, *(arrival(n, S, "a" if n % 2 else "b") for n in range(1, 9)))
    step(scheduler, 10 * MS)
    states = scheduler.dispatcher.fleet.partitions.values()
    assert [len(partition.batches) for partition in states] == [2, 2]


def test_an_elastic_share_does_not_wait_for_one_that_is_promised_nothing() -> None:
    scheduler = two_on_a_device(large=DeviceShare("gpu", 0.0, 1.0))
    step(scheduler, 0, arrival(1, S, "a"), arrival(2, S, "b"))
    assert started(step(scheduler, 20 * MS, completed(1, 0, 20 * MS), arrival(3, S, "a"))) == ["small"]


def test_what_is_to_wait_is_refused_if_it_would_be_late() -> None:
    scheduler = two_on_a_device()
    a_has_run_beside_b(scheduler)
    (refused,) = step(scheduler, 21 * MS, arrival(20, 21 * MS + 35 * MS, "a"))
    assert isinstance(refused, RejectRequest)
    # It would go first, at 50 ms. The batch of 20 ms has left 0.2 % of 10 ms, and a tail of 4.95 % of that, which is
    # kept 1.1793 times (2.748 deviations of 2.33), and twice since three batches are planned already: 1.2 ms.
    assert refused.reason == "predicted to complete in 40.2 ms, 35.0 ms are left"
    assert step(scheduler, 21 * MS, arrival(21, 21 * MS + 40_200 * US, "a")) == []


@pytest.mark.parametrize("late", Late)
def test_work_that_was_promised_in_time_waits_as_long_as_it_can_and_no_longer(late: Late) -> None:
    """Its batch takes 10.02 ms, and 495 us of that are kept for the tail (times 1.1793: 2.748 deviations of 2.33)."""
    scheduler = two_on_a_device(late=late)
    step(scheduler, 0, arrival(1, S, "a"), arrival(2, S, "b"), arrival(4, S, "b"), arrival(6, S, "b"))
    decisions = step(scheduler, 20 * MS, completed(1, 0, 20 * MS), completed(2, 0, 20 * MS), arrival(3, 35 * MS, "a"))
    assert started(decisions) == ["large"]
    latest_ns = 35 * MS - 10_020 * US - 583_756
    assert started(step(scheduler, 22 * MS)) == []
    assert scheduler.next_wakeup_ns() == latest_ns
    assert started(step(scheduler, latest_ns)) == ["small"]


def test_what_was_promised_and_can_no_longer_be_in_time_does_not_end_a_throttling() -> None:
    scheduler = two_on_a_device()
    step(scheduler, 0, arrival(1, S, "a"), arrival(2, S, "b"), *(arrival(n, S, "b") for n in (4, 6, 8)))
    step(scheduler, 20 * MS, completed(1, 0, 20 * MS), completed(2, 0, 20 * MS), arrival(3, 35 * MS, "a"))
    assert scheduler.dispatcher.fleet.partitions["small"].throttled
    assert started(step(scheduler, 30 * MS, completed(3, 20 * MS, 30 * MS))) == ["large"]
    assert scheduler.dispatcher.fleet.partitions["small"].throttled


def test_a_promised_batch_on_a_throttled_partition_is_predicted_to_start_at_once() -> None:
    scheduler = two_on_a_device(late=Late.EVICT)
    step(scheduler, 0, arrival(1, S, "a"), arrival(2, S, "b"), arrival(4, S, "b"), arrival(6, S, "b"))
    step(scheduler, 20 * MS, completed(1, 0, 20 * MS), completed(2, 0, 20 * MS), arrival(3, 35 * MS, "a"))
    small = scheduler.dispatcher.fleet.partitions["small"]
    assert small.throttled
    assert small.free_at_ns > 25 * MS  # when it would be within its share
    (batch,) = scheduler.handle_wakeup(24_500 * US)
    assert isinstance(batch, DispatchBatch)
    assert batch.partition == "small"
    assert batch.predicted_ns == small.free_at_ns == 24_500 * US + small.batches[0].expected_ns


def test_work_is_predicted_to_take_as_long_as_it_did_when_it_was_held_back() -> None:
    account = DeviceAccount(SharedDevice(), PartitionState(0, "small", "s", 1.0, 0, 0), SMALL)
    for cycle in range(20):
        account.wait(cycle * 50 * MS)
        account.go_on(cycle * 50 * MS + 30 * MS)
        account.ran(20 * MS, 10 * MS, (cycle + 1) * 50 * MS)
    assert account.present_slowdown == 1
    account.contended = True
    assert account.present_slowdown == pytest.approx(5, rel=0.01)


def test_a_partition_that_is_resized_has_its_new_share() -> None:
    scheduler = two_on_a_device()
    wider = DeviceShare("gpu", 0.5, 1.0)
    step(scheduler, 0, PartitionResized("small", "s2", 1.0, 0.5, {"a": TEN_MS}, wider))
    assert scheduler.spec.partitions[0].device == wider
    narrower = DeviceShare("gpu", 0.5, 1.0)
    step(scheduler, 0, PartitionResized("large", "l2", 1.0, 0.5, {"b": TEN_MS}, narrower))
    assert a_has_run_beside_b(scheduler) == ["small", "large"]


@pytest.mark.parametrize(
    ("caps", "expected"),
    [
        ([1.0], [1.0]),
        ([1.0, 1.0], [0.5, 0.5]),
        ([0.2, 1.0], [0.2, 0.8]),
        ([1.0, 0.9, 0.1], [0.45, 0.45, 0.1]),
        ([], []),
    ],
)
def test_those_that_run_have_equal_parts_within_their_caps(caps: list[float], expected: list[float]) -> None:
    assert parts(caps) == pytest.approx(expected)
