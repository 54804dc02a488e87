"""A resize of a partition in virtual time: its effect on clients, and the replay of its journal."""

import io

import msgspec
import pytest

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch, Settlement
from sluice.batcher.interface.events import (
    AnyEvent,
    PartitionReady,
    PartitionResized,
    PartitionsSampled,
    RequestArrived,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.partitions.balance import BalanceSettings, ResizeTrigger
from tests.support.scheduling.builders import MS, S, model, single, spec_of
from tests.support.scheduling.services import WithoutConfidences

SLOW = LatencyTable.from_ms({1: 4, 8: 16})
FAST = LatencyTable.from_ms({1: 2, 8: 8})
RESIZED_NS = S
GROWN = PartitionResized("cpu0", "cpu2", 2.0, 1.0, {"m:1": FAST})
SHRUNK = PartitionResized("cpu0", "cpu1", 1.0, 0.5, {"m:1": SLOW})


class Run(WithoutConfidences):
    """Requests at regular intervals before and after a resize, on a machine that follows its tables."""

    def __init__(self, late: Late, resized: PartitionResized) -> None:
        before = "cpu1" if resized is GROWN else "cpu2"
        spec = spec_of([model("m:1")], [single("m:1", late)], partitions=[PartitionConfig("cpu0", before)])
        self.table, self.next_table = (SLOW, FAST) if resized is GROWN else (FAST, SLOW)
        self.resized = resized
        self.journal = io.BytesIO()
        self.record = JournalWriter(self.journal.write, spec).record
        self.arrived_ns: dict[int, int] = {}
        self.took_ns: dict[int, int] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.scheduler = Scheduler(spec, LivePlanner())
        self.simulator = Simulator(self.scheduler, self, self.observe, build_plan=build_plan)

    def order_resizes(self) -> None:
        """Have the scheduler itself order the resize: the partition is sampled as busy."""
        settings = BalanceSettings(ResizeTrigger.LOAD, every_s=0.1, pause_s=0.0)
        spec = msgspec.structs.replace(self.scheduler.spec, resizing=settings)
        self.journal = io.BytesIO()
        self.record = JournalWriter(self.journal.write, spec).record
        self.scheduler = Scheduler(spec, LivePlanner())
        self.simulator = Simulator(
            self.scheduler, self, self.observe, build_plan=build_plan, resize=lambda order: self.resized
        )
        for number in range(4):  # the last one calls for it
            sample = PartitionsSampled({"cpu0": 1.0}, {"cpu0": (0,)}, (1,))
            self.simulator.at(RESIZED_NS - (3 - number) * 100 * MS, sample)

    def play(self, every_ns: int, slo_ns: int) -> None:
        self.simulator.at(0, PartitionReady("cpu0", {"m:1": self.table}))
        if self.scheduler.spec.resizing is None:
            self.simulator.at(RESIZED_NS, self.resized)
        times = range(every_ns, 2 * S, every_ns)
        self.arrived_ns = dict(enumerate(times))
        self.simulator.run((at_ns, RequestArrived(n, "m:1", 1, at_ns + slo_ns)) for n, at_ns in self.arrived_ns.items())

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        self.record(now_ns, event, decisions)
        check_invariants(self.scheduler)
        if event is self.resized:
            self.table = self.next_table
        for decision in decisions:
            if isinstance(decision, Settlement):
                self.outcomes[decision.request] = decision.outcome
                self.took_ns[decision.request] = now_ns - self.arrived_ns[decision.request]

    def slowest_ns(self, from_ns: int, until_ns: int) -> int:
        return max(self.took_ns[n] for n, at_ns in self.arrived_ns.items() if from_ns <= at_ns < until_ns)

    def batch_ns(self, batch: DispatchBatch) -> int:
        return self.table.latency_ns(batch.rows)


@pytest.mark.parametrize("resized", [GROWN, SHRUNK])
@pytest.mark.parametrize("late", Late)
def test_every_request_is_answered_and_the_journal_replays(late: Late, resized: PartitionResized) -> None:
    run = Run(late, resized)
    run.play(every_ns=5 * MS, slo_ns=200 * MS)
    assert set(run.outcomes.values()) == {Outcome.COMPLETED}
    assert len(run.outcomes) == len(run.arrived_ns)
    assert replay(run.journal.getvalue().splitlines(), LivePlanner()) is None


def test_requests_after_the_resize_are_as_fast_as_the_new_share() -> None:
    run = Run(Late.SERVE, GROWN)
    run.play(every_ns=10 * MS, slo_ns=S)
    assert run.slowest_ns(0, RESIZED_NS) == 4 * MS
    assert run.slowest_ns(RESIZED_NS, 2 * S) == 2 * MS


def test_a_resize_that_the_scheduler_orders_makes_requests_as_fast_and_its_journal_replays() -> None:
    run = Run(Late.SERVE, GROWN)
    run.order_resizes()
    run.play(every_ns=10 * MS, slo_ns=S)
    assert run.slowest_ns(0, RESIZED_NS) == 4 * MS
    assert run.slowest_ns(RESIZED_NS, 2 * S) == 2 * MS
    assert replay(run.journal.getvalue().splitlines(), LivePlanner()) is None


def test_requests_that_are_evicted_when_late_are_in_time_before_and_after_the_partition_shrinks() -> None:
    run = Run(Late.EVICT, SHRUNK)
    run.play(every_ns=10 * MS, slo_ns=6 * MS)
    assert set(run.outcomes.values()) == {Outcome.COMPLETED}
    assert run.slowest_ns(0, 2 * S) <= 6 * MS
