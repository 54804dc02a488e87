"""Fleets of many partitions: tables of groups change no decision, and keep their bounds when nodes go and come back."""

import pytest

from benchmarks.support.fleet import Fleet, Service
from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.fleet import member_table
from sluice.batcher.interface.decisions import AnyDecision, BuildPlan, CompleteRequest, Settlement
from sluice.batcher.interface.events import AnyEvent, LinkMeasured, PartitionLost
from sluice.batcher.planner.build import build_plan
from sluice.models.units import NS_PER_MS

SECONDS = 0.24


def run(fleet: Fleet, checks_every: int = 0) -> list[list[AnyDecision]]:
    """The decisions of a run in which a node is lost and comes back on a slower link."""
    decided: list[list[AnyDecision]] = []
    scheduler = fleet.scheduler()

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        decided.append([each for each in decisions if not isinstance(each, BuildPlan)])
        if checks_every and len(decided) % checks_every == 0:
            check_invariants(scheduler)

    simulator = Simulator(scheduler, Service(fleet), observe, build_plan=build_plan)
    for event in fleet.ready:
        simulator.at(0, event)
    for event in fleet.ready[:8]:
        simulator.at(100 * NS_PER_MS, PartitionLost(event.partition, "node n0: gone"))
        simulator.at(200 * NS_PER_MS, event)
    simulator.at(200 * NS_PER_MS, LinkMeasured("n0", 2 * NS_PER_MS, 10**9))
    simulator.run(fleet.arrivals(int(SECONDS * 1000) * NS_PER_MS))
    return decided


@pytest.mark.parametrize("load", [0.8, 1.4])
def test_tables_of_groups_change_no_decision(load: float, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(60, 8, "pools", load)
    with_tables = run(fleet)
    monkeypatch.setattr(member_table, "SMALL", 1000)
    assert run(fleet) == with_tables


def test_a_fleet_that_loses_a_node_keeps_all_invariants_and_every_request_has_its_outcome() -> None:
    fleet = Fleet(60, 8, "pools", 1.1)
    decided = run(fleet, checks_every=50)
    settled = [each for decisions in decided for each in decisions if isinstance(each, Settlement)]
    assert len({each.request for each in settled}) == len(settled)
    assert sum(isinstance(each, CompleteRequest) for each in settled) > 0.9 * len(settled)
