"""The scaler within a scheduler: what is ordered, closed and given up, and how requests fare meanwhile."""

from typing import Any

import msgspec

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CompleteRequest,
    DispatchBatch,
    FailRequest,
    LoadModel,
    RejectRequest,
    SetPartitions,
    UnloadModel,
)
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchCompleted,
    PartitionLost,
    PartitionReady,
    RequestArrived,
    ServingChanged,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.scaling_config import ScaledClass, ScalingConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, model, single, spec_of

TABLE = LatencyTable.from_ms({1: 100})
"""10 rows a second."""
SLOTS = tuple(f"edge-{number}" for number in range(6))


class Driver:
    """A scheduler with one class of up to 6 partitions, and what it decided last."""

    def __init__(self, least: int = 1, *, to_zero: bool = False, local: int = 0, max_batch: int = 1) -> None:
        partitions = [
            *(PartitionConfig(f"cpu{number}", "cpu") for number in range(local)),
            *(PartitionConfig(slot, "remote") for slot in SLOTS),
        ]
        spec = spec_of([model("m:1", max_batch)], [single("m:1")], partitions=partitions)
        scaled = ScaledClass("edge", SLOTS, least, len(SLOTS), to_zero)
        spec = msgspec.structs.replace(spec, scaling=ScalingConfig((scaled,)))
        self.scheduler = Scheduler(spec)
        self.tables = {"m:1": TABLE}
        self.now_ns = 0
        self.requests = 0

    def at(self, at_ns: int, *events: AnyEvent) -> list[AnyDecision]:
        """Handle events of one instant, and the wake-up that is due then."""
        self.now_ns = at_ns
        decisions = [each for event in events for each in self.scheduler.handle(event, at_ns)]
        due_ns = self.scheduler.next_wakeup_ns()
        if due_ns is not None and due_ns <= at_ns:
            decisions += self.scheduler.handle_wakeup(at_ns)
        check_invariants(self.scheduler)
        return decisions

    def arrive(self, at_ns: int, count: int = 1, budget_ns: int = 600 * S) -> list[AnyDecision]:
        first = self.requests + 1
        self.requests += count
        numbers = range(first, self.requests + 1)
        return self.at(at_ns, *(RequestArrived(number, "m:1", 1, at_ns + budget_ns) for number in numbers))

    def up(self, at_ns: int, *slots: str) -> list[AnyDecision]:
        return self.at(at_ns, *(PartitionReady(slot, dict(self.tables)) for slot in slots))

    def quiet(self, until_ns: int) -> list[AnyDecision]:
        """Let all wake-ups until then happen."""
        decisions: list[AnyDecision] = []
        while (due_ns := self.scheduler.next_wakeup_ns()) is not None and due_ns <= until_ns:
            decisions += self.at(max(due_ns, self.now_ns))
        return decisions

    def grow(self, count: int = 3) -> None:
        """Have `count` partitions up, all of them idle, at 20 s."""
        self.at(0)
        self.up(S, "edge-0")
        self.arrive(10 * S)
        self.arrive(11 * S, 21 * count - 4)
        (order,) = of(self.quiet(12 * S), SetPartitions)
        assert order.count == count
        self.up(20 * S, *SLOTS[1:count])
        self.run_out()

    def close_a_busy_one(self) -> tuple[str, int]:
        """Three partitions are up and busy, and fewer are wanted: the one that is closed, and its batch."""
        self.grow(3)
        fleet, batches = self.scheduler.dispatcher.fleet, self.scheduler.dispatcher.batches
        self.settle(self.arrive(30 * S, 3))
        for at_s in range(31, 301):
            first = list(batches)
            self.settle(self.arrive(at_s * S, 3))
            closed = [slot for slot in SLOTS if fleet.partitions[slot].closed]
            if closed:
                number = next(each.identity for each in batches.values() if each.partition.name == closed[0])
                return closed[0], number
            for number in first:
                self.at(self.now_ns, BatchCompleted(number, self.now_ns - 100 * MS, self.now_ns))
        raise AssertionError("no partition was closed")

    def run_out(self) -> None:
        """Complete all batches and everything that follows them, at once."""
        while self.scheduler.dispatcher.batches:
            for number in list(self.scheduler.dispatcher.batches):
                self.at(self.now_ns + 100 * MS, BatchCompleted(number, self.now_ns, self.now_ns + 100 * MS))

    def settle(self, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            assert not isinstance(decision, FailRequest | RejectRequest)


def of(decisions: list[AnyDecision], *kinds: type[Any]) -> list[Any]:
    return [each for each in decisions if isinstance(each, kinds)]


def test_a_class_begins_with_its_least() -> None:
    assert Driver(2).at(0) == [SetPartitions("edge", 2)]
    assert Driver(0, to_zero=True).at(0) == [SetPartitions("edge", 0)]


def test_nothing_happens_without_traffic() -> None:
    driver = Driver()
    driver.at(0)
    driver.up(S, "edge-0")
    driver.quiet(4 * S)
    assert driver.scheduler.next_wakeup_ns() is None


def test_a_request_waits_for_the_first_partition_if_it_has_time() -> None:
    driver = Driver(0, to_zero=True)
    driver.at(0)
    assert driver.arrive(5 * S, budget_ns=15 * S) == [SetPartitions("edge", 1)]
    decisions = driver.up(14 * S, "edge-0")
    assert [(batch.partition, batch.members[0].request) for batch in of(decisions, DispatchBatch)] == [("edge-0", 1)]
    done = driver.at(15 * S, BatchCompleted(1, 14 * S, 15 * S))
    assert done == [CompleteRequest(1, Outcome.COMPLETED)]


def test_a_request_without_the_time_is_refused_and_a_partition_started_all_the_same() -> None:
    driver = Driver(0, to_zero=True)
    driver.at(0)
    decisions = driver.arrive(5 * S, budget_ns=S)
    (reject,), (order,) = of(decisions, RejectRequest), of(decisions, SetPartitions)
    assert order == SetPartitions("edge", 1)
    assert reject.outcome is Outcome.REJECTED_DEADLINE
    assert reject.reason == (
        "model m:1 waits for a partition of class edge, which is being started: "
        "predicted to complete in 10000 ms, 1000.0 ms are left"
    )
    assert reject.retry_after_ns == 9 * S


def test_the_time_of_a_start_is_learned() -> None:
    driver = Driver(0, to_zero=True)
    driver.at(0)
    driver.arrive(5 * S, budget_ns=S)
    driver.up(7 * S, "edge-0")
    assert driver.scheduler.scaler.status()["edge"].start_ns == 7_600 * MS


def test_the_first_partitions_start_with_the_first_order() -> None:
    driver = Driver(2)
    driver.at(1000 * S)
    driver.up(1002 * S, "edge-0")
    assert driver.scheduler.scaler.status()["edge"].start_ns == 7_600 * MS
    driver.up(1004 * S, "edge-1")
    assert driver.scheduler.scaler.status()["edge"].start_ns == 6_520 * MS


def test_a_request_is_refused_while_a_start_takes_far_too_long() -> None:
    driver = Driver(0, to_zero=True)
    driver.at(0)
    driver.arrive(5 * S, budget_ns=S)
    (reject,) = of(driver.arrive(105 * S, budget_ns=20 * S), RejectRequest)
    assert "predicted to complete in 25000 ms, 20000.0 ms are left" in reject.reason


def test_a_request_whose_partition_never_comes_fails_at_its_deadline() -> None:
    driver = Driver(0, to_zero=True)
    driver.at(0)
    driver.arrive(5 * S, budget_ns=15 * S)
    assert not of(driver.quiet(19 * S), FailRequest)
    (failed,) = of(driver.quiet(22 * S), FailRequest)
    assert failed.outcome is Outcome.FAILED_UNAVAILABLE
    assert failed.reason == "model m:1 waits for a partition of class edge, which is being started"


def test_a_new_model_has_a_partition_started_where_none_is_up_to_load_it() -> None:
    driver = Driver(0, to_zero=True)
    driver.at(0)
    change = ServingChanged((model("n:1", 1),), (single("n:1"),))
    assert of(driver.at(5 * S, change), SetPartitions) == [SetPartitions("edge", 1)]
    assert LoadModel("edge-0", "n:1") in driver.up(14 * S, "edge-0")
    assert not of(driver.at(15 * S, ServingChanged((model("o:1", 1),), (single("o:1"),))), SetPartitions)


def test_a_model_that_is_gone_is_unloaded_where_a_partition_is_opened_again() -> None:
    driver = Driver()
    driver.at(0, ServingChanged((model("n:1", 1),), (single("n:1"),)))
    driver.tables["n:1"] = TABLE
    closed, _ = driver.close_a_busy_one()
    driver.at(driver.now_ns, ServingChanged(retired=("n:1",)))
    decisions = driver.arrive(driver.now_ns + MS, 40) + driver.quiet(driver.now_ns + 3 * S)
    assert UnloadModel(closed, "n:1") in decisions


def test_a_model_that_local_partitions_hold_waits_for_none() -> None:
    driver = Driver(0, to_zero=True, local=1)
    driver.at(0, PartitionReady("cpu0", {"m:1": TABLE}))
    assert not of(driver.arrive(S), SetPartitions)


def test_partitions_come_as_the_rate_grows() -> None:
    driver = Driver()
    driver.at(0)
    driver.up(S, "edge-0")
    driver.arrive(10 * S)
    driver.arrive(11 * S, 100)
    (order,) = of(driver.quiet(12 * S), SetPartitions)
    assert order.count > 1


def test_rows_that_wait_count_in_the_panic_window() -> None:
    driver = Driver()
    driver.at(0)
    driver.up(S, "edge-0")
    driver.arrive(10 * S)
    driver.arrive(11 * S, 44)
    driver.quiet(12 * S)
    status = driver.scheduler.scaler.status()["edge"]
    # 44 rows in 6 s, and of these 42 or 43 wait: 10 rows a second keep one partition busy.
    assert 1.43 < status.demand.panic < 1.47
    assert status.is_panicking


def test_the_idle_partition_with_the_highest_number_goes_first() -> None:
    driver = Driver()
    driver.grow(3)
    orders = of(driver.quiet(300 * S), SetPartitions)
    assert orders[-1].count == 1
    assert [slot for order in orders for slot in order.leaving] == ["edge-2", "edge-1"]


def test_a_partition_goes_only_when_its_batches_have_ended() -> None:
    driver = Driver()
    closed, number = driver.close_a_busy_one()
    assert not of(driver.quiet(driver.now_ns + 4 * S), SetPartitions)
    assert not [batch for batch in of(driver.arrive(driver.now_ns), DispatchBatch) if batch.partition == closed]
    driver.at(driver.now_ns, BatchCompleted(number, driver.now_ns, driver.now_ns))
    (order,) = of(driver.quiet(driver.now_ns + 2 * S), SetPartitions)
    assert closed in order.leaving


def test_a_closed_partition_is_opened_again_before_another_is_ordered() -> None:
    driver = Driver()
    closed, _ = driver.close_a_busy_one()
    decisions = driver.arrive(driver.now_ns + MS, 40) + driver.quiet(driver.now_ns + 3 * S)
    assert not driver.scheduler.dispatcher.fleet.partitions[closed].closed
    assert not of(decisions, SetPartitions)


def test_a_partition_that_is_being_started_goes_before_one_that_is_up() -> None:
    driver = Driver()
    driver.at(0)
    driver.up(S, "edge-0")
    driver.arrive(10 * S)
    driver.arrive(11 * S, 100)
    (order,) = of(driver.quiet(12 * S), SetPartitions)
    driver.run_out()
    orders = of(driver.quiet(300 * S), SetPartitions)
    assert order.count > 1
    assert orders[-1] == SetPartitions("edge", 1)
    assert not any(each.leaving for each in orders)


def test_a_lost_partition_is_expected_back() -> None:
    driver = Driver()
    driver.at(0)
    driver.up(S, "edge-0")
    driver.at(2 * S, PartitionLost("edge-0", "node n1: gone"))
    assert not of(driver.arrive(3 * S, budget_ns=20 * S), SetPartitions, RejectRequest)
    assert of(driver.up(9 * S, "edge-0"), DispatchBatch)


def test_a_slot_that_fills_by_itself_is_used() -> None:
    driver = Driver(0, to_zero=True)
    driver.at(0)
    driver.up(S, "edge-3")
    assert of(driver.arrive(2 * S), DispatchBatch)
    driver.run_out()
    assert of(driver.quiet(100 * S), SetPartitions) == [SetPartitions("edge", 0, ("edge-3",))]


def test_a_slot_that_stays_where_another_went_is_used_again() -> None:
    driver = Driver()
    driver.grow(3)
    orders = of(driver.quiet(300 * S), SetPartitions)
    stays = orders[-1].leaving[0]
    driver.at(300 * S, PartitionLost("edge-0", "its pod was removed"))
    assert of(driver.arrive(302 * S, budget_ns=60 * S), DispatchBatch)[0].partition == stays
