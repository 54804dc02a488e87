"""Autoscaling in virtual time: a class of partitions that follows the load, without a failed request."""

import io
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.drivers.simulated_nodes import SimulatedNode
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch, RejectRequest, SetPartitions, Settlement
from sluice.batcher.interface.events import AnyEvent, PartitionLost, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.scaling_config import ScaledClass, ScalingConfig
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, model, single, spec_of
from tests.support.scheduling.services import WithoutConfidences

TABLE = LatencyTable.from_ms({1: 200, 2: 220, 4: 260, 8: 400})
"""20 rows a second in batches of 8."""
START_NS = 5 * S
SLO_NS = 1250 * MS
Phases = Sequence[tuple[int, float]]
"""(seconds until when, requests a second)."""


class Run(WithoutConfidences):
    """Random requests to a model on a class of 16 slots, and some partitions of no class."""

    def __init__(
        self,
        least: int = 1,
        *,
        to_zero: bool = False,
        local: int = 0,
        slo_ns: int = SLO_NS,
        nodes: Sequence[SimulatedNode] = (),
    ) -> None:
        slots = tuple(f"edge-{number}" for number in range(16))
        others = [f"cpu{number}" for number in range(local)]
        spec = spec_of(
            [model("m:1", 8)],
            [msgspec.structs.replace(single("m:1"), slo_ns=slo_ns)],
            partitions=[PartitionConfig(name, "k") for name in (*others, *slots)],
        )
        self.slo_ns = slo_ns
        scaled = ScaledClass("edge", slots, least, 16, to_zero)
        spec = msgspec.structs.replace(spec, scaling=ScalingConfig((scaled,)))
        self.journal = io.BytesIO()
        self.record = JournalWriter(self.journal.write, spec).record
        self.scheduler = Scheduler(spec, LivePlanner())
        tables = {slot: {"m:1": TABLE} for slot in slots}
        self.simulator = Simulator(
            self.scheduler,
            self,
            self.observe,
            build_plan=build_plan,
            tables=tables,
            start_ns=lambda slot: START_NS,
            nodes=nodes,
        )
        for name in others:
            self.simulator.at(0, PartitionReady(name, {"m:1": TABLE}))
        self.ups: list[tuple[int, str]] = []
        self.outcomes: Counter[Outcome] = Counter()
        self.refused_ns: list[int] = []
        self.orders: list[tuple[int, SetPartitions]] = []
        self.panicked_ns: list[int] = []

    def play(self, phases: Phases) -> None:
        self.simulator.run(self.arrivals(phases))

    def arrivals(self, phases: Phases) -> Iterator[tuple[int, RequestArrived]]:
        chance, number, from_s = random.Random(7), 0, 0.0
        for until_s, rate in phases:
            at_s = from_s
            while rate and (at_s := at_s + chance.expovariate(rate)) < until_s:
                number += 1
                at_ns = int(at_s * S)
                yield at_ns, RequestArrived(number, "m:1", 1, at_ns + self.slo_ns)
            from_s = until_s

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        self.record(now_ns, event, decisions)
        if isinstance(event, PartitionReady | PartitionLost) or any(
            isinstance(each, SetPartitions) for each in decisions
        ):
            check_invariants(self.scheduler)
        if isinstance(event, PartitionReady):
            self.ups.append((now_ns, event.partition))
        if self.scheduler.scaler.status()["edge"].is_panicking:
            self.panicked_ns.append(now_ns)
        for decision in decisions:
            if isinstance(decision, SetPartitions):
                self.orders.append((now_ns, decision))
            if isinstance(decision, Settlement):
                self.outcomes[decision.outcome] += 1
            if isinstance(decision, RejectRequest):
                self.refused_ns.append(now_ns)

    def batch_ns(self, batch: DispatchBatch) -> int:
        return TABLE.latency_ns(batch.rows)

    @property
    def failed(self) -> int:
        ends = (Outcome.COMPLETED, Outcome.COMPLETED_LATE, Outcome.REJECTED_DEADLINE)
        return sum(self.outcomes.values()) - sum(self.outcomes[each] for each in ends)


def test_a_step_by_ten_enters_panic_within_6_s_and_goes_back_after_the_window() -> None:
    run = Run()
    run.play([(60, 10), (120, 100), (300, 10)])
    assert 60 * S < run.panicked_ns[0] <= 66 * S
    most = max(order.count for _, order in run.orders)
    assert most >= 7  # 5 busy ones at 70 %
    assert run.orders[-1][1].count == 1
    # Panic lasts for a stable window from the last look that called for it, and the load falls at 120 s.
    assert all(
        later.count >= before.count
        for (_, before), (at_ns, later) in zip(run.orders, run.orders[1:], strict=False)
        if at_ns in run.panicked_ns
    )
    assert run.orders[-1][0] <= 240 * S
    assert run.failed == 0
    # Refused is only what one partition could not take until others were up.
    assert all(at_ns < START_NS or 60 * S <= at_ns <= 66 * S + 2 * START_NS for at_ns in run.refused_ns)


@pytest.mark.parametrize("local", [0, 2])
def test_the_journal_of_a_run_replays(local: int) -> None:
    run = Run(0, to_zero=True, local=local)
    run.play([(20, 20), (60, 120), (140, 4)])
    assert replay(run.journal.getvalue().splitlines(), LivePlanner()) is None
    assert run.failed == 0


def test_a_class_at_zero_serves_its_first_request_after_a_start() -> None:
    run = Run(0, to_zero=True, slo_ns=10 * S)
    run.play([(10, 0), (20, 5)])
    assert run.orders[1] == (run.orders[1][0], SetPartitions("edge", 1))
    assert run.outcomes.keys() == {Outcome.COMPLETED}
    end_ns, last = run.orders[-1]
    assert last == SetPartitions("edge", 0, ("edge-0",))
    assert 49 * S <= end_ns <= 54 * S


def test_partitions_of_no_class_are_used_first() -> None:
    run = Run(0, to_zero=True, local=2)
    run.play([(60, 16), (120, 100), (200, 16)])
    assert run.orders[0] == (0, SetPartitions("edge", 0))
    assert 60 * S < run.orders[1][0] <= 66 * S
    assert run.orders[-1][1].count == 0
    assert run.failed == 0


def test_lost_workers_come_back_and_no_request_is_lost() -> None:
    run = Run(2)
    for at_s in (30, 45):
        run.simulator.at(at_s * S + 1, PartitionLost("edge-1", "node n1: gone"))
    run.play([(60, 10)])
    assert run.failed == 0
    assert run.scheduler.scaler.status()["edge"].ready == 2


def test_a_lost_node_is_replaced_and_no_request_fails() -> None:
    slots = tuple(f"edge-{number}" for number in range(16))
    nodes = [SimulatedNode(f"n{half}", slots[half::2], 10**9) for half in range(2)]
    run = Run(4, nodes=nodes)
    run.simulator.lose_node(30 * S + 1, "n1")
    run.play([(60, 30)])
    assert run.failed == 0
    assert run.scheduler.scaler.status()["edge"].ready >= 4
    came_up = [at_ns for at_ns, name in run.ups if at_ns > 30 * S and name in ("edge-1", "edge-3")]
    assert came_up == [30 * S + 1 + START_NS] * 2


def test_numbers_rise_and_fall_with_the_load_without_going_to_and_fro() -> None:
    run = Run()
    run.play([(120, 50)])
    steady = [order for at_ns, order in run.orders if 30 * S < at_ns < 118 * S]
    assert len(steady) <= 2
